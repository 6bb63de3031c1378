"""A fleet in any order of leasing, ending, failing, refusing, draining and leaving: every slot is given back once."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from gateway.routing.fleet import Fleet, SlotLease
from gateway.routing.replica import FailureKind, LoadReport, RoutingSettings
from tests.virtual_time import ManualClock
from tests.workers import is_whole

ADDRESSES = ("a", "b")
SETTINGS = RoutingSettings(failures_to_eject=2)
address = st.sampled_from(ADDRESSES)


class FleetStates(RuleBasedStateMachine):
    """Counts agree after whatever happens, and room is told of when it comes."""

    slots: Any = Bundle("slots")

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.fleet = Fleet("token2wav", SETTINGS, self.clock, Random(0))
        self.fleet.on_room = self.note_room
        self.knows_of_room = True
        self.fleet.set_replicas(ADDRESSES)
        for each in ADDRESSES:
            self.fleet.reported(each, LoadReport(slots=1))
        self.all: list[SlotLease] = []

    def note_room(self) -> None:
        self.knows_of_room = any(each.free_slots != 0 for each in self.fleet.usable())

    @rule(target=slots, avoid=st.none() | address, ignores_limit=st.booleans())
    def lease(self, avoid: str | None, ignores_limit: bool) -> Any:
        slot = self.fleet.lease(frozenset({avoid} if avoid else ()), ignores_limit=ignores_limit)
        self.note_room()
        if slot is None:
            return multiple()
        self.all.append(slot)
        return slot

    @rule(slot=slots, is_whole=st.booleans())
    def end(self, slot: SlotLease, is_whole: bool) -> None:
        slot.end(is_whole)

    @rule(slot=slots, failure=st.sampled_from(FailureKind))
    def fail(self, slot: SlotLease, failure: FailureKind) -> None:
        slot.fail("it failed", failure)

    @rule(slot=slots, how=st.sampled_from(("refuse", "leave_draining")))
    def tell(self, slot: SlotLease, how: str) -> None:
        getattr(slot, how)()
        self.note_room()

    @rule(address=address, slots=st.none() | st.integers(0, 2), others=st.integers(0, 1), is_draining=st.booleans())
    def report(self, address: str, slots: int | None, others: int, is_draining: bool) -> None:
        self.fleet.reported(address, LoadReport(is_draining, slots, others))

    @rule(address=address, failure=st.sampled_from(FailureKind))
    def probe_fails(self, address: str, failure: FailureKind) -> None:
        self.fleet.note_failure(address, "no answer", failure)
        self.note_room()

    @rule(found=st.sets(address))
    def discover(self, found: set[str]) -> None:
        self.fleet.set_replicas(found)

    @rule(seconds=st.sampled_from([0.1, 3.0, 100.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.seconds += seconds
        self.note_room()

    @invariant()
    def counts_agree(self) -> None:
        held = Counter(slot.address for slot in self.all if slot.is_open)
        # What discovery dropped and found again begins anew; its old streams count at the old replica.
        told = {status.address: status.open_streams for status in self.fleet.snapshot()}
        assert all(0 <= told[each] <= held[each] for each in told)
        assert len(self.fleet._leases) == held.total()

    @invariant()
    def room_is_told_of(self) -> None:
        assert self.knows_of_room or not any(each.free_slots != 0 for each in self.fleet.usable())

    def teardown(self) -> None:
        for slot in self.all:
            slot.end()
        self.counts_agree()
        assert all(status.open_streams == 0 for status in self.fleet.snapshot())


TestFleetStates = FleetStates.TestCase
TestFleetStates.settings = settings(max_examples=2000 if is_whole() else 60, stateful_step_count=40, deadline=None)
