"""Who may begin to speak where places are few: the order, fairness between callers, and when to come back."""

from __future__ import annotations

import pytest

from gateway.errors import OverloadedError
from gateway.routing.places import LEAST_RETRY_S, MAX_RETRY_S, MIN_PLACES, Ends, Place, Places, PlaceTurn
from gateway.routing.settings import RoutingSettings
from tests.gateway.fakes import ManualClock

USUAL = 10


class World:
    """Places, their clock, and who got them."""

    def __init__(self, limit: float, ends: Ends | None = None) -> None:
        self.clock = ManualClock()
        self.limit = limit
        self.places = Places(RoutingSettings(max_waiting=50), self.clock, lambda: self.limit, lambda: ends or Ends())
        self.given: list[Place] = []

    def ask(self, caller: str = "", priority: int = USUAL) -> Place | PlaceTurn:
        return self.places.ask(caller, priority, self.given.append)

    def fill(self, caller: str = "") -> list[Place]:
        taken = []
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
    world = World(4)
    taken = world.fill()
    world.ask("a"), world.ask("b"), world.ask("urgent", priority=1)
    for place in taken[:3]:
        world.places.give_back(place, is_whole=False)
    assert world.callers == ["urgent", "a", "b"]


def test_the_caller_with_the_fewest_places_comes_first() -> None:
    world = World(10)
    taken = world.fill("loud")
    for _ in range(5):
        world.ask("loud")
    world.ask("quiet")
    world.places.give_back(taken[0], is_whole=False)
    assert world.callers == ["quiet"]


def test_nobody_with_half_of_the_places_takes_the_last_tenth_while_others_call() -> None:
    world = World(20)
    assert len(world.fill("loud")) == 20
    world = World(20)
    world.ask("quiet")
    assert len(world.fill("loud")) == 17
    assert isinstance(world.ask("quiet"), Place)
    world.clock.seconds += 61.0
    assert len(world.fill("loud")) == 1


def test_places_that_a_measurement_adds_are_given_at_once() -> None:
    world = World(4)
    world.fill()
    world.ask(), world.ask()
    world.limit = 6
    world.places.serve()
    assert len(world.given) == 2


def test_who_would_wait_too_long_is_refused_at_once_and_each_is_told_a_later_time() -> None:
    world = World(10, Ends(stream_s=8.0, apart_s=0.8))
    before = world.fill()
    world.clock.seconds += 8.0
    for place in before:
        world.places.give_back(place, is_whole=True)
    world.fill()
    told = []
    for _ in range(3):
        with pytest.raises(OverloadedError) as refusal:
            world.ask()
        told.append(refusal.value.retry_after_s)
    assert told == sorted(set(told)) and 8.0 < told[0] < told[-1] < 12.0
    world.clock.seconds += 7.5
    assert isinstance(world.ask(), PlaceTurn)


def test_a_caller_who_was_refused_often_does_not_have_others_come_back_later() -> None:
    world = World(8, Ends(stream_s=30.0, apart_s=1.0))
    world.fill("loud")

    def told(caller: str) -> float:
        with pytest.raises(OverloadedError) as refusal:
            world.ask(caller)
        assert refusal.value.retry_after_s is not None
        return refusal.value.retry_after_s

    loud = [told("loud") for _ in range(200)]
    assert max(loud) > 150.0
    first, second, third = (told("quiet") for _ in range(3))
    assert first <= loud[1]
    assert second - first == third - second == 2.0, "each has every other turn"


def test_when_to_come_back_has_bounds_and_is_forgotten_when_it_is_quiet() -> None:
    world = World(10, Ends(stream_s=0.0, apart_s=4.0))
    taken = world.fill()
    told = []
    for _ in range(200):
        with pytest.raises(OverloadedError) as refusal:
            world.ask()
        told.append(refusal.value.retry_after_s)
    assert (min(told) >= LEAST_RETRY_S, max(told)) == (True, MAX_RETRY_S)
    for place in taken:
        world.places.give_back(place, is_whole=False)
    world.fill()
    with pytest.raises(OverloadedError) as refusal:
        world.ask()
    assert refusal.value.retry_after_s < 10.0


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
