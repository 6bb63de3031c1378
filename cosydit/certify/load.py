"""The check under load: some listeners for minutes, none of whose answers fails, with memory that stays flat."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

from cosydit.bench.doors import PIECES_OF_A_CHUNK_S, DoorOptions, HttpDoor, SpeechJob
from cosydit.bench.load import LoadGenerator, LoadPlan
from cosydit.bench.metrics import summarize
from cosydit.bench.types import LoadResult, RequestRecord, SpeechInput
from cosydit.certify.check import Findings
from cosydit.certify.context import TEXTS, VOICE, CheckContext
from cosydit.certify.doors import TIMEOUT_S
from cosydit.certify.end_to_end import RunningStack, running
from servicekit.clock import SystemClock
from servicekit.gpu_host import MIB, read_gpus
from servicekit.tasks import running_meanwhile

SAMPLE_EVERY_S = 1.0
ROUND = 4
"""Requests of each listener between two looks at the time."""
MOST_GROWTH_SHARE, MOST_GROWTH_MIB = 0.05, 64.0
"""Most growth of memory between the second quarter of the run and the last; more than both is a leak."""
_JOBS = [SpeechJob(SpeechInput(f"text-{number}", text), None) for number, text in enumerate(TEXTS)]


def check_steady(context: CheckContext, found: Findings) -> None:
    """Listeners ask again and again: nothing fails, and memory stays flat."""
    memory: dict[str, list[float]] = {"memory of the services": [], "GPU memory": []}
    result = asyncio.run(_under_load(context, running(context), memory))
    told = summarize(result)
    found.tell("listeners", context.plan.load_streams)
    found.tell("seconds", result.wall_s, "s")
    found.at_least("answers", told.requests - told.failures, 1)
    found.equals("failed answers", told.failures, 0)
    for record in [record for record in result.records if not record.is_ok][:3]:
        found.note(str(record.error)[:300])
    if told.ttfa_s is not None and told.rtf is not None:
        found.tell("time to first audio, median", 1000 * told.ttfa_s.percentiles[50], "ms")
        found.tell("time to first audio, 95 %", 1000 * told.ttfa_s.percentiles[95], "ms")
        found.tell("slowest answer", 1 / told.rtf.maximum, "s of audio a second")
    found.series["time to first audio (ms)"] = [1000 * record.ttfa_s for record in result.records if record.ttfa_s]
    for name, values in memory.items():
        if len(values) >= 4:
            growth, most = _growth(values)
            found.at_most(f"growth of {name}", growth, most, "MiB")
            found.series[f"{name} (MiB)"] = values


def _growth(values: list[float]) -> tuple[float, float]:
    """Return by how much the last quarter's median lies above the second one's, and how much it may."""
    quarter = len(values) // 4
    early, late = float(np.median(values[quarter : 2 * quarter])), float(np.median(values[-quarter:]))
    return late - early, max(MOST_GROWTH_MIB, MOST_GROWTH_SHARE * early)


async def _under_load(context: CheckContext, started: RunningStack, memory: dict[str, list[float]]) -> LoadResult:
    listeners = context.plan.load_streams
    door = HttpDoor(DoorOptions(started.options.gateway_url, TIMEOUT_S), VOICE)
    load = LoadGenerator(door, lambda job: job.utt, SystemClock(), PIECES_OF_A_CHUNK_S)
    records: list[RequestRecord] = []
    began_s = time.perf_counter()
    try:
        async with running_meanwhile(_watch({service.pid for service in started.stack.services}, memory)):
            while time.perf_counter() - began_s < context.plan.load_s:
                records += (await load.run(_JOBS, LoadPlan(listeners, ROUND * listeners), lambda _: None)).records
                if not records[-1].is_ok:
                    await asyncio.sleep(SAMPLE_EVERY_S)  # services that are gone refuse at once
    finally:
        await door.close()
    return LoadResult(records, [], time.perf_counter() - began_s)


async def _watch(groups: set[int], memory: dict[str, list[float]]) -> None:
    resident, gpu = memory.values()
    while True:
        resident.append(_resident_bytes(groups) / MIB)
        if gpus := await asyncio.to_thread(read_gpus):
            gpu.append(float(sum(each.memory_mib - each.free_mib for each in gpus)))
        await asyncio.sleep(SAMPLE_EVERY_S)


def _resident_bytes(groups: set[int]) -> int:
    """Return the resident memory of all processes of some groups; what they share counts for each."""
    pages = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                if os.getpgid(int(folder.name)) in groups:
                    pages += int((folder / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
