"""When a replica is ejected, and when it is let back in."""

from __future__ import annotations

from gateway.routing.replica import Replica, ReplicaState, RoutingSettings
from tests.virtual_time import ManualClock

SETTINGS = RoutingSettings(failures_to_eject=3, interval_s=1.0, failover_s=3.0)


def _ready(clock: ManualClock) -> Replica:
    health = Replica("llm", "a", SETTINGS, clock)
    health.answered_probe()
    return health


def _fail(health: Replica, times: int) -> list[bool]:
    return [health.failed("no answer") for _ in range(times)]


def test_a_replica_is_unknown_until_a_probe_is_answered() -> None:
    health = Replica("llm", "a", SETTINGS, ManualClock())
    assert health.state is ReplicaState.UNKNOWN
    health.answered_probe()
    assert health.state is ReplicaState.READY


def test_only_failures_in_a_row_eject() -> None:
    health = _ready(ManualClock())
    assert _fail(health, 2) == [False, False]
    health.succeeded()
    assert _fail(health, 3) == [False, False, True]
    assert health.state is ReplicaState.EJECTED
    assert health.last_failure == "no answer"
    assert health.failures_total == 5


def test_the_first_probe_after_a_pause_that_doubles_up_to_its_bound_brings_a_replica_back() -> None:
    clock = ManualClock()
    health = _ready(clock)
    for pause_s in (1.0, 2.0, 3.0, 3.0):
        _fail(health, 3)
        clock.seconds += pause_s - 0.01
        health.answered_probe()
        assert health.state is ReplicaState.EJECTED
        clock.seconds += 0.01
        health.answered_probe()
        assert health.state is ReplicaState.READY
    health.succeeded()
    _fail(health, 3)
    clock.seconds += 1.0
    health.answered_probe()
    assert health.state is ReplicaState.READY


def test_probes_that_fail_while_ejected_prolong_nothing() -> None:
    clock = ManualClock()
    health = _ready(clock)
    assert _fail(health, 20).count(True) == 1
    clock.seconds = 1.0
    health.answered_probe()
    assert health.state is ReplicaState.READY


def test_a_replica_drains_when_it_says_so_or_is_no_longer_listed() -> None:
    health = _ready(ManualClock())
    health.answered_probe(is_draining=True)
    assert health.state is ReplicaState.DRAINING
    health.answered_probe()
    health.is_listed = False
    assert health.state is ReplicaState.DRAINING
    health.is_listed = True
    assert health.state is ReplicaState.READY
