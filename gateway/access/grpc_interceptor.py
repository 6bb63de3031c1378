"""Checks the callers at the gRPC door: admits known ones, and tells the code behind it who they are.

`gateway.speech.speaker` holds callers to their limits on speech. Refuses before a message is read.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import grpc

from gateway.access.access import Access
from gateway.access.caller import NOBODY, Caller, calling
from gateway.errors import InvalidRequestError, OverloadedError, UnauthenticatedError
from servicekit.timeouts import timeout

HEALTH_CHECK = "/grpc.health.v1.Health/Check"
HEALTH_WATCH = "/grpc.health.v1.Health/Watch"
MAX_OPEN_CALLS = 64
"""Most calls of `OPEN_METHODS` at once, for all callers together; each is answered within a millisecond."""
MAX_WATCHES = 64
"""Most health watches at once, for all callers together; each holds a call for as long as it likes."""
OPEN_METHODS = ("/nvidia.riva.tts.RivaSpeechSynthesis/GetRivaSynthesisConfig", HEALTH_CHECK)
"""Methods that need no key. Pipecat and LiveKit call the first without theirs; Pipecat leaves a server that refuses."""
_BEARER = "bearer"


class AccessInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Goes behind `gateway.doors.grpc_calls.CallInterceptor`, which tells the caller of the errors."""

    def __init__(self, access: Access, max_calls: int, message_s: float) -> None:
        """Begin with no calls.

        Args:
            access: knows which callers may come in.
            max_calls: most calls at once, beside those of `OPEN_METHODS` and health watches.
            message_s: seconds for a call's first message.
        """
        self._access = access
        self._message_s = message_s
        self._calls = _Room(max_calls, "calls")
        self._open_calls = _Room(MAX_OPEN_CALLS, "calls without a key")
        self._watches = _Room(MAX_WATCHES, "watches of health")

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """See `grpc.aio.ServerInterceptor`."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None:
            return None
        if method in OPEN_METHODS:
            return _within(handler, self._open_calls, self._message_s, Caller(NOBODY))
        presented = presented_key(handler_call_details.invocation_metadata)
        try:
            caller = self._access.authenticate(presented, NOBODY)
        except UnauthenticatedError as error:
            return _refusing(error)
        room = self._watches if method == HEALTH_WATCH else self._calls
        return _within(handler, room, self._message_s, caller)


_TO_EACH_LEFT = 3
"""Calls that a caller may have for each one that is left for others: alone it gets three quarters of all."""


class _Room:
    """So many calls at once; whatever one caller has, there are some left for others."""

    def __init__(self, most: int, what: str) -> None:
        self._most = most
        self._what = what
        self._of = Counter[str]()

    @contextmanager
    def taken(self, caller: str) -> Iterator[None]:
        """Take part of the room.

        Raises:
            OverloadedError: the caller has its share, or there is no room.
        """
        mine, left = self._of[caller], self._most - self._of.total()
        if mine >= _TO_EACH_LEFT * left:
            got = f"{mine} {self._what} of this caller are under way, and the {left} that are left are for others"
            raise OverloadedError(f"{got}; try again when one has ended", retry_after_s=1.0)
        self._of[caller] += 1
        try:
            yield
        finally:
            self._of[caller] -= 1
            if not self._of[caller]:
                del self._of[caller]


def presented_key(metadata: Any) -> bytes | None:
    """Return the key that came with a call, if one did: a bearer token, else ElevenLabs' header."""
    given: dict[str, str] = {}
    for key, value in metadata:
        if isinstance(value, str):
            given.setdefault(key, value)  # the first counts, as over HTTP
    scheme, _, token = given.get("authorization", "").strip().partition(" ")
    key = token.strip() if scheme.lower() == _BEARER else given.get("xi-api-key", "").strip()
    return key.encode("utf-8", "surrogateescape") or None


def address_of_peer(peer: str) -> str:
    """Return the address in the name that `gateway.doors.grpc_front` gives a peer: `unix:/tmp/a/10.0.0.7:41234`."""
    return peer.rpartition("/")[2].rpartition(":")[0] or NOBODY


def _refusing(error: UnauthenticatedError) -> Any:
    async def refuse(requests: AsyncIterator[Any], context: Any) -> None:
        raise error

    # NOTE: this kind answers without waiting for a request, whatever the method's own kind is.
    return grpc.stream_stream_rpc_method_handler(refuse)


def _within(handler: Any, room: _Room, message_s: float, caller: Caller) -> Any:
    """Have a method run on behalf of its caller where there is room, which is taken before a message is read.

    NOTE: gRPC reads the message of a method with one request before it calls it; so all become methods with many.
    """
    behavior = handler.stream_stream or handler.stream_unary or handler.unary_stream or handler.unary_unary

    async def call(requests: AsyncIterator[Any], context: Any) -> Any:
        # The peer's address is known here only.
        named = replace(caller, name=address_of_peer(context.peer())) if caller.name == NOBODY else caller
        with room.taken(named.name), calling(named):
            begun = _begun(requests, message_s)
            request = begun if handler.request_streaming else await _only(begun)
            if not inspect.isasyncgenfunction(behavior):
                return await behavior(request, context)
            async for answer in behavior(request, context):
                await context.write(answer)

    streams = handler.response_streaming
    make_handler = grpc.stream_stream_rpc_method_handler if streams else grpc.stream_unary_rpc_method_handler
    return make_handler(call, handler.request_deserializer, handler.response_serializer)


async def _begun(requests: AsyncIterator[Any], message_s: float) -> AsyncIterator[Any]:
    """Yield a call's messages.

    Raises:
        InvalidRequestError: the first one does not come in time.
    """
    try:
        async with timeout(message_s):
            first = await anext(requests, None)
    except asyncio.TimeoutError as error:
        got = f"no whole message came within {message_s:g} s of the call's begin"
        raise InvalidRequestError(f"{got}; call when there is something to send") from error
    if first is not None:
        yield first
        async for request in requests:
            yield request


async def _only(requests: AsyncIterator[Any]) -> Any:
    async for request in requests:
        return request
    raise InvalidRequestError("the call ended without a message; send one")
