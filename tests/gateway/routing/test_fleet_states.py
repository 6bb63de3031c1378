"""A fleet in any order of asking, ending, failing, refusing, draining and leaving: every slot is given back once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, precondition, rule

from gateway.errors import OverloadedError
from gateway.routing.admission_queue import QueueEntry
from gateway.routing.fleet import Fleet, SlotLease
from gateway.routing.health import Failure
from gateway.routing.replica import LoadReport
from gateway.routing.settings import RoutingSettings
from tests.gateway.fakes import ManualClock
from tests.workers import is_whole

ADDRESSES = ("a", "b")
SETTINGS = RoutingSettings(admission_wait_s=5.0, max_waiting=4, failures_to_eject=2)
address = st.sampled_from(ADDRESSES)


@dataclass(eq=False)
class Asker:
    """One stream, and what it has."""

    entry: QueueEntry[SlotLease] | None = None
    slot: SlotLease | None = None
    gifts: int = 0
    has_left: bool = False

    def take(self, slot: SlotLease) -> None:
        assert not self.has_left, "a slot came to who had left"
        self.gifts += 1
        self.slot = slot

    @property
    def waits(self) -> bool:
        return self.slot is None and not self.has_left


class FleetStates(RuleBasedStateMachine):
    """Counts agree after whatever happens, and nobody waits while there is room."""

    askers: Any = Bundle("askers")

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.fleet = Fleet("token2wav", SETTINGS, self.clock)
        self.fleet.set_replicas(dict.fromkeys(ADDRESSES, True))
        for each in ADDRESSES:
            self.fleet.reported(each, LoadReport(slots=1))
        self.all: list[Asker] = []

    @rule(target=askers, priority=st.integers(1, 10), is_begun=st.booleans(), avoid=st.none() | address)
    def ask(self, priority: int, is_begun: bool, avoid: str | None) -> Any:
        asker = Asker()
        waiting = self.fleet.waiting
        try:
            got = self.fleet.ask(priority, asker.take, frozenset({avoid} if avoid else ()), is_begun)
        except OverloadedError as refusal:
            assert not is_begun and (refusal.retry_after_s or 0) >= 1.0
            assert self.fleet.waiting == waiting
            return multiple()
        asker.slot, asker.entry = (got, None) if isinstance(got, SlotLease) else (None, got)
        self.all.append(asker)
        return asker

    @rule(asker=askers, is_whole=st.booleans())
    def end(self, asker: Asker, is_whole: bool) -> None:
        if asker.slot is not None:
            asker.slot.end(is_whole)

    @precondition(lambda self: self.fleet.waiting)
    @rule(number=st.integers(0, 9))
    def end_while_others_wait(self, number: int) -> None:
        held = [asker.slot for asker in self.all if asker.slot is not None and asker.slot.is_open]
        if held:
            held[number % len(held)].end()

    @rule(asker=askers, failure=st.sampled_from(Failure))
    def fail(self, asker: Asker, failure: Failure) -> None:
        if asker.slot is not None:
            asker.slot.fail("it failed", failure)

    @rule(asker=askers, how=st.sampled_from(("refuse", "leave_draining", "worked")))
    def tell(self, asker: Asker, how: str) -> None:
        if asker.slot is not None:
            getattr(asker.slot, how)()

    @rule(asker=askers)
    def give_up(self, asker: Asker) -> None:
        if asker.entry is not None and asker.waits:
            asker.has_left = True
        if asker.entry is not None:
            asker.entry.leave()

    @rule(address=address, slots=st.none() | st.integers(0, 2), others=st.integers(0, 1), is_draining=st.booleans())
    def report(self, address: str, slots: int | None, others: int, is_draining: bool) -> None:
        self.fleet.reported(address, LoadReport(is_draining, slots, others))

    @rule(address=address, failure=st.sampled_from(Failure))
    def probe_fails(self, address: str, failure: Failure) -> None:
        self.fleet.note_failure(address, "no answer", failure)

    @rule(found=st.dictionaries(address, st.booleans()))
    def discover(self, found: dict[str, bool]) -> None:
        self.fleet.set_replicas(found)

    @rule(seconds=st.sampled_from([0.1, 3.0, 100.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.seconds += seconds

    @invariant()
    def counts_agree(self) -> None:
        held = Counter(asker.slot.address for asker in self.all if asker.slot is not None and asker.slot.is_open)
        # What discovery dropped and found again begins anew; its old streams count at the old replica.
        told = {status.address: status.open_streams for status in self.fleet.replicas.snapshot()}
        assert all(told[each] <= held[each] for each in told)
        assert sum(map(len, self.fleet._leases.values())) == held.total()
        assert self.fleet.waiting == sum(asker.waits for asker in self.all)
        assert all(asker.gifts <= 1 for asker in self.all)

    @invariant()
    def nobody_waits_while_there_is_room(self) -> None:
        assert not self.fleet.waiting or self.fleet.replicas.choose_with_room() is None

    def teardown(self) -> None:
        while held := [asker.slot for asker in self.all if asker.slot is not None and asker.slot.is_open]:
            for slot in held:
                slot.end()
        for asker in self.all:
            self.give_up(asker)
        self.counts_agree()
        assert self.fleet.waiting == 0
        assert all(status.open_streams == 0 for status in self.fleet.replicas.snapshot())


TestFleetStates = FleetStates.TestCase
TestFleetStates.settings = settings(max_examples=2000 if is_whole() else 60, stateful_step_count=40, deadline=None)
