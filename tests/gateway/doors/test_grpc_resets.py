"""Calls that are reset at once take little memory and keep none, and a caller who left is no error."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import random
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from gateway.access.access import Access
from gateway.access.caller import CallerLimits
from gateway.access.grpc_access import GrpcAccess
from gateway.doors.grpc_calls import FREE_CALLS, PAUSE_S, CallInterceptor
from gateway.telemetry.telemetry import Telemetry
from gateway.voices.registry import NamedVoice
from servicekit.timeouts import timeout
from tests.gateway.doors.grpc_door import opened_grpc
from tests.gateway.doors.test_grpc import health_of
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, ManualClock
from tests.raw_clients import reset_rapidly

CLIENTS = 6
"""Clients that reset 1275 calls each; reading their messages would lose 740 KB."""
MOST_KEPT_BYTES, MOST_BYTES = 300_000, 64 * 2**20
"""Most that is in use after them and meanwhile."""
PATIENCE_S = 30.0
_COUNTERS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class MallocInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [(name, ctypes.c_size_t) for name in _COUNTERS]
    uordblks: int
    hblkhd: int


def bytes_in_use() -> int:
    """Return how much malloc has given out and not got back."""
    gc.collect()
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        pytest.skip("this C library does not tell what is in use")
    ask.restype = MallocInfo
    info: MallocInfo = ask()
    return info.uordblks + info.hblkhd


@pytest.mark.slow
async def test_calls_that_are_reset_at_once_take_little_memory_and_keep_none(voices: list[NamedVoice]) -> None:
    async with opened_grpc(FakeLLM([]), FakeToken2Wav(), voices) as door:
        port = int(door.address.rpartition(":")[2])
        await health_of(door, "")
        before = bytes_in_use()
        resetting = asyncio.gather(*(reset_rapidly(port, random.Random(1)) for _ in range(CLIENTS)))
        async with timeout(PATIENCE_S):  # until the last of them had its turn
            while (kept := bytes_in_use() - before) > MOST_KEPT_BYTES or not resetting.done():
                assert kept < MOST_BYTES
                await asyncio.sleep(0.1)


def made_interceptor() -> CallInterceptor:
    """Make one that lets anybody in."""
    clock = ManualClock()
    access = GrpcAccess(Access(None, CallerLimits(), clock), max_calls=10, message_s=PATIENCE_S)
    return CallInterceptor(Telemetry(clock), access, 1000)


async def test_calls_wait_only_where_many_come() -> None:
    interceptor, loop = made_interceptor(), asyncio.get_running_loop()
    waited = []

    async def go_on(_details: object) -> None:
        waited.append(loop.time() - began_s > PAUSE_S / 2)

    for _ in range(2 * FREE_CALLS):
        began_s = loop.time()
        await interceptor.intercept_service(go_on, None)
    assert sum(waited[:FREE_CALLS]) <= FREE_CALLS // 4 and all(waited[FREE_CALLS:])


async def test_a_caller_who_leaves_while_it_is_refused_is_no_error() -> None:
    async def refuse(_requests: object, _context: object) -> None:
        raise grpc.aio.InternalError("the status can't be sent")

    async def go_on(_details: object) -> Any:
        return grpc.stream_unary_rpc_method_handler(refuse)

    async def nothing() -> AsyncIterator[bytes]:
        yield b""

    interceptor = made_interceptor()
    handler = await interceptor.intercept_service(go_on, SimpleNamespace(method="/a/b", invocation_metadata=()))
    with pytest.raises(asyncio.CancelledError):  # gRPC logs any other with its traceback
        await handler.stream_unary(nothing(), SimpleNamespace(peer=lambda: ""))
