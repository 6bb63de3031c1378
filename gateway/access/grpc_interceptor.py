"""Checks the callers at the gRPC door: admits known ones, and tells the code behind it who they are.

`metered_speaker` holds callers to their limits on speech. Refuses before a message is read.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import grpc

from gateway.access.access import Access
from gateway.access.caller import NOBODY, Caller, calling
from gateway.dialects.grpc.errors import ERROR_CODE_KEY
from gateway.errors import OverloadedError, UnauthenticatedError, wire_status

logger = logging.getLogger(__name__)

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
    """Goes before all other interceptors."""

    def __init__(self, access: Access) -> None:
        """Keep the object that knows which callers may come in."""
        self._access = access
        self._open_calls = _Room(MAX_OPEN_CALLS, "calls without a key")
        self._watches = _Room(MAX_WATCHES, "watches of health")

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """See `grpc.aio.ServerInterceptor`."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None:
            return None
        if method in OPEN_METHODS:
            return _within(handler, self._open_calls)
        presented = presented_key(handler_call_details.invocation_metadata)
        try:
            caller = self._access.authenticate(presented, NOBODY)
        except UnauthenticatedError as error:
            return _refusing(error, method)
        return _on_behalf(_within(handler, self._watches) if method == HEALTH_WATCH else handler, caller)


class _Room:
    """So many calls at once."""

    def __init__(self, most: int, what: str) -> None:
        self._most = most
        self._what = what
        self._taken = 0

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Take part of the room.

        Raises:
            OverloadedError: there is none.
        """
        if self._taken >= self._most:
            got = f"{self._most} {self._what} are under way, the most there may be"
            raise OverloadedError(f"{got}; try again", retry_after_s=1.0)
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1


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
    """Return the address in gRPC's name of a peer, such as `ipv4:10.0.0.7:41234`."""
    kind, _, rest = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return NOBODY
    return rest.rpartition(":")[0].strip("[]")


def _refusing(error: UnauthenticatedError, method: str) -> Any:
    status = wire_status(error)

    async def refuse(requests: AsyncIterator[Any], context: Any) -> None:
        logger.info("%s refused to %s: %s", method, context.peer(), status.code)
        await context.abort(grpc.StatusCode[status.grpc], str(error), ((ERROR_CODE_KEY, status.code),))

    # NOTE: this kind answers without waiting for a request, whatever the method's own kind is.
    return grpc.stream_stream_rpc_method_handler(refuse)


def _within(handler: Any, room: _Room) -> Any:
    """Have a method run only where there is room; the two kinds that answer one request."""
    make_handler, behavior = (
        (grpc.unary_stream_rpc_method_handler, handler.unary_stream)
        if handler.response_streaming
        else (grpc.unary_unary_rpc_method_handler, handler.unary_unary)
    )

    async def call(request: Any, context: Any) -> Any:
        try:
            with room.taken():
                return await behavior(request, context)
        except OverloadedError as error:
            status = wire_status(error)
            await context.abort(grpc.StatusCode[status.grpc], str(error), ((ERROR_CODE_KEY, status.code),))

    return make_handler(call, handler.request_deserializer, handler.response_serializer)


def _on_behalf(handler: Any, caller: Caller) -> Any:
    """Have a method run on behalf of its caller; one that is no coroutine function, as reflection's, runs as it is."""
    kinds: dict[tuple[bool, bool], tuple[Callable[..., Any], Any]] = {
        (False, False): (grpc.unary_unary_rpc_method_handler, handler.unary_unary),
        (False, True): (grpc.unary_stream_rpc_method_handler, handler.unary_stream),
        (True, False): (grpc.stream_unary_rpc_method_handler, handler.stream_unary),
        (True, True): (grpc.stream_stream_rpc_method_handler, handler.stream_stream),
    }
    make_handler, behavior = kinds[handler.request_streaming, handler.response_streaming]
    if not inspect.iscoroutinefunction(behavior):
        return handler

    async def call(request: Any, context: Any) -> Any:
        # The peer's address is known here only.
        named = replace(caller, name=address_of_peer(context.peer())) if caller.name == NOBODY else caller
        with calling(named):
            return await behavior(request, context)

    return make_handler(call, handler.request_deserializer, handler.response_serializer)
