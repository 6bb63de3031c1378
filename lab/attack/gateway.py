"""The gateway under attack: the product's own, which also notes how long its event loop stands still.

`python -m lab.attack.gateway NOTES ARGUMENTS` writes the longest stall to the file NOTES, in milliseconds; SIGUSR1
begins anew. CPU is the time that the loop's own thread used meanwhile: the rest went to other threads and processes.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import gateway.__main__ as program  # first, as it sets how many threads NumPy has
from gateway.lifecycle.shutdown import DrainingServer
from lab.attack.target import MAX_VOICES

_TICK_S = 0.002


async def note_stalls(notes: Path) -> None:
    """Write the longest stall whenever there is a longer one; runs until it is cancelled."""
    longest = {"wall_ms": 0.0, "cpu_ms": 0.0}

    def begin() -> None:
        longest.update(wall_ms=0.0, cpu_ms=0.0)
        notes.write_text(json.dumps(longest), "utf-8")

    begin()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, begin)
    while True:
        before_s, used_s = time.monotonic(), time.thread_time()
        await asyncio.sleep(_TICK_S)
        stalls = {
            "wall_ms": 1000 * (time.monotonic() - before_s - _TICK_S),
            "cpu_ms": 1000 * (time.thread_time() - used_s),
        }
        if any(value > longest[name] for name, value in stalls.items()):
            longest.update({name: max(value, longest[name]) for name, value in stalls.items()})
            notes.write_text(json.dumps(longest), "utf-8")


def main() -> int:
    """Serve until stopped."""
    from gateway.config import GatewayConfig, parse_args

    def with_few_voices() -> GatewayConfig:
        config = parse_args()
        limits = replace(config.voices.limits, max_voices=MAX_VOICES, creations_per_minute=1000)
        return replace(config, voices=replace(config.voices, limits=limits))

    program.parse_args = with_few_voices  # type: ignore[attr-defined]
    notes, startup = Path(sys.argv[1]), DrainingServer.startup

    async def watched(server: DrainingServer, sockets: list[object] | None = None) -> None:
        await startup(server, sockets)
        server.noting = asyncio.create_task(note_stalls(notes))  # type: ignore[attr-defined]

    DrainingServer.startup = watched  # type: ignore[method-assign, assignment]
    sys.argv = ["gateway", *sys.argv[2:]]
    return program.main()


if __name__ == "__main__":
    from servicekit.process import run_and_leave

    run_and_leave(main)
