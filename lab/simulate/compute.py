"""What computes in virtual time: a GPU that two processes may share, and a process that does one thing at a time.

    alone      ████████          speed 1
    together   ▓▓▓▓▓▓▓▓▓▓▓▓      speed 1 / (1 + slowdown)

Work is measured in the seconds it takes alone; steps may vary by chance, the same way in every run of the same
simulation. Knows nothing of what is computed.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from random import Random
from typing import Protocol


class Compute(Protocol):
    """Where a service computes."""

    async def run(self, service: str, seconds: float, load: float) -> None:
        """Compute.

        Args:
            service: who; it runs one thing at a time.
            seconds: what it takes alone.
            load: 0..1, how much of the GPU it fills; what it costs the other.
        """
        ...


class OwnGPU:
    """A GPU of one service."""

    async def run(self, service: str, seconds: float, load: float) -> None:
        """Take the time it takes alone."""
        await asyncio.sleep(seconds)


@dataclass(frozen=True)
class Slowdown:
    """What a service loses while the other computes.

    It takes 1 + (fixed + by_load * (the other's load)) / (1 + relief * (its own load)) times longer; a job of no more
    than `light_load` takes 1 + light times longer.
    """

    fixed: float
    by_load: float
    relief: float = 0.0
    """Weight of a job's own load: a job that fills the GPU by itself loses less."""
    light_load: float = 0.0
    light: float = 0.0

    def factor(self, other: float, own: float) -> float:
        """Return how many times longer it takes beside such a load, being one itself."""
        if own <= self.light_load:
            return 1.0 + self.light
        return 1.0 + (self.fixed + self.by_load * other) / (1.0 + self.relief * own)


class SharedGPU:
    """A GPU of two services under MPS."""

    def __init__(self, slowdowns: dict[str, Slowdown], beside: dict[str, tuple[str, float]] | None = None) -> None:
        """Begin idle.

        Args:
            slowdowns: by service, what it loses to those of the other process.
            beside: by service, which one is of the same process, and how many times longer it takes beside that.
        """
        self._slowdowns, self._beside = slowdowns, beside or {}
        self._jobs: dict[str, _Job] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._settled_s = 0.0

    async def run(self, service: str, seconds: float, load: float) -> None:
        """Compute beside whatever the other service computes."""
        loop = asyncio.get_running_loop()
        self._settle(loop.time())
        job = self._jobs[service] = _Job(seconds, load, loop.create_future())
        self._plan(loop)
        try:
            await job.done
        finally:
            if self._jobs.get(service) is job:
                self._settle(loop.time())
                del self._jobs[service]
                self._plan(loop)

    def _settle(self, now_s: float) -> None:
        """Count the work done since the last change."""
        passed_s, self._settled_s = now_s - self._settled_s, now_s
        for service, job in self._jobs.items():
            job.left_s -= passed_s / self._factor(service)

    def _plan(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wake at the end of whatever ends first."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._jobs:
            ends = {service: job.left_s * self._factor(service) for service, job in self._jobs.items()}
            first = min(ends, key=lambda service: (ends[service], service))
            self._timer = loop.call_later(max(ends[first], 0.0), self._finish, loop, first)

    def _finish(self, loop: asyncio.AbstractEventLoop, service: str) -> None:
        self._timer = None
        self._settle(loop.time())
        job = self._jobs.pop(service)
        if not job.done.done():
            job.done.set_result(None)
        self._plan(loop)

    def _factor(self, service: str) -> float:
        sibling, times = self._beside.get(service, ("", 1.0))
        others = [job.load for name, job in self._jobs.items() if name not in (service, sibling)]
        load = min(sum(others), 1.0)
        factor = self._slowdowns[service].factor(load, self._jobs[service].load) if others else 1.0
        return factor * times if sibling in self._jobs else factor


@dataclass
class _Job:
    left_s: float
    """Seconds it would take alone from here on."""
    load: float
    done: asyncio.Future[None]


class SerialProcess:
    """One core's worth of work in virtual time."""

    def __init__(self) -> None:
        """Begin idle."""
        self._free_s = 0.0

    def reserve(self, from_s: float, seconds: float) -> float:
        """Queue so much work that can begin at `from_s`; returns when it is done."""
        self._free_s = max(from_s, self._free_s) + seconds
        return self._free_s

    async def use(self, seconds: float) -> None:
        """Queue so much work and wait until it is done."""
        now_s = asyncio.get_running_loop().time()
        if (wait_s := self.reserve(now_s, seconds) - now_s) > 0:
            await asyncio.sleep(wait_s)


class Jitter:
    """Factors around 1, their logarithms normally distributed; their mean is 1."""

    def __init__(self, spread: float, draw: Random) -> None:
        """Keep the parts.

        Args:
            spread: standard deviation of the logarithm; 0 is none.
            draw: where the factors come from.
        """
        self._spread = spread
        self._draw = draw

    def factor(self) -> float:
        """Draw the next one."""
        if not self._spread:
            return 1.0
        return math.exp(self._spread * self._draw.gauss(0.0, 1.0) - self._spread**2 / 2)
