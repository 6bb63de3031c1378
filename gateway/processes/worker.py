"""One process among several that serve one gateway's ports.

A worker and its parent talk in single bytes over a socket pair: a worker says that it turns, that its doors are open
and that it is warm; the parent, that all are warm and that the doors must close. The end of the socket is the end of
the other. All else that processes share is in the `CallerLedger`, which they write into themselves. They share no
admission: the services say how many streams they serve, and refuse those of any process beyond it.

Each process tells its metrics once a second, which are merged into those of one gateway. Counters, histograms and most
gauges add up. What every process sees of the same replicas does not.
"""

from __future__ import annotations

import asyncio
import logging
import operator
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from gateway.ledger import CallerLedger
from gateway.telemetry.exposition import BEAT_INTERVAL_S
from gateway.telemetry.metrics import PREFIX
from servicekit.tasks import running_meanwhile

logger = logging.getLogger(__name__)

BEAT, OPENED, WARM, LEAVE = b"b", b"o", b"w", b"l"
"""What is said over the socket pair, a byte each."""


class Worker:
    """This process's part in the gateway of several."""

    def __init__(self, number: int, end: socket.socket, ledger: CallerLedger) -> None:
        """Say nothing yet.

        Args:
            number: of this process, from 1.
            end: of the socket pair that leads to the parent.
            ledger: the account of all processes.
        """
        self.number = number
        self.ledger = ledger
        self.on_leave: Callable[[], None] = lambda: None
        """Called when the parent wants the doors closed at once."""
        self.on_orphaned: Callable[[], None] = lambda: None
        """Called when the parent is gone."""
        self._end = end
        self._registry: CollectorRegistry | None = None
        self.is_warm = False
        """Whether all processes have been warm once; one that is started later is warm like the others."""
        self._is_orphaned = False

    def note_warm(self) -> None:
        """Tell that this process is warm."""
        self._say(WARM)

    def note_opened(self) -> None:
        """Tell that the doors are open."""
        self._say(OPENED)

    def gathered(self, registry: CollectorRegistry) -> CollectorRegistry:
        """Return a registry with the metrics of all processes; this one's own are in `registry`."""
        self._registry = registry
        return gathered_registry(lambda: merged({**self.ledger.metrics(), self.number: snapshot(registry)}))

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Talk to the parent and tell the others until the context is left."""
        self._end.setblocking(False)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._end, self._hear)
        try:
            async with running_meanwhile(self._keep_beating()):
                yield
        finally:
            loop.remove_reader(self._end)
            self._end.close()
            if self._is_orphaned:
                self.ledger.remove()

    async def _keep_beating(self) -> None:
        while True:
            self._say(BEAT)
            try:
                if self._registry is not None:
                    self.ledger.tell_metrics({self.number: await asyncio.to_thread(snapshot, self._registry)})
            except Exception:
                logger.exception("the other processes can't be told what this one does; tried again in a moment")
            await asyncio.sleep(BEAT_INTERVAL_S)

    def _say(self, what: bytes) -> None:
        # NOTE: a parent that is gone, or stands still, is no fault of ours.
        with suppress(OSError):
            self._end.send(what)

    def _hear(self) -> None:
        try:
            heard = self._end.recv(1024)
        except OSError:
            heard = b""
        if not heard:
            asyncio.get_running_loop().remove_reader(self._end)
            self._is_orphaned = True
            self.on_orphaned()
        self.is_warm = self.is_warm or WARM in heard
        if LEAVE in heard:
            self.on_leave()


Families = list[list[Any]]
"""Name, kind, text and samples of each metric; a sample is its name, labels and value, of types that JSON has."""
_LASTING = ("counter", "histogram")
_FIRST = (f"{PREFIX}_replicas",)
"""Metrics taken from one process, which speaks for all."""
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
    kinds: dict[str, list[str]] = {}
    values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for _, families in sorted(of_processes.items()):
        for name, kind, text, samples in families:
            kinds.setdefault(name, [kind, text])
            is_first = name not in values
            found = values.setdefault(name, {})
            if name in _FIRST and not is_first:
                continue
            for sample, labels, value in samples:
                key = (sample, tuple(sorted(labels.items())))
                found[key] = _one(name, sample)(found[key], value) if key in found else value
    return [
        [name, *kinds[name], [[sample, dict(labels), value] for (sample, labels), value in values[name].items()]]
        for name in kinds
    ]


def _one(name: str, sample: str) -> Callable[[float, float], float]:
    """Return what makes one value of two."""
    if name in _LEAST or sample.endswith(_CREATED):
        return min
    return max if name in _GREATEST else operator.add


class GatheredMetrics(Collector):
    """Returns the metrics of all processes to a scraper's thread."""

    def __init__(self, gather: Callable[[], Families]) -> None:
        """Keep the function that asks all processes."""
        self._gather = gather

    def describe(self) -> list[Metric]:
        """Say nothing, or a registry would ask when this is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        for name, kind, text, samples in self._gather():
            metric = Metric(name, text, kind)
            metric.samples = [Sample(sample, labels, value) for sample, labels, value in samples]
            yield metric


def gathered_registry(gather: Callable[[], Families]) -> CollectorRegistry:
    """Return a registry that tells what `gather` returns, which is called in the thread of a scraper."""
    registry = CollectorRegistry()
    registry.register(GatheredMetrics(gather))
    return registry
