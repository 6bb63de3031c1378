"""Routers' snapshots as metrics."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from gateway.telemetry.metrics import GatewayMetrics
from gateway.telemetry.replicas import watch_replicas
from tests.observability.reading import Reading


class State(str, Enum):
    READY = "ready"
    EJECTED = "ejected"


@dataclass(frozen=True)
class Replica:
    """A router's word on one replica."""

    service: str = "token2wav"
    address: str = "a:8001"
    state: State = State.READY
    open_streams: int = 3
    free_slots: int | None = 5
    step_s: float | None = 0.03
    failures_total: int = 2
    failovers_total: int = 1


def test_each_replica_is_told_apart_and_states_are_counted() -> None:
    metrics = GatewayMetrics()
    sick = replace(Replica(), address="b:8001", state=State.EJECTED)
    watch_replicas(metrics.registry, lambda: [Replica(), sick], lambda: [Replica("llm", "c:8000", free_slots=None)])
    got = Reading(metrics.registry)
    assert got.value("replicas", service="token2wav", state="ready") == 1
    assert got.value("replicas", service="token2wav", state="ejected") == 1
    assert got.value("replicas", service="llm", state="ejected") == 0
    assert got.value("replica_free_slots", service="token2wav", replica="a:8001") == 5
    assert got.value("replica_step_seconds", service="llm", replica="c:8000") == 0.03
    assert got.value("failovers_total", service="token2wav", replica="b:8001") == 1
    assert got.value("replica_failures_total", service="token2wav", replica="b:8001") == 2


def test_what_is_not_known_is_left_out_and_not_nought() -> None:
    metrics = GatewayMetrics()
    watch_replicas(metrics.registry, lambda: [Replica("llm", "c:8000", free_slots=None)])
    assert not Reading(metrics.registry).above_zero("replica_free_slots")


def test_each_scrape_asks_anew_and_the_gone_are_gone() -> None:
    metrics, there = GatewayMetrics(), [Replica()]
    watch_replicas(metrics.registry, lambda: there)
    assert Reading(metrics.registry).above_zero("replica_open_streams")
    there.clear()
    assert not Reading(metrics.registry).above_zero("replica_open_streams")
