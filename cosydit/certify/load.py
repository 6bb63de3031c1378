"""Checks under load: some listeners for minutes, whose speech must come in time, with memory that stays flat."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from cosydit.certify.check import Check, Findings
from cosydit.certify.context import TEXTS, CheckContext
from cosydit.certify.end_to_end import DOORS, READY_TIMEOUT_S, STACK, RunningStack, running
from servicekit.tasks import running_meanwhile
from token2wav_service.contract import SAMPLE_RATE_HZ

AREA = "load"
PAGE = "operation.md"
SAMPLE_EVERY_S = 1.0
MOST_GROWTH_SHARE, MOST_GROWTH_MIB = 0.05, 64.0
"""Most growth of memory between the second quarter of the run and the last; more than both is a leak."""
_MIB = 1024 * 1024
_PCM16_BYTES = 2
_GPU_QUERY = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")


def checks() -> list[Check]:
    """Return the checks of this area."""
    return [Check(AREA, "steady", check_steady, PAGE, timeout_s=2 * READY_TIMEOUT_S + 3600, shares=STACK)]


@dataclass
class _Samples:
    ttfa_s: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    """Seconds of audio a second, for each answer."""
    failures: list[str] = field(default_factory=list)
    resident_mib: list[float] = field(default_factory=list)
    gpu_mib: list[float] = field(default_factory=list)


def check_steady(context: CheckContext, found: Findings) -> None:
    """Listeners ask again and again: nothing fails, and memory stays flat."""
    started = running(context)
    samples = asyncio.run(_under_load(context, started))
    found.tell("listeners", context.plan.load_streams)
    found.tell("seconds", context.plan.load_s, "s")
    found.at_least("answers", len(samples.ttfa_s), 1)
    found.equals("failed answers", len(samples.failures), 0)
    for failure in samples.failures[:3]:
        found.note(failure)
    if samples.ttfa_s:
        found.tell("time to first audio, median", 1000 * float(np.median(samples.ttfa_s)), "ms")
        found.tell("time to first audio, 95 %", 1000 * float(np.percentile(samples.ttfa_s, 95)), "ms")
        found.tell("slowest answer", min(samples.rates), "s of audio a second")
    found.series["time to first audio (ms)"] = [1000 * value for value in samples.ttfa_s]
    for name, values in (("memory of the services", samples.resident_mib), ("GPU memory", samples.gpu_mib)):
        if len(values) >= 4:
            growth, most = _growth(values)
            found.at_most(f"growth of {name}", growth, most, "MiB")
            found.series[f"{name} (MiB)"] = values


def _growth(values: list[float]) -> tuple[float, float]:
    """Return by how much the last quarter's median lies above the second one's, and how much it may."""
    quarter = len(values) // 4
    early, late = float(np.median(values[quarter : 2 * quarter])), float(np.median(values[-quarter:]))
    return late - early, max(MOST_GROWTH_MIB, MOST_GROWTH_SHARE * early)


async def _under_load(context: CheckContext, started: RunningStack) -> _Samples:
    samples = _Samples()
    ends_s = time.perf_counter() + context.plan.load_s
    async with running_meanwhile(_watch(started, samples)):
        await asyncio.gather(
            *(_listen(started, number, ends_s, samples) for number in range(context.plan.load_streams))
        )
    return samples


async def _listen(started: RunningStack, number: int, ends_s: float, samples: _Samples) -> None:
    """Ask one text after the other, each when the one before has ended."""
    spoken = number
    while time.perf_counter() < ends_s:
        began, first_s, heard = time.perf_counter(), None, 0
        try:
            async for pcm in DOORS["openai"](started, TEXTS[spoken % len(TEXTS)]):
                if pcm and first_s is None:
                    first_s = time.perf_counter() - began
                heard += len(pcm)
        except Exception as error:  # whatever a door's client raises is an answer that failed
            samples.failures.append(f"{type(error).__name__}: {error}"[:300])
            await asyncio.sleep(SAMPLE_EVERY_S)
            continue
        spoken += 1
        if first_s is None:
            samples.failures.append("an answer without audio")
            continue
        samples.ttfa_s.append(first_s)
        samples.rates.append(heard / _PCM16_BYTES / SAMPLE_RATE_HZ / (time.perf_counter() - began))


async def _watch(started: RunningStack, samples: _Samples) -> None:
    groups = {service.pid for service in started.stack.services}
    while True:
        samples.resident_mib.append(_resident_bytes(groups) / _MIB)
        if (used := await asyncio.to_thread(_gpu_mib)) is not None:
            samples.gpu_mib.append(used)
        await asyncio.sleep(SAMPLE_EVERY_S)


def _resident_bytes(groups: set[int]) -> int:
    """Return the resident memory of all processes of some groups; what they share counts for each."""
    pages = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError, ProcessLookupError):
                if os.getpgid(int(folder.name)) in groups:
                    pages += int((folder / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _gpu_mib() -> float | None:
    try:
        done = subprocess.run(_GPU_QUERY, capture_output=True, text=True, timeout=10, check=True)
        return sum(float(line) for line in done.stdout.split())
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
