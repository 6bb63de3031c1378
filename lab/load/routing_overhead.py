"""What the gateway's routing costs: the time to place a stream, and what it adds to a stream. No network, no model.

`python -m lab.load.routing_overhead`
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np

from cosydit.bench.report import aligned_table, describe_environment, write_json
from gateway.chunking.chunker import TokenChunk
from gateway.core import AudioChunk, FloatArray, RegisteredVoice, Token2Wav
from gateway.routing.discovery import Places
from gateway.routing.fleet import TOKEN2WAV, Fleet
from gateway.routing.replica import LoadReport, RoutingSettings
from gateway.token2wav.replica import ReplicaStream, Settle
from gateway.token2wav.routed import RoutedToken2Wav
from servicekit.clock import SystemClock
from token2wav_service.contract import ServerStatus

STREAMS, PUSHES = 400, 20
SLOTS = 100_000
_US = 1e6


class InstantToken2Wav(ReplicaStream):
    """A replica that answers at once."""

    async def register_voice(self, audio: bytes | FloatArray) -> RegisteredVoice:
        return RegisteredVoice("voice", ())

    async def export_voice(self, voice_id: str) -> bytes:
        return b"file"

    async def import_voice(self, voice_file: bytes) -> RegisteredVoice:
        return RegisteredVoice("voice", ())

    @asynccontextmanager
    async def open_stream(
        self, voice_id: str, seed: int, priority: int = 10, caller_has_share: bool = False
    ) -> AsyncIterator[InstantToken2Wav]:
        yield self

    stream_id = "stream"

    def send(self, chunk: TokenChunk, settle: Settle) -> None:
        settle(AudioChunk(chunk.index, np.zeros(1, np.float32), chunk.is_last))

    async def status(self) -> ServerStatus:
        return ServerStatus(SLOTS, 0, 0, None, False)

    async def is_ready(self) -> bool:
        return True

    async def close(self) -> None:
        """Has nothing to close."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m lab.load.routing_overhead", description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON to write")
    args = parser.parse_args(argv)
    direct_s, routed_s = asyncio.run(_streams())
    added = {"stream_us": (routed_s - direct_s) / STREAMS * _US}
    placed = {count: _placement_s(count) * _US for count in (1, 3, 64)}
    rows = [("what", "µs"), (f"added to a stream of {PUSHES} pushes", f"{added['stream_us']:.0f}")]
    rows += [(f"placing one of {STREAMS} streams over {count} replicas", f"{us:.0f}") for count, us in placed.items()]
    print(aligned_table(rows), end="")
    if args.out is not None:
        figures = {**added, "placement_us": placed}
        write_json(args.out, {"environment": describe_environment(vars(args)), **figures})
    return 0


async def _streams() -> tuple[float, float]:
    clock, client = SystemClock(), InstantToken2Wav()
    fleet = Fleet(TOKEN2WAV, RoutingSettings(), clock)
    routed = RoutedToken2Wav(fleet, Places(("a:1",)), lambda _: client, clock)
    await routed.is_ready()
    voice = await routed.register_voice(b"")
    times = []
    for _ in range(3):
        times.append((await _time(client, voice.voice_id), await _time(routed, voice.voice_id)))
    await routed.close()
    return min(direct for direct, _ in times), min(through for _, through in times)


async def _time(token2wav: Token2Wav | InstantToken2Wav, voice_id: str) -> float:
    began_s = time.perf_counter()
    for seed in range(STREAMS):
        async with token2wav.open_stream(voice_id, seed) as stream:
            for index in range(PUSHES):
                await stream.push(TokenChunk(index, index, (1, 2, 3, 4), index == PUSHES - 1))
    return time.perf_counter() - began_s


def _placement_s(replicas: int) -> float:
    fleet = Fleet(TOKEN2WAV, RoutingSettings(), SystemClock())
    addresses = [f"replica-{number}:1" for number in range(replicas)]
    fleet.set_replicas(addresses)
    for address in addresses:
        fleet.reported(address, LoadReport(slots=SLOTS))
    began_s = time.perf_counter()
    for _ in range(STREAMS):
        assert fleet.lease() is not None
    return (time.perf_counter() - began_s) / STREAMS


if __name__ == "__main__":
    sys.exit(main())
