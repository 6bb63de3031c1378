"""The gateway under attack: the product's own, which also notes how long its event loop stands still.

`python -m lab.attack.gateway NOTES ARGUMENTS` writes the longest stalls to the file NOTES, in milliseconds; SIGUSR1
begins anew. `wall_ms` is all of a stall; `own_ms` is without the time that the loop's thread was ready to run while
other processes, such as the attackers', had the cores (/proc/self/schedstat); `cpu_ms` is what the thread itself used.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import gateway.__main__ as program  # first, as it sets how many threads NumPy has
from gateway.lifecycle.shutdown import DrainingServer
from lab.attack.target import MAX_VOICES, STALLS

_TICK_S = 0.002


async def note_stalls(notes: Path) -> None:
    """Write the longest stalls whenever one is longer; runs until it is cancelled."""
    longest = dict.fromkeys(STALLS, 0.0)
    schedule = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)

    def times_s() -> list[float]:
        waited_ns = int(os.pread(schedule, 100, 0).split()[1])
        return [time.monotonic(), time.thread_time(), time.process_time(), waited_ns / 1e9]

    def begin() -> None:
        longest.update(dict.fromkeys(STALLS, 0.0))
        notes.write_text(json.dumps(longest), "utf-8")

    begin()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, begin)
    while True:
        before_s = times_s()
        await asyncio.sleep(_TICK_S)
        stood_s, used_s, used_by_all_s, waited_s = (now - then for now, then in zip(times_s(), before_s, strict=True))
        stood_s -= _TICK_S
        waited_for_others_s = max(waited_s - (used_by_all_s - used_s), 0.0)  # not for the gateway's own threads
        stalls = dict(zip(STALLS, (1e3 * stood_s, 1e3 * (stood_s - waited_for_others_s), 1e3 * used_s), strict=True))
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

    program.parse_args = with_few_voices  # type: ignore[attr-defined, assignment]
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
