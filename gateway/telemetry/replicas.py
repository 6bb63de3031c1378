"""Metrics of the replicas behind the gateway, read from the routers when a scraper asks.

Labels are `service` and `replica`, its address; a replica that is gone is gone from the metrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.routing.replica import Replica, ReplicaState
from gateway.telemetry.metrics import PREFIX

_LABELS = ("service", "replica")


Snapshot = Callable[[], Sequence[Replica]]
"""Returns the replicas of one router; called from any thread, so it must only read."""


def watch_replicas(registry: CollectorRegistry, *snapshots: Snapshot) -> None:
    """Have the metrics of a gateway tell of its routers' replicas from now on; call it once."""
    registry.register(_Replicas(snapshots))


class _Replicas(Collector):
    def __init__(self, snapshots: Sequence[Snapshot]) -> None:
        self._snapshots = snapshots

    def describe(self) -> list[Metric]:
        return []  # NOTE: or the registry would ask the routers when it is set up

    def collect(self) -> Iterator[Metric]:
        replicas = [replica for snapshot in self._snapshots for replica in snapshot()]
        yield _states(replicas)
        yield _gauge("replica_open_streams", "Streams of this gateway there", replicas, lambda r: r.open_streams)
        yield _gauge("replica_free_slots", "Slots left there", replicas, lambda r: r.free_slots)
        text = "A recent step of token2wav there, or time between two tokens of an LLM"
        yield _gauge("replica_step_seconds", text, replicas, lambda r: r.step_s)
        yield _counter("replica_failures_total", "What it failed", replicas, lambda r: r.failures_total)
        yield _counter("failovers_total", "Streams that went on elsewhere", replicas, lambda r: r.failovers_total)


def _states(replicas: Sequence[Replica]) -> Metric:
    family = GaugeMetricFamily(f"{PREFIX}_replicas", "Replicas by what they are good for", labels=("service", "state"))
    counts = Counter((replica.service, replica.state) for replica in replicas)
    for service in sorted({replica.service for replica in replicas}):
        for state in ReplicaState:
            family.add_metric((service, state.value), counts[service, state])
    return family


def _gauge(name: str, text: str, replicas: Sequence[Replica], read: Callable[[Replica], float | None]) -> Metric:
    family = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=_LABELS)
    for replica in replicas:
        value = read(replica)
        if value is not None:
            family.add_metric((replica.service, replica.address), value)
    return family


def _counter(name: str, text: str, replicas: Sequence[Replica], read: Callable[[Replica], float]) -> Metric:
    family = CounterMetricFamily(f"{PREFIX}_{name}", text, labels=_LABELS)
    for replica in replicas:
        family.add_metric((replica.service, replica.address), read(replica))
    return family
