"""How many streams at once a service is taken to serve, from what it was seen to do."""

from __future__ import annotations

import math

import pytest

from gateway.routing.speed import UNMEASURED_STREAMS, URGENT_LEAD_S, SpeedMeter, SpeedWitness, Work
from tests.gateway.fakes import ManualClock


class Service:
    """Serves some streams for a while, at a speed."""

    def __init__(self, least_speed: float = 1.0) -> None:
        self.clock = ManualClock()
        self.meter = SpeedMeter(self.clock, least_speed)
        self.measured = 0
        self.meter.on_measured = self._note

    def _note(self) -> None:
        self.measured += 1

    def serve(self, streams: int, speed: float, seconds: float = 4.0, spare_s: float = 0.0) -> None:
        self.meter.set_streams(streams)
        waits = [self.meter.begin_wait(spare_s) for _ in range(streams)]
        self.clock.seconds += seconds
        self.meter.made(streams * speed * seconds)
        for wait in waits:
            self.meter.end_wait(wait)
        self.meter.set_streams(0)

    def serve_until_known(self, streams: int, speed: float) -> None:
        for _ in range(8):
            self.serve(streams, speed)


def test_a_service_that_was_never_measured_gets_a_first_few() -> None:
    service = Service()
    assert (service.meter.limit, service.meter.speed) == (UNMEASURED_STREAMS, None)
    assert not service.meter.is_certain
    service.serve(1, speed=1.0, seconds=0.01)
    assert service.measured == 0


def test_a_service_at_its_limit_serves_as_many_as_get_the_least_speed() -> None:
    service = Service()
    service.serve_until_known(40, speed=0.25)
    assert service.meter.limit == pytest.approx(10.0, rel=0.02)
    service = Service(least_speed=0.5)
    service.serve_until_known(40, speed=0.25)
    assert service.meter.limit == pytest.approx(20.0, rel=0.02)


def test_a_service_faster_than_needed_is_taken_to_serve_twice_what_is_sure() -> None:
    service = Service()
    service.serve_until_known(2, speed=10.0)
    assert service.meter.proven == pytest.approx(20.0)
    assert service.meter.limit == pytest.approx(40.0)
    service.serve_until_known(40, speed=10.0)
    assert service.meter.limit == pytest.approx(800.0, rel=0.01)


def test_a_limit_that_was_seen_is_remembered_and_forgotten_slowly() -> None:
    service = Service()
    service.serve_until_known(40, speed=0.25)
    service.serve_until_known(1, speed=8.0)
    assert service.meter.limit < 20.0
    service.clock.seconds += 600.0
    assert service.meter.limit == pytest.approx(16.0, rel=0.2)


def test_a_limit_that_was_seen_holds_while_the_service_has_nothing_to_do() -> None:
    service = Service()
    service.serve_until_known(40, speed=0.25)
    service.serve_until_known(1, speed=20.0)
    before = service.meter.limit
    service.clock.seconds += 60.0
    assert service.meter.limit == pytest.approx(before, rel=0.1)
    service.serve_until_known(1, speed=20.0)
    assert service.meter.limit > 1.2 * before, "with work it is forgotten"


def test_what_was_served_once_is_served_again_after_a_quiet_time() -> None:
    service = Service()
    service.serve_until_known(100, speed=4.0)
    service.serve_until_known(1, speed=4.0)
    assert service.meter.limit > 200.0


def test_time_in_which_nobody_waits_does_not_count() -> None:
    service = Service()
    for _ in range(8):
        service.serve(4, speed=3.0)
        service.clock.seconds += 100.0
    assert service.meter.speed == pytest.approx(3.0)


def test_a_service_that_lets_those_wait_who_have_enough_is_not_at_its_limit() -> None:
    service = Service()
    for _ in range(8):
        service.serve(40, speed=0.9, seconds=4.0, spare_s=3.0)
    assert not service.meter.is_certain
    urgent = Service()
    for _ in range(8):
        urgent.serve(40, speed=0.9, seconds=4.0, spare_s=1.0)
    assert urgent.meter.is_certain and urgent.meter.limit == pytest.approx(36.0, rel=0.02)


def test_a_service_whose_listeners_have_enough_gets_a_few_more_streams_each_time() -> None:
    service = Service()
    service.serve_until_known(40, speed=0.9)
    for streams in (50, 60, 70, 80):
        for _ in range(8):
            service.serve(streams, speed=0.9, spare_s=3.0)
    service.clock.seconds += 120.0
    service.serve(80, speed=0.9, spare_s=3.0)
    assert service.meter.limit > 90.0


def test_the_first_streams_of_a_service_say_nothing_of_its_limit() -> None:
    service = Service()
    for _ in range(3):
        service.serve(4, speed=0.5)
    assert not service.meter.is_certain
    service.serve_until_known(1, speed=8.0)
    service.serve_until_known(20, speed=8.0)
    assert service.meter.limit > 100.0
    small = Service()
    for _ in range(12):
        small.serve(4, speed=0.5)
    assert small.meter.is_certain and small.meter.limit == pytest.approx(2.0, rel=0.02)


def test_what_a_listener_has_in_hand_makes_a_wait_less_urgent() -> None:
    clock = ManualClock()
    witness = SpeedWitness(clock)

    def spare_s(seconds: float) -> float:
        listener.begin_wait()
        clock.seconds += seconds
        listener.end_wait()
        return witness.take_work().spare_s

    listener = witness.new_listener()
    assert spare_s(2.0) == 0.0, "nothing was heard yet"
    listener.got(4.0)
    clock.seconds += 1.0
    assert spare_s(1.5) == pytest.approx(1.5)
    assert spare_s(2.0) == pytest.approx(4.0 - 2.5 - URGENT_LEAD_S)
    assert spare_s(2.0) == 0.0


def test_speech_that_comes_during_a_wait_makes_the_rest_of_it_less_urgent() -> None:
    clock = ManualClock()
    witness = SpeedWitness(clock)
    listener = witness.new_listener()

    # Chunks are asked for before earlier ones come, so that one wait goes on over several.
    listener.begin_wait()
    clock.seconds += 0.5
    assert witness.take_work().spare_s == 0.0
    listener.got(4.0)
    clock.seconds += 2.0
    assert witness.take_work().spare_s == pytest.approx(2.0)
    listener.end_wait()
    listener.got(1.0)
    clock.seconds += 1.0
    assert witness.take_work().waited_s == 0.0, "it waits no longer"


def test_without_a_least_speed_there_is_no_limit() -> None:
    service = Service(least_speed=0.0)
    service.serve_until_known(40, speed=0.01)
    assert service.meter.limit == math.inf


def test_the_last_of_many_streams_say_nothing_of_as_many_that_come() -> None:
    service = Service()
    for _ in range(40):
        service.serve(40, speed=0.5, seconds=0.2)
    assert service.meter.limit == pytest.approx(20.0, rel=0.02)
    for _ in range(10):
        service.meter.set_streams(15)
        service.meter.begin_wait()
        service.clock.seconds += 0.2
        service.meter.made(0.2 * 20.0)
        service.meter.end_wait()
    assert service.meter.limit < 30.0 and service.meter.proven < 30.0
    for _ in range(40):
        service.serve(40, speed=1.5, seconds=0.2)
    assert 55.0 < service.meter.limit < 90.0, "a service that grew is seen to"


def test_a_gateway_that_stood_still_takes_the_service_neither_for_slow_nor_for_fast() -> None:
    service = Service()
    service.serve_until_known(40, speed=0.5)
    assert service.meter.limit == pytest.approx(20.0, rel=0.05)
    limits = []
    for _ in range(12):
        # A second without news, then all of its speech, in pieces that come one behind the other.
        service.meter.set_streams(40)
        for _ in range(40):
            service.meter.begin_wait()
        service.clock.seconds += 1.0
        for _ in range(40):
            service.clock.seconds += 0.005
            service.meter.made(0.5)
            service.meter.end_wait()
            service.meter.begin_wait()
        for _ in range(40):
            service.meter.end_wait()
        service.meter.set_streams(0)
        limits.append(service.meter.limit)
    assert 10.0 <= min(limits) and max(limits) <= 30.0, limits


def test_a_service_that_serves_many_by_turns_is_not_slow_for_a_moment() -> None:
    service = Service()
    service.serve_until_known(100, speed=0.9)
    service.meter.set_streams(100)
    for _ in range(100):
        service.meter.begin_wait()
    limits = []
    for tick in range(100):
        # Twice as fast as needed, but most of it comes in every fifth tenth of a second.
        service.clock.seconds += 0.1
        service.meter.made(92.0 if tick % 5 == 4 else 2.0)
        service.meter.end_wait()
        service.meter.begin_wait()
        limits.append(service.meter.limit)
    assert min(limits) > 80.0, limits


def test_streams_that_do_not_wait_now_count_where_most_others_do() -> None:
    service = Service()
    for _ in range(8):
        service.meter.set_streams(100)
        for _ in range(70):
            service.meter.begin_wait()
        service.clock.seconds += 4.0
        service.meter.made(4.0 * 80.0)
        for _ in range(70):
            service.meter.end_wait()
    assert service.meter.limit == pytest.approx(80.0, rel=0.05), "80 s of speech a second are real time for 80"


def test_streams_that_wait_for_something_else_are_not_taken_to_be_served_as_fast() -> None:
    service = Service()
    for _ in range(8):
        # A hundred streams, of which ten wait: each gets ten times real time, and a hundred would get real time.
        service.meter.set_streams(100)
        for _ in range(10):
            service.meter.begin_wait()
        service.clock.seconds += 4.0
        service.meter.made(4.0 * 100.0)
        for _ in range(10):
            service.meter.end_wait()
    assert service.meter.proven == pytest.approx(100.0, rel=0.02)


def test_work_that_four_processes_see_at_the_same_time_took_that_time_once() -> None:
    clock = ManualClock()
    meter = SpeedMeter(clock, 1.0)
    meter.set_streams(80)
    for tick in range(400):
        clock.seconds += 0.025
        # Each tells every tenth of a second what it saw in it; all of them wait all the time.
        meter.note(Work(speech_s=0.1 * 20.0, waited_s=0.1 * 20.0, busy_s=0.1, gap_s=0.02), tick % 4)
    assert meter.speed == pytest.approx(1.0, rel=0.05)
    assert meter.proven == pytest.approx(80.0, rel=0.1)
