"""Who may begin to speak where places are few: the order, fairness between callers, and when to come back."""

from __future__ import annotations

import math

import pytest

from gateway.errors import OverloadedError
from gateway.routing.places import LEAST_RETRY_S, MAX_RETRY_S, MIN_PLACES, Asker, Ends, Place, Places, PlaceTurn
from gateway.routing.settings import RoutingSettings
from tests.gateway.fakes import ManualClock

USUAL = 10


class World:
    """Places, their clock, and who got them."""

    def __init__(self, limit: float, ends: Ends | None = None, most: float = math.inf) -> None:
        self.clock = ManualClock()
        self.limit = limit
        settings = RoutingSettings(max_waiting=50)
        self.places = Places(settings, self.clock, lambda: self.limit, lambda: ends or Ends(), most=lambda: most)
        self.given: list[Place] = []

    def ask(self, caller: str = "", priority: int = USUAL, fingerprint: int = 0) -> Place | PlaceTurn:
        return self.places.ask(Asker(caller, priority, fingerprint), self.given.append)

    def fill(self, caller: str = "") -> list[Place]:
        taken: list[Place] = []
        while True:
            try:
                answer = self.ask(caller)
            except OverloadedError:
                return taken
            if isinstance(answer, PlaceTurn):
                self.places.leave(answer)
                return taken
            taken.append(answer)

    @property
    def callers(self) -> list[str]:
        return [place.caller for place in self.given]


def test_there_are_a_few_places_on_the_slowest_host() -> None:
    assert len(World(0.1).fill()) == MIN_PLACES


def test_a_place_that_comes_free_goes_to_the_most_urgent_and_then_to_the_first() -> None:
    world = World(4, most=4.0)
    taken = world.fill()
    world.ask("a"), world.ask("b"), world.ask("urgent", priority=1)
    for place in taken[:3]:
        world.places.give_back(place, is_whole=False)
    assert world.callers == ["urgent", "a", "b"]


def test_the_caller_with_the_fewest_places_comes_first() -> None:
    world = World(10, most=10.0)
    taken = world.fill("loud")
    for _ in range(5):
        world.ask("loud")
    world.ask("quiet")
    world.places.give_back(taken[0], is_whole=False)
    assert world.callers == ["quiet"]


def test_nobody_with_half_of_the_places_takes_the_last_quarter_while_others_call() -> None:
    world = World(20)
    assert len(world.fill("loud")) == 20
    world = World(20)
    world.ask("quiet")
    assert len(world.fill("loud")) == 14
    assert isinstance(world.ask("quiet"), Place)
    world.clock.seconds += 61.0
    assert len(world.fill("loud")) == 4


def test_who_has_hardly_any_place_finds_one_though_another_has_them_all() -> None:
    world = World(20)
    assert len(world.fill("loud")) == 20
    assert [isinstance(world.ask("quiet"), Place) for _ in range(3)] == [True, True, False]
    assert not isinstance(world.ask("third"), Place)


def test_no_more_streams_than_slots_are_under_way() -> None:
    world = World(20, most=21.0)
    world.fill("loud")
    assert [isinstance(world.ask("quiet"), Place) for _ in range(2)] == [True, False]


def test_where_nobody_has_many_places_there_are_none_beyond_the_limit() -> None:
    world = World(20)
    assert all(isinstance(world.ask(f"caller {number}"), Place) for number in range(20))
    assert not isinstance(world.ask("another"), Place)


def test_places_that_a_measurement_adds_are_given_at_once() -> None:
    world = World(4)
    world.fill()
    world.ask(), world.ask()
    world.limit = 6
    world.places.serve()
    assert len(world.given) == 2


def _busy_world() -> tuple[World, list[Place]]:
    """Ten places, all taken now, by streams of eight seconds that end one after the other."""
    world = World(10, Ends(stream_s=8.0, apart_s=0.8))
    before = [world.ask() for _ in range(10)]
    world.clock.seconds += 8.0
    for place in before:
        assert isinstance(place, Place)
        world.places.give_back(place, is_whole=True)
    places = [world.ask() for _ in range(10)]
    return world, [place for place in places if isinstance(place, Place)]


def _refused(world: World, fingerprint: int, caller: str = "") -> float:
    with pytest.raises(OverloadedError) as refusal:
        world.ask(caller, fingerprint=fingerprint)
    assert refusal.value.retry_after_s is not None
    return refusal.value.retry_after_s


def test_who_would_wait_too_long_is_refused_at_once_and_each_is_told_a_later_time() -> None:
    world, _ = _busy_world()
    told = [_refused(world, number) for number in range(3)]
    assert told == sorted(set(told)) and 8.0 < told[0] < told[-1] <= 12.0
    assert all(each == round(each) for each in told), "whole seconds, as every door can tell them"
    world.clock.seconds += 6.9
    assert isinstance(world.ask(fingerprint=9), PlaceTurn), "a place comes free before the first of them is back"


def test_a_place_is_kept_for_who_comes_when_it_was_told_and_nobody_else_takes_it() -> None:
    world, places = _busy_world()
    told_s = _refused(world, fingerprint=1)
    world.clock.seconds += told_s
    world.places.give_back(places[0], is_whole=True)
    _refused(world, fingerprint=2)
    assert isinstance(world.ask(fingerprint=1), Place)
    world.places.give_back(places[1], is_whole=True)
    assert isinstance(world.ask(fingerprint=1), Place), "its promise was kept, and is kept no more"


def test_who_comes_when_it_was_told_waits_its_time_before_those_who_were_told_nothing() -> None:
    world, places = _busy_world()
    told_s = _refused(world, fingerprint=1)
    world.clock.seconds += 6.9
    first = world.ask(fingerprint=2)
    world.clock.seconds += told_s - 6.9
    assert isinstance(first, PlaceTurn) and isinstance(world.ask(fingerprint=1), PlaceTurn)
    world.places.give_back(places[0], is_whole=True)
    world.places.leave(first)
    assert len(world.given) == 1 and not world.places.waiting


def test_who_comes_before_its_time_is_told_another_one() -> None:
    world, _ = _busy_world()
    told_s = _refused(world, fingerprint=1)
    world.clock.seconds += 1.0
    assert _refused(world, fingerprint=1) >= told_s - 1.0


def test_who_comes_again_too_early_is_promised_one_place_and_not_one_each_time() -> None:
    world, _ = _busy_world()
    for _ in range(5):
        _refused(world, fingerprint=1)
        world.clock.seconds += 1.0
    told_s = _refused(world, fingerprint=2)
    other, _ = _busy_world()
    _refused(other, fingerprint=1)
    other.clock.seconds += 5.0
    assert told_s == _refused(other, fingerprint=2)


def test_requests_of_one_text_at_once_are_each_promised_a_place() -> None:
    world, _ = _busy_world()
    told = [_refused(world, fingerprint=1) for _ in range(3)]
    assert told == sorted(set(told))


def test_when_the_first_do_not_come_back_the_rest_of_their_crowd_keeps_nobody_waiting() -> None:
    world, taken = _busy_world()
    last_s = max(_refused(world, number) for number in range(100))
    assert last_s > 100.0
    world.clock.seconds += 18.0
    for place in taken:
        world.places.give_back(place, is_whole=True)
    assert len(world.fill()) == 10
    told = [_refused(world, number) for number in range(200, 210)]
    assert told[0] < 20.0
    assert told == sorted(told) and told[-1] > told[0] + 5.0, "a new crowd is believed in"


def test_who_comes_in_time_though_its_crowd_was_given_up_goes_before_others_all_the_same() -> None:
    world, _ = _busy_world()
    told = [_refused(world, number) for number in range(30)]
    world.clock.seconds += told[-1]
    _refused(world, fingerprint=99)
    assert isinstance(world.ask(fingerprint=29), PlaceTurn)


def test_services_that_do_nothing_wait_for_nobody() -> None:
    world, taken = _busy_world()
    for number in range(40):
        _refused(world, number)
    world.clock.seconds += 8.0
    for place in taken:
        world.places.give_back(place, is_whole=True)
    world.limit = 4
    assert isinstance(world.ask(fingerprint=99), Place)
    _refused(world, fingerprint=100)


def test_where_nobody_comes_back_places_are_kept_for_nobody() -> None:
    world, places = _busy_world()
    last_s = max(_refused(world, number) for number in range(60))
    waited_s = 0.0
    for place in places:
        world.clock.seconds += 2.0
        waited_s += 2.0
        world.places.give_back(place, is_whole=True)
    assert waited_s < last_s
    assert isinstance(world.ask(fingerprint=100), Place)


def test_what_one_caller_was_promised_keeps_no_other_one_out() -> None:
    world, places = _busy_world()
    told_s = max(_refused(world, number) for number in range(20))
    world.clock.seconds += told_s / 2
    for place in places[:2]:
        world.places.give_back(place, is_whole=True)
    _refused(world, fingerprint=100)
    assert isinstance(world.ask("quiet", fingerprint=100), Place)


def test_a_caller_who_was_refused_often_does_not_have_others_come_back_later() -> None:
    world = World(8, Ends(stream_s=30.0, apart_s=1.0), most=8.0)
    world.fill("loud")

    def told(caller: str) -> float:
        with pytest.raises(OverloadedError) as refusal:
            world.ask(caller)
        assert refusal.value.retry_after_s is not None
        return refusal.value.retry_after_s

    loud = [told("loud") for _ in range(200)]
    assert max(loud) > 150.0
    first, *_, last = (told("quiet") for _ in range(10))
    assert first <= loud[1]
    assert 2.0 * 9 <= last - first <= 3.0 * 9, "each has every other turn"


def test_when_to_come_back_has_bounds_and_is_forgotten_when_nobody_came() -> None:
    world = World(10, Ends(stream_s=0.0, apart_s=4.0))
    taken = world.fill()
    told = []
    for _ in range(200):
        with pytest.raises(OverloadedError) as refusal:
            world.ask()
        told.append(refusal.value.retry_after_s)
    assert (min(told) >= LEAST_RETRY_S, max(told)) == (True, MAX_RETRY_S)
    world.clock.seconds += MAX_RETRY_S
    for place in taken:
        world.places.give_back(place, is_whole=False)
    assert len(world.fill()) == 10
    assert _refused(world, fingerprint=1) <= 10.0


def test_who_leaves_the_line_gets_no_place_and_all_places_come_back() -> None:
    world = World(4)
    taken = world.fill()
    turn = world.ask()
    assert isinstance(turn, PlaceTurn)
    world.places.leave(turn)
    world.places.leave(turn)
    for place in taken:
        world.places.give_back(place, is_whole=True)
    assert not world.given and len(world.fill()) == 4
