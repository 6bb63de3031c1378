"""Who may begin to speak: as many streams at once as both services can serve in time, shared fairly by callers. Pure.

    ask ──room?──► Place ─────────────────────────────────► give_back
      └─ none ──in time?──► PlaceTurn ──a place is free──► Place
                  └─ no ──► OverloadedError with when to try again

Among those who wait, the caller that has the fewest places comes first. While others call too, nobody takes the last
tenth of all places who has half of them already. Each refusal is told a later time than its caller's one before it, as
those who were refused before will come back too. Several callers come back in turns, whoever was refused more often.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from gateway.errors import OverloadedError
from gateway.routing.settings import RoutingSettings
from gateway.routing.slot_forecast import OpenStreams, SlotForecast, StreamDurations
from servicekit.clock import Clock

MIN_PLACES = 4
"""However slow the services are: a host that is slower than speech still serves a few."""
LEAST_RETRY_S = 1.0
"""The unit of HTTP's Retry-After."""
MAX_RETRY_S = 300.0
"""Nobody knows what will be later."""
_RESERVED_SHARE = 0.1
_MANY = 0.5
_CALLER_MEMORY_S = 60.0


@dataclass(frozen=True)
class Ends:
    """How fast streams end at services that work all the time; zeros where that is unknown."""

    stream_s: float = 0.0
    """From a stream's beginning to its end."""
    apart_s: float = 0.0
    """From one stream's end to the next one's."""


@dataclass(eq=False)
class Place:
    """A stream's right to be under way."""

    caller: str
    taken_s: float


@dataclass(eq=False)
class PlaceTurn:
    """A stream that waits for its place."""

    caller: str
    priority: int
    on_given: Callable[[Place], None]


class Places:
    """All places of one gateway."""

    def __init__(
        self,
        settings: RoutingSettings,
        clock: Clock,
        limit: Callable[[], float],
        ends: Callable[[], Ends],
        is_certain: Callable[[], bool] = lambda: True,
    ) -> None:
        """Begin with all places free.

        Args:
            settings: limits of waiting.
            clock: of everything here.
            limit: places that there are now, a fraction or inf included.
            ends: how fast streams end at the speed of now.
            is_certain: whether the limit is known; while it is only the least that is sure, a stream waits its time.
        """
        self.refused_total = 0
        """Streams that were told to come back later."""
        self._settings = settings
        self._clock = clock
        self._measured_limit = limit
        self._ends = ends
        self._is_certain = is_certain
        self._taken: dict[Place, None] = {}
        self._by_caller: Counter[str] = Counter()
        self._asked_s: OrderedDict[str, float] = OrderedDict()
        """When each caller asked last, the newest last."""
        self._waiting: list[PlaceTurn] = []
        self._promised_s: dict[str, float] = {}
        """When the last stream of each caller comes back that was refused; those in the past are forgotten."""
        self._durations = StreamDurations()
        self._forecast = SlotForecast(clock, self._durations)

    @property
    def limit(self) -> float:
        """Streams that may be under way at once."""
        return max(float(MIN_PLACES), self._measured_limit())

    @property
    def waiting(self) -> int:
        """Streams that wait for a place."""
        return len(self._waiting)

    def wait_s(self, patience_s: float | None) -> float:
        """Return how long a stream may wait; its caller may have less patience than we."""
        wait_s = self._settings.admission_wait_s
        return wait_s if patience_s is None else min(patience_s, wait_s)

    def ask(
        self, caller: str, priority: int, on_given: Callable[[Place], None], patience_s: float | None = None
    ) -> Place | PlaceTurn:
        """Ask for a place.

        Args:
            caller: who asks.
            priority: 1 (first) to 10.
            on_given: called with the place if there is none now; not before this has returned.
            patience_s: the caller's own bound of the wait, where that is shorter than `admission_wait_s`.

        Raises:
            OverloadedError: no place is expected to be free in time, or too many wait.
        """
        self._note_caller(caller)
        ahead = self._ahead_of(caller, priority)
        limit = self.limit
        if not self._taken:
            self._promised_s.clear()
        if not ahead and self._has_room_for(caller, limit):
            return self._take(caller)
        is_late = self._is_certain() and self._expected_s(ahead) > self.wait_s(patience_s)
        if is_late or len(self._waiting) >= self._settings.max_waiting:
            raise self.overloaded(caller, priority)
        turn = PlaceTurn(caller, priority, on_given)
        self._waiting.append(turn)
        return turn

    def leave(self, turn: PlaceTurn) -> None:
        """Wait no longer; harmless for one that has its place."""
        if turn in self._waiting:
            self._waiting.remove(turn)

    def give_back(self, place: Place, is_whole: bool) -> None:
        """Take a place back; how long a whole stream held it is learnt."""
        del self._taken[place]
        self._by_caller[place.caller] -= 1
        if not self._by_caller[place.caller]:
            del self._by_caller[place.caller]
        if is_whole:
            self._durations.add(self._clock.now() - place.taken_s)
        self.serve()

    def serve(self) -> None:
        """Give what is free to those who wait."""
        while (turn := self._next_turn()) is not None:
            self._waiting.remove(turn)
            turn.on_given(self._take(turn.caller))

    def overloaded(self, caller: str, priority: int) -> OverloadedError:
        """Make the refusal of a stream that finds no place in time."""
        self.refused_total += 1
        retry_s = self._promise_s(caller, self._ahead_of(caller, priority))
        got = f"{len(self._taken)} streams are under way, as many as can be served in time, and {self.waiting} wait"
        return OverloadedError(f"{got}; try again in {retry_s:.0f} s, or add replicas", retry_after_s=retry_s)

    def _take(self, caller: str) -> Place:
        place = Place(caller, self._clock.now())
        self._taken[place] = None
        self._by_caller[caller] += 1
        return place

    def _note_caller(self, caller: str) -> None:
        now_s = self._clock.now()
        self._asked_s[caller] = now_s
        self._asked_s.move_to_end(caller)
        while next(iter(self._asked_s.values())) < now_s - _CALLER_MEMORY_S:
            self._asked_s.popitem(last=False)

    def _has_room_for(self, caller: str, limit: float) -> bool:
        has_others = len(self._asked_s) > 1
        if has_others and self._by_caller[caller] >= _MANY * limit:
            limit -= max(1.0, _RESERVED_SHARE * limit)
        return len(self._taken) + 1 <= limit

    def _next_turn(self) -> PlaceTurn | None:
        limit = self.limit
        if not self._waiting or len(self._taken) + 1 > limit:
            return None
        callers = {turn.caller for turn in self._waiting}
        served = {caller for caller in callers if self._has_room_for(caller, limit)}
        # NOTE: `min` takes the first of equals, which has waited longest.
        return min(
            (turn for turn in self._waiting if turn.caller in served),
            key=lambda turn: (turn.priority, self._by_caller[turn.caller]),
            default=None,
        )

    def _ahead_of(self, caller: str, priority: int) -> int:
        """Count those whose turn would come before that of a newcomer."""
        if not self._waiting:
            return 0
        waiting = Counter(turn.caller for turn in self._waiting if turn.priority == priority)
        fair = self._by_caller[caller] + waiting[caller] + 1
        ahead = sum(
            number if name == caller else min(number, max(0, fair - self._by_caller[name]))
            for name, number in waiting.items()
        )
        return ahead + sum(turn.priority < priority for turn in self._waiting)

    def _expected_s(self, ahead: int) -> float:
        over = max(0, math.ceil(len(self._taken) + 1 - self.limit) - 1) if self._taken else 0
        by_age_s = self._forecast.nth_s(ahead + over, self._open) or 0.0
        ends, oldest = self._ends(), next(iter(self._taken), None)
        first_s = 0.0 if oldest is None else max(0.0, ends.stream_s - (self._clock.now() - oldest.taken_s))
        return max(by_age_s, first_s + (ahead + over + 1) * ends.apart_s)

    def _open(self) -> list[OpenStreams]:
        return [OpenStreams([place.taken_s for place in self._taken], others=0)]

    def _promise_s(self, caller: str, ahead: int) -> float:
        """Choose when a refused stream is to come back: behind its caller's own that were told so before it."""
        now_s = self._clock.now()
        self._promised_s = {name: at_s for name, at_s in self._promised_s.items() if at_s > now_s}
        apart_s = self._ends().apart_s or (self._durations.mean_s or 0.0) / self.limit
        apart_s *= len(self._promised_s.keys() | {caller})  # the others' come back in between
        behind_s = self._promised_s.get(caller, now_s) + apart_s - now_s
        retry_s = min(max(LEAST_RETRY_S, self._expected_s(ahead), behind_s), MAX_RETRY_S)
        self._promised_s[caller] = now_s + retry_s
        return retry_s
