"""Work over gRPC is stopped at once where the connection is refused: gRPC loses some cancellations there."""

from __future__ import annotations

import asyncio
import random
import socket
import sys
from collections.abc import Iterator

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from gateway.errors import Token2WavUnavailableError
from gateway.routing.discovery import Places
from gateway.routing.fleet import Fleet
from gateway.routing.replica import LoadReport, RoutingSettings
from gateway.routing.router import Router
from gateway.token2wav.triton_call import TritonCall
from servicekit import tasks
from servicekit.clock import SystemClock
from servicekit.timeouts import timeout
from token2wav_service.contract import Operation

BOUND_S = 60.0
"""Seconds against a test that hangs."""
ROUNDS, AT_ONCE = 20, 50
LONGEST_PAUSE_S = 0.03


@pytest.fixture
def refused() -> Iterator[str]:
    """Return an address where nobody listens, and nobody can."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


async def _none_is_left() -> None:
    while len(asyncio.all_tasks()) > 1:
        await asyncio.sleep(0.01)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="before Python 3.11 a task does not know that it was cancelled")
async def test_a_reader_that_is_cancelled_on_a_refused_call_ends_cancelled_and_leaves_no_task(refused: str) -> None:
    rng = random.Random(1)

    async def read_and_cancel() -> None:
        channel = grpc.aio.insecure_channel(refused)
        call = TritonCall(service_pb2_grpc.GRPCInferenceServiceStub(channel), refused)
        call.send(Operation.STATUS, "status", {})
        reader = asyncio.create_task(call.next_result())
        await asyncio.sleep(rng.uniform(0.0, LONGEST_PAUSE_S))
        was_done = reader.done()
        reader.cancel()
        await asyncio.wait([reader])
        call.close()
        await channel.close()
        assert was_done or reader.cancelled(), reader

    async with timeout(BOUND_S):
        for _ in range(ROUNDS):
            await asyncio.gather(*(read_and_cancel() for _ in range(AT_ONCE)))
        await _none_is_left()


class _LosesCancellations:
    """A client whose probe answers a cancellation with a failure, as gRPC's does before Python 3.11."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def probe(self) -> LoadReport:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            if random.random() < 0.9:
                raise Token2WavUnavailableError(f"{self._address} can't be reached") from None
            raise
        raise AssertionError

    async def close(self) -> None:
        """Nothing is open."""


async def test_the_watch_closes_though_its_probes_lose_cancellations(
    refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "AGAIN_S", 0.001)
    fleet = Fleet("token2wav", RoutingSettings(interval_s=0.001), SystemClock())
    router = Router(fleet, Places((refused,)), _LosesCancellations, SystemClock())
    router.start()
    await asyncio.sleep(0)
    async with timeout(BOUND_S):
        await router.close()
        await _none_is_left()
