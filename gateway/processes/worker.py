"""One process among several that serve one gateway's ports.

All that processes share is in the `CallerLedger`, which they write into themselves. They share no admission: the
services say how many streams they serve, and refuse those of any process beyond it. Once a second a worker tells its
parent over a pipe that it turns; the kernel tells it when its parent is gone.

Each process tells its metrics once a second, which are merged into those of one gateway. Counters, histograms and most
gauges add up. What every process sees of the same replicas does not.
"""

from __future__ import annotations

import asyncio
import logging
import operator
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.samples import Sample

from gateway.ledger import CallerLedger
from gateway.telemetry.exposition import BEAT_INTERVAL_S
from gateway.telemetry.metrics import PREFIX
from servicekit.tasks import running_meanwhile

logger = logging.getLogger(__name__)

LEAVE = signal.SIGUSR1
"""Has a worker close its doors at once; one that has none yet ends."""


@dataclass(eq=False)
class Worker:
    """This process's part in the gateway of several."""

    number: int
    """From 1."""
    pipe: int
    """Descriptor that leads to the parent."""
    ledger: CallerLedger
    _parent: int = field(default_factory=os.getppid, init=False)
    _registry: CollectorRegistry | None = field(default=None, init=False)
    _is_open: bool = field(default=False, init=False)

    def note_opened(self) -> None:
        """Tell that the doors are open; so does each further beat."""
        self._is_open = True
        self._beat()

    def gathered(self, registry: CollectorRegistry) -> CollectorRegistry:
        """Return a registry with the metrics of all processes; this one's own are in `registry`."""
        self._registry = registry
        return GatheredRegistry(lambda: merged({**self.ledger.metrics(), self.number: snapshot(registry)}))

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Tell the parent and the others until the context is left."""
        os.set_blocking(self.pipe, False)
        try:
            async with running_meanwhile(self._keep_beating()):
                yield
        finally:
            os.close(self.pipe)
            if os.getppid() != self._parent:
                self.ledger.remove()

    async def _keep_beating(self) -> None:
        while True:
            self._beat()
            try:
                if self._registry is not None:
                    self.ledger.tell_metrics(await asyncio.to_thread(snapshot, self._registry))
            except Exception:
                logger.exception("the other processes can't be told what this one does; tried again in a moment")
            await asyncio.sleep(BEAT_INTERVAL_S)

    def _beat(self) -> None:
        # NOTE: a parent that is gone, or stands still, is no fault of ours.
        with suppress(OSError):
            if self._is_open:
                os.write(self.pipe, b".")


Families = list[list[Any]]
"""Name, kind, text and samples of each metric; a sample is its name, labels and value, of types that JSON has."""
_LASTING = ("counter", "histogram")
_FIRST = f"{PREFIX}_replicas"
"""Metric taken from one process, which speaks for all."""
_LEAST = (f"{PREFIX}_replica_free_slots", "process_start_time_seconds")
_GREATEST = (f"{PREFIX}_replica_step_seconds",)
_CREATED = "_created"
"""Ending of the samples that tell when counting began."""


def snapshot(registry: CollectorRegistry) -> Families:
    """Return what a registry tells now; from any thread."""
    return [
        [each.name, each.type, each.documentation, [[one.name, one.labels, one.value] for one in each.samples]]
        for each in registry.collect()
    ]


def lasting(families: Families) -> Families:
    """Return the counters of a process that has ended, which must not be lost."""
    return [family for family in families if family[1] in _LASTING]


def merged(of_processes: Mapping[int, Families]) -> Families:
    """Return the metrics of several processes, by their numbers, as those of one; the least number speaks first."""
    found: dict[str, list[Any]] = {}
    for _, families in sorted(of_processes.items()):
        for name, kind, text, samples in families:
            if name == _FIRST and name in found:
                continue
            values = found.setdefault(name, [kind, text, {}])[2]
            for sample, labels, value in samples:
                key = (sample, tuple(sorted(labels.items())))
                values[key] = _one(name, sample)(values[key], value) if key in values else value
    return [
        [name, kind, text, [[sample, dict(labels), value] for (sample, labels), value in values.items()]]
        for name, (kind, text, values) in found.items()
    ]


def _one(name: str, sample: str) -> Callable[[float, float], float]:
    """Return what makes one value of two."""
    if name in _LEAST or sample.endswith(_CREATED):
        return min
    return max if name in _GREATEST else operator.add


class GatheredRegistry(CollectorRegistry):
    """Tells a scraper, in its thread, what a function returns."""

    def __init__(self, gather: Callable[[], Families]) -> None:
        super().__init__()
        self._gather = gather

    def collect(self) -> Iterator[Metric]:
        for name, kind, text, samples in self._gather():
            metric = Metric(name, text, kind)
            metric.samples = [Sample(sample, labels, value) for sample, labels, value in samples]
            yield metric
