"""Checks the callers at the gRPC door: admits known ones, and tells the code behind it who they are.

`gateway.speech.speaker` holds callers to their limits on speech. Refuses before a message is read.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from gateway.access.access import Access
from gateway.access.caller import NOBODY, Caller, calling
from gateway.access.keys import key_of
from gateway.errors import InvalidRequestError, OverloadedError
from servicekit.timeouts import timeout

HEALTH_CHECK = "/grpc.health.v1.Health/Check"
HEALTH_WATCH = "/grpc.health.v1.Health/Watch"
MAX_OPEN_CALLS = 64
"""Most calls of `OPEN_METHODS` at once, for all callers together; each is answered within a millisecond."""
MAX_WATCHES = 64
"""Most health watches at once, for all callers together; each holds a call for as long as it likes."""
OPEN_METHODS = ("/nvidia.riva.tts.RivaSpeechSynthesis/GetRivaSynthesisConfig", HEALTH_CHECK)
"""Methods that need no key. Pipecat and LiveKit call the first without theirs; Pipecat leaves a server that refuses."""


class GrpcAccess:
    """Admits known callers where there is room, and tells the code behind it who they are."""

    def __init__(self, access: Access, max_calls: int, message_s: float) -> None:
        """Begin with no calls.

        Args:
            max_calls: most calls at once, beside those of `OPEN_METHODS` and health watches.
            message_s: seconds for a call's first message.
        """
        self._access = access
        self._message_s = message_s
        self._calls = _Room(max_calls, "calls")
        self._open_calls = _Room(MAX_OPEN_CALLS, "calls without a key")
        self._watches = _Room(MAX_WATCHES, "watches of health")

    @contextmanager
    def admitted(self, method: str, metadata: Any, peer: str) -> Iterator[None]:
        """Take the room of a call, and have what is inside run on behalf of its caller.

        Raises:
            UnauthenticatedError: a key is needed and this is none.
            OverloadedError: the caller has its share, or there is no room.
        """
        address = address_of_peer(peer)
        if method in OPEN_METHODS:
            caller, room = Caller(address), self._open_calls
        else:
            caller = self._access.authenticate(presented_key(metadata), address)
            room = self._watches if method == HEALTH_WATCH else self._calls
        with room.taken(caller.name), calling(caller):
            yield

    async def begun(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Yield a call's messages.

        Raises:
            InvalidRequestError: the first one does not come in time.
        """
        try:
            async with timeout(self._message_s):
                first = await anext(requests, None)
        except asyncio.TimeoutError as error:
            got = f"no whole message came within {self._message_s:g} s of the call's begin"
            raise InvalidRequestError(f"{got}; call when there is something to send") from error
        if first is not None:
            yield first
            async for request in requests:
                yield request


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
    """Return the key that came with a call, if one did."""
    given: dict[str, str] = {}
    for key, value in metadata:
        if isinstance(value, str):
            given.setdefault(key, value)  # the first counts, as over HTTP
    key = key_of(given.get("authorization", ""), given.get("xi-api-key", ""))
    return key.encode("utf-8", "surrogateescape") or None


def address_of_peer(peer: str) -> str:
    """Return the address in the name that `gateway.doors.grpc_front` gives a peer: `unix:/tmp/a/10.0.0.7:41234`."""
    return peer.rpartition("/")[2].rpartition(":")[0] or NOBODY
