"""Which replica gets the next stream, and what becomes of streams of one that fails: decisions in virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from gateway.dialects.answers import LONGEST_RETRY_S
from gateway.routing.fleet import Fleet, SlotLease
from gateway.routing.replica import YIELDED_S, FailureKind, LoadReport, ReplicaState, RoutingSettings
from tests.virtual_time import ManualClock

SETTINGS = RoutingSettings()


class World:
    """A fleet and its clock."""

    def __init__(self, *addresses: str, slots: int | None = 2) -> None:
        self.clock = ManualClock()
        self.fleet = Fleet("token2wav", SETTINGS, self.clock)
        self.fleet.set_replicas(addresses)
        for address in addresses:
            self.fleet.reported(address, LoadReport(slots=slots))

    def slot(self, avoid: str = "") -> SlotLease:
        slot = self.fleet.lease(frozenset([avoid] if avoid else []))
        assert slot is not None
        return slot

    def fill(self) -> list[SlotLease]:
        slots = []
        while (slot := self.fleet.lease()) is not None:
            slots.append(slot)
        return slots


def test_gateways_do_not_all_begin_with_the_same_replica() -> None:
    assert {World("a", "b", "c").slot().address for _ in range(60)} == {"a", "b", "c"}


def test_a_fresh_replica_is_not_sent_everything_by_every_gateway() -> None:
    busy = [f"busy-{number}" for number in range(9)]
    world = World("fresh", *busy, slots=1000)
    for address in busy:
        world.fleet.reported(address, LoadReport(slots=1000, open_streams=100))
    placed = Counter(world.slot().address for _ in range(300))
    # Two of ten are looked at: every fifth stream finds the fresh one among them.
    assert 30 < placed["fresh"] < 90
    assert min(placed[address] for address in busy) > 0


def test_equal_replicas_get_equal_numbers_of_streams() -> None:
    world = World("a", "b", "c", slots=10)
    assert Counter(world.slot().address for _ in range(9)) == {"a": 3, "b": 3, "c": 3}


def test_streams_of_other_gateways_count() -> None:
    world = World("a", "b", slots=10)
    world.fleet.reported("a", LoadReport(slots=10, open_streams=4))
    assert [world.slot().address for _ in range(4)] == ["b"] * 4
    assert world.fleet.snapshot()[0].free_slots == 6


def test_own_streams_are_not_counted_twice() -> None:
    world = World("a", slots=4)
    slots = [world.slot() for _ in range(2)]
    world.fleet.reported("a", LoadReport(slots=4, open_streams=2))
    assert world.fleet.snapshot()[0].free_slots == 2
    slots[0].end()
    assert world.fleet.snapshot()[0].free_slots == 3


def test_a_replica_that_has_not_said_its_slots_is_asked() -> None:
    world = World("a", slots=None)
    assert [world.slot().address for _ in range(50)] == ["a"] * 50


@pytest.mark.parametrize(
    "leave", [lambda slot: slot.fail("no answer"), SlotLease.leave_draining], ids=["fail", "drain"]
)
def test_a_stream_that_leaves_a_replica_gives_its_slot_back(leave: Callable[[SlotLease], None]) -> None:
    world = World("a", slots=9)
    slots = [world.slot(), world.slot()]
    leave(slots[0])
    leave(slots[0])
    (status,) = world.fleet.snapshot()
    assert (status.open_streams, slots[0].is_open, slots[1].is_open) == (1, False, True)


def test_draining_and_ejected_replicas_get_no_new_streams() -> None:
    world = World("a", "b", "c", slots=9)
    world.fleet.reported("a", LoadReport(slots=9, is_draining=True))
    for _ in range(3):
        world.fleet.note_failure("b", "no answer")
    assert {world.slot().address for _ in range(6)} == {"c"}
    states = {status.address: status.state for status in world.fleet.snapshot()}
    assert states == {"a": ReplicaState.DRAINING, "b": ReplicaState.EJECTED, "c": ReplicaState.READY}


@pytest.mark.parametrize("others", [0, 1])
def test_the_streams_of_an_ejected_replica_are_told_if_there_is_another_one(others: int) -> None:
    world = World("a")
    told = []
    for name in ("one", "two"):
        world.slot().on_ejected = lambda name=name: told.append(name)
    if others:
        world.fleet.set_replicas(["a", "b"])
        world.fleet.reported("b", LoadReport(slots=2))
    for _ in range(3):
        world.fleet.note_failure("a", "no answer")
    assert world.fleet.state_of("a") is ReplicaState.EJECTED
    assert sorted(told) == (["one", "two"] if others else [])


def test_a_replica_that_is_slow_while_it_works_for_others_is_not_ejected() -> None:
    world = World("a")
    slot = world.slot()
    for _ in range(10):
        slot.replica.succeeded()
        world.clock.seconds += 3.0
        world.fleet.note_failure("a", "no answer in time", FailureKind.SLOW)
    assert world.fleet.state_of("a") is ReplicaState.READY
    world.clock.seconds += 4.0
    for _ in range(3):
        world.fleet.note_failure("a", "no answer in time", FailureKind.SLOW)
    assert world.fleet.state_of("a") is ReplicaState.EJECTED


def test_a_replica_with_long_steps_may_take_a_few_of_them() -> None:
    world = World("a")
    slot = world.slot()
    world.fleet.reported("a", LoadReport(slots=2, step_s=10.0, steps=1))
    slot.replica.succeeded()
    world.clock.seconds += 25.0
    for _ in range(3):
        world.fleet.note_failure("a", "no answer in time", FailureKind.SLOW)
    assert world.fleet.state_of("a") is ReplicaState.READY


@pytest.mark.parametrize(("failure", "is_ejected"), [(FailureKind.SLOW, False), (FailureKind.WRONG, True)])
def test_what_seems_slow_while_our_own_loop_stands_still_does_not_count(failure: FailureKind, is_ejected: bool) -> None:
    fleet = Fleet("token2wav", SETTINGS, ManualClock(), stood_still_within=lambda window_s: True)
    fleet.set_replicas(["a"])
    fleet.reported("a", LoadReport(slots=1))
    for _ in range(3):
        fleet.note_failure("a", "no answer", failure)
    assert (fleet.state_of("a") is ReplicaState.EJECTED) == is_ejected


def test_a_replica_that_discovery_drops_is_forgotten_with_its_last_stream() -> None:
    world = World("a", "b")
    slots = [world.slot(), world.slot()]
    world.fleet.set_replicas(["b"])
    assert sorted(world.fleet.addresses) == ["a", "b"]
    assert world.slot().address == "b"
    next(slot for slot in slots if slot.address == "a").end()
    assert world.fleet.addresses == ["b"]


def test_a_replica_to_avoid_comes_last() -> None:
    world = World("a", "b", slots=2)
    assert [world.slot(avoid="a").address for _ in range(3)] == ["b", "b", "a"]


def test_a_place_is_given_back_once() -> None:
    world = World("a", slots=2)
    slot = world.slot()
    slot.end()
    slot.end()
    slot.fail("late")
    status = world.fleet.snapshot()[0]
    assert (status.open_streams, status.free_slots, status.failures_total) == (0, 2, 0)


@pytest.mark.slow
def test_ten_thousand_streams_over_64_replicas_stay_balanced() -> None:
    world = World(*(f"replica-{number}" for number in range(64)), slots=200)
    given = Counter(world.slot().address for _ in range(10_000))
    assert max(given.values()) - min(given.values()) <= 1


def test_the_least_loaded_replica_by_its_own_limit_gets_the_next_stream() -> None:
    world = World("large", "small")
    world.fleet.reported("large", LoadReport(slots=20))
    world.fleet.reported("small", LoadReport(slots=10))
    assert Counter(world.slot().address for _ in range(30)) == {"large": 20, "small": 10}


def test_a_replica_that_refuses_gets_nothing_until_it_reports_or_a_stream_of_ours_ends_there() -> None:
    world = World("a", slots=10)
    first = world.slot()
    world.slot().refuse()
    assert world.fleet.lease() is None and world.fleet.lease(ignores_limit=True) is not None
    world.fleet.reported("a", LoadReport(slots=10, open_streams=2))
    assert world.fleet.lease() is not None
    world.slot().refuse()
    first.end()
    assert world.fleet.lease() is not None and world.fleet.lease() is None


def test_one_that_does_not_say_its_limit_gets_a_few_more_after_a_refusal_and_not_all_at_once() -> None:
    world = World("a", slots=None)
    held = [world.slot() for _ in range(8)]
    world.slot().refuse(3.0)
    assert world.fleet.next_end_s() == 3.0 and not world.fill()
    more = []
    for _ in range(3):
        world.fleet.reported("a", LoadReport())
        more.append(len(world.fill()))
    assert more == [1, 2, 2] and len(held) == 8


def test_a_slot_that_our_stream_leaves_is_left_to_gateways_with_fewer_streams_for_a_moment() -> None:
    world = World("a", slots=4)
    ours = [world.slot() for _ in range(3)]
    world.fleet.reported("a", LoadReport(slots=4, open_streams=4))
    ours[0].end()
    assert world.fleet.lease() is None
    world.clock.seconds += 0.75 * YIELDED_S + 1e-6
    assert world.fleet.lease() is not None
    alone = World("a", slots=1)
    alone.slot().end()
    assert alone.fleet.lease() is not None, "nobody else is there"


def test_a_refusal_names_a_moment_within_the_time_in_which_all_who_wait_find_slots() -> None:
    world = World("a")
    world.fleet.reported("a", LoadReport(slots=2, next_end_s=0.5))
    told = [world.fleet.overloaded(waiting=39).retry_after_s for _ in range(300)]
    assert 1.0 <= min(told) < 3.0 and 18.0 < max(told) <= 20.0
    assert max(world.fleet.overloaded(waiting=10_000).retry_after_s for _ in range(300)) <= LONGEST_RETRY_S
    assert world.fleet.overloaded().retry_after_s == 1.0
