"""Who gets the next stream, who waits, who is refused: decisions in virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from gateway.errors import OverloadedError
from gateway.routing.admission_queue import QueueEntry
from gateway.routing.fleet import Fleet, SlotLease
from gateway.routing.health import Failure, ReplicaState
from gateway.routing.replica import COST_MEMORY_S, LoadReport
from gateway.routing.settings import RoutingSettings
from gateway.routing.waiting import wait_for_slot
from tests.gateway.fakes import ManualClock

SETTINGS = RoutingSettings(admission_wait_s=2.0, max_waiting=3)
USUAL = 10


class World:
    """A fleet, its clock, and what waiting streams were given."""

    def __init__(self, *addresses: str, slots: int | None = 2) -> None:
        self.clock = ManualClock()
        self.fleet = Fleet("token2wav", SETTINGS, self.clock)
        self.fleet.set_replicas(dict.fromkeys(addresses, True))
        self.given_slots: list[tuple[str, SlotLease]] = []
        for address in addresses:
            self.fleet.reported(address, LoadReport(slots=slots))

    def ask(
        self, name: str = "", priority: int = USUAL, is_begun: bool = False, avoid: str = ""
    ) -> SlotLease | QueueEntry:
        avoided = frozenset([avoid] if avoid else [])
        return self.fleet.ask(priority, lambda slot: self.given_slots.append((name, slot)), avoided, is_begun)

    def slot(self, **options: object) -> SlotLease:
        slot = self.ask(**options)  # type: ignore[arg-type]
        assert isinstance(slot, SlotLease)
        return slot

    def fill(self) -> list[SlotLease]:
        slots = []
        while self.fleet.replicas.choose_with_room() is not None:
            slots.append(self.slot())
        return slots

    def measured(self, address: str, step_s: float, slots: int = 100) -> None:
        steps = int(self.clock.seconds * 1000) + 1
        self.fleet.reported(address, LoadReport(slots=slots, step_s=step_s, steps=steps))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.given_slots]


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


def test_a_gateway_that_is_alone_looks_at_every_replica() -> None:
    world = World("a", "b", "c", "d", slots=1000)
    for address in ("a", "b", "c"):
        world.measured(address, step_s=0.05, slots=1000)
    world.measured("d", step_s=0.01, slots=1000)
    assert [world.slot().address for _ in range(3)] == ["d"] * 3


def test_equal_replicas_get_equal_numbers_of_streams() -> None:
    world = World("a", "b", "c", slots=10)
    assert Counter(world.slot().address for _ in range(9)) == {"a": 3, "b": 3, "c": 3}


def test_a_replica_twice_as_fast_gets_twice_as_many_streams() -> None:
    world = World("fast", "slow")
    world.measured("fast", 0.05)
    world.measured("slow", 0.10)
    given = Counter(world.slot().address for _ in range(30))
    assert given == {"fast": 20, "slow": 10}


def test_a_measurement_made_under_load_does_not_keep_an_idle_replica_idle() -> None:
    world = World("busy", "idle")
    world.measured("idle", 1.0)
    world.measured("busy", 0.1)
    world.clock.seconds = COST_MEMORY_S + 1.0
    world.measured("busy", 0.1)
    assert Counter(world.slot().address for _ in range(4)) == {"busy": 2, "idle": 2}


def test_streams_of_other_gateways_count() -> None:
    world = World("a", "b", slots=10)
    world.fleet.reported("a", LoadReport(slots=10, open_streams=4))
    assert [world.slot().address for _ in range(4)] == ["b"] * 4
    assert world.fleet.replicas.snapshot()[0].free_slots == 6


def test_own_streams_are_not_counted_twice() -> None:
    world = World("a", slots=4)
    slots = [world.slot() for _ in range(2)]
    world.fleet.reported("a", LoadReport(slots=4, open_streams=2))
    assert world.fleet.replicas.snapshot()[0].free_slots == 2
    slots[0].end()
    assert world.fleet.replicas.snapshot()[0].free_slots == 3


def test_a_replica_that_has_not_said_its_slots_is_asked() -> None:
    world = World("a", slots=None)
    assert [world.slot().address for _ in range(50)] == ["a"] * 50


def test_a_replica_that_turns_out_to_be_full_gets_nothing_until_a_stream_there_ends() -> None:
    world = World("a", slots=None)
    first = world.slot()
    world.slot().refuse()
    assert isinstance(world.ask("later"), QueueEntry)
    first.end()
    assert world.names == ["later"]


@pytest.mark.parametrize(
    "leave", [lambda slot: slot.fail("no answer"), SlotLease.leave_draining], ids=["fail", "drain"]
)
def test_a_stream_that_leaves_a_replica_gives_its_slot_back(leave: Callable[[SlotLease], None]) -> None:
    world = World("a", slots=9)
    slots = [world.slot(), world.slot()]
    leave(slots[0])
    leave(slots[0])
    (status,) = world.fleet.replicas.snapshot()
    assert (status.open_streams, slots[0].is_open, slots[1].is_open) == (1, False, True)


def test_draining_and_ejected_replicas_get_no_new_streams() -> None:
    world = World("a", "b", "c", slots=9)
    world.fleet.reported("a", LoadReport(slots=9, is_draining=True))
    for _ in range(3):
        world.fleet.note_failure("b", "no answer")
    assert {world.slot().address for _ in range(6)} == {"c"}
    states = {status.address: status.state for status in world.fleet.replicas.snapshot()}
    assert states == {"a": ReplicaState.DRAINING, "b": ReplicaState.EJECTED, "c": ReplicaState.READY}


@pytest.mark.parametrize("others", [0, 1])
def test_the_streams_of_an_ejected_replica_are_told_if_there_is_another_one(others: int) -> None:
    world = World("a")
    told = []
    for name in ("one", "two"):
        world.slot().on_ejected = lambda name=name: told.append(name)
    if others:
        world.fleet.set_replicas({"a": True, "b": True})
        world.fleet.reported("b", LoadReport(slots=2))
    for _ in range(3):
        world.fleet.note_failure("a", "no answer")
    assert world.fleet.replicas.state_of("a") is ReplicaState.EJECTED
    assert sorted(told) == (["one", "two"] if others else [])


def test_a_replica_that_is_slow_while_it_works_for_others_is_not_ejected() -> None:
    world = World("a")
    slot = world.slot()
    for _ in range(10):
        slot.worked()
        world.clock.seconds += 3.0
        world.fleet.note_failure("a", "no answer in time", Failure.SLOW)
    assert world.fleet.replicas.state_of("a") is ReplicaState.READY
    world.clock.seconds += 3.0
    for _ in range(3):
        world.fleet.note_failure("a", "no answer in time", Failure.SLOW)
    assert world.fleet.replicas.state_of("a") is ReplicaState.EJECTED


def test_a_replica_with_long_steps_may_take_a_few_of_them() -> None:
    world = World("a")
    slot = world.slot()
    world.measured("a", step_s=10.0)
    slot.worked()
    world.clock.seconds += 25.0
    for _ in range(3):
        world.fleet.note_failure("a", "no answer in time", Failure.SLOW)
    assert world.fleet.replicas.state_of("a") is ReplicaState.READY


@pytest.mark.parametrize(("failure", "is_ejected"), [(Failure.SLOW, False), (Failure.WRONG, True)])
def test_what_seems_slow_while_our_own_loop_stands_still_does_not_count(failure: Failure, is_ejected: bool) -> None:
    fleet = Fleet("token2wav", SETTINGS, ManualClock(), stood_still_within=lambda window_s: True)
    fleet.set_replicas({"a": True})
    fleet.reported("a", LoadReport(slots=1))
    for _ in range(3):
        fleet.note_failure("a", "no answer", failure)
    assert (fleet.replicas.state_of("a") is ReplicaState.EJECTED) == is_ejected


def test_a_stream_waits_for_the_next_life_of_a_place_and_others_do_not_wait_for_it() -> None:
    world = World("a", slots=4)
    lost = world.slot()
    lost.fail("too slow", Failure.SLOW)
    waits = world.fleet.ask(
        USUAL, lambda slot: world.given_slots.append(("moved", slot)), is_begun=True, spared=frozenset((lost.life,))
    )
    assert isinstance(waits, QueueEntry)
    assert isinstance(world.ask("newcomer"), SlotLease)
    world.fleet.reported("a", LoadReport(slots=4, steps=7))
    assert not world.names
    world.fleet.reported("a", LoadReport(slots=4, steps=1))  # it was started again
    assert world.names == ["moved"]


def test_a_replica_that_discovery_drops_is_forgotten_with_its_last_stream() -> None:
    world = World("a", "b")
    slots = [world.slot(), world.slot()]
    world.fleet.set_replicas({"b": True})
    assert sorted(world.fleet.replicas.addresses) == ["a", "b"]
    assert world.slot().address == "b"
    next(slot for slot in slots if slot.address == "a").end()
    assert world.fleet.replicas.addresses == ["b"]


def test_who_waits_is_served_by_priority_and_then_in_order() -> None:
    world = World("a", slots=1)
    slot = world.slot()
    world.ask("usual 1"), world.ask("usual 2"), world.ask("urgent", priority=1)
    for _ in range(3):
        slot.end()
        slot = world.given_slots[-1][1]
    assert world.names == ["urgent", "usual 1", "usual 2"]


def test_a_stream_under_way_goes_before_all_others_and_is_never_refused() -> None:
    world = World("a", slots=1)
    slot = world.slot()
    for number in range(3):
        world.ask(f"new {number}", priority=1)
    with pytest.raises(OverloadedError):
        world.ask("one too many")
    world.ask("begun", is_begun=True)
    slot.end()
    assert world.names == ["begun"]


def test_who_leaves_the_line_is_not_served() -> None:
    world = World("a", slots=1)
    slot = world.slot()
    gone = world.ask("gone")
    world.ask("stays")
    assert isinstance(gone, QueueEntry)
    gone.leave()
    slot.end()
    assert world.names == ["stays"]
    assert world.fleet.waiting == 0


def test_nobody_overtakes_the_line() -> None:
    world = World("a", slots=1)
    world.slot().end()
    first = world.slot()
    world.ask("waits")
    first.end()
    assert isinstance(world.ask("newcomer"), QueueEntry)


def test_a_stream_is_refused_when_no_slot_will_be_free_in_time_and_told_when_one_will() -> None:
    world = World("a", slots=2)
    for slot in world.fill():
        world.clock.seconds += 4.0
        slot.end()
    # Streams last 4 and 8 s, 6 s in the mean.
    world.fill()
    with pytest.raises(OverloadedError) as refusal:
        world.ask()
    assert refusal.value.retry_after_s == pytest.approx(6.0)
    world.clock.seconds += 5.0
    # Those that last longer than 5 s last 8: 3 s to go.
    with pytest.raises(OverloadedError) as refusal:
        world.ask()
    assert refusal.value.retry_after_s == pytest.approx(3.0)
    world.clock.seconds += 1.5
    world.fleet.check(USUAL, patience_s=1.6)
    with pytest.raises(OverloadedError):
        world.fleet.check(USUAL, patience_s=1.4)
    assert isinstance(world.ask(), QueueEntry)


def test_each_place_in_the_line_waits_for_a_slot_of_its_own() -> None:
    world = World("a", slots=1)
    slot = world.slot()
    world.clock.seconds = 1.5
    slot.end()
    world.fill()
    assert isinstance(world.ask("first"), QueueEntry)
    with pytest.raises(OverloadedError) as refusal:
        world.ask("second")
    assert refusal.value.retry_after_s == pytest.approx(3.0)


def test_retry_after_is_a_second_at_least() -> None:
    world = World("a", slots=1)
    slot = world.slot()
    world.clock.seconds = 0.01
    slot.end()
    world.fill()
    for _ in range(SETTINGS.max_waiting):
        world.ask()
    with pytest.raises(OverloadedError) as refusal:
        world.ask()
    assert refusal.value.retry_after_s == 1.0


def test_the_check_refuses_what_ask_would_refuse_and_takes_nothing() -> None:
    world = World("a", slots=1)
    world.fleet.check(USUAL)
    slot = world.slot()
    world.clock.seconds = 60.0
    slot.end()
    world.fill()
    with pytest.raises(OverloadedError):
        world.fleet.check(USUAL)
    assert world.fleet.replicas.snapshot()[0].open_streams == 1
    assert world.fleet.refused_total == 1


def test_a_new_replica_serves_those_who_wait() -> None:
    world = World("a", slots=1)
    world.slot()
    world.ask("waits")
    world.fleet.set_replicas({"a": True, "b": True})
    world.fleet.reported("b", LoadReport(slots=1))
    assert [(name, slot.address) for name, slot in world.given_slots] == [("waits", "b")]


def test_a_replica_to_avoid_comes_last() -> None:
    world = World("a", "b", slots=2)
    assert [world.slot(avoid="a").address for _ in range(3)] == ["b", "b", "a"]


def test_a_place_is_given_back_once() -> None:
    world = World("a", slots=2)
    slot = world.slot()
    slot.end()
    slot.end()
    slot.fail("late")
    status = world.fleet.replicas.snapshot()[0]
    assert (status.open_streams, status.free_slots, status.failures_total) == (0, 2, 0)


@pytest.mark.slow
def test_ten_thousand_streams_over_64_replicas_stay_balanced() -> None:
    world = World(*(f"replica-{number}" for number in range(64)), slots=200)
    given = Counter(world.slot().address for _ in range(10_000))
    assert max(given.values()) - min(given.values()) <= 1


async def test_whoever_gives_up_waiting_is_told_what_those_who_ask_are_told() -> None:
    """One stream of 30 s a slot, 27 s of it gone by: the slot comes free in 3 s, also for one who has waited."""
    world = World("a", slots=1)
    first = world.slot()
    world.clock.seconds = 30.0
    first.end()
    world.slot()
    world.clock.seconds = 58.5
    with pytest.raises(OverloadedError) as refusal:
        await wait_for_slot(world.fleet, USUAL, 0.01)
    assert refusal.value.retry_after_s == pytest.approx(1.5)
    assert world.fleet.waiting == 0


@pytest.mark.slow
async def test_a_slot_that_comes_when_all_have_given_up_goes_through_every_hand() -> None:
    """Far more than Python would nest: each slot that nobody wants any more comes back and is given to the next."""
    clock = ManualClock()
    fleet = Fleet("token2wav", RoutingSettings(max_waiting=5000), clock)
    fleet.set_replicas({"a": True})
    fleet.reported("a", LoadReport(slots=1))
    slot = fleet.ask(USUAL, lambda slot: None)
    assert isinstance(slot, SlotLease)
    for _ in range(3000):
        fleet.ask(USUAL, lambda slot: slot.end(is_whole=False))
    slot.end()
    assert (fleet.waiting, fleet.replicas.snapshot()[0].open_streams) == (0, 0)
