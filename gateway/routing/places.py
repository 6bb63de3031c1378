"""Admits as many streams at once as both services can serve in time, shared fairly by callers. Pure.

    ask ──room?──► Place ─────────────────────────────────► give_back
      └─ none ──in time?──► PlaceTurn ──a place is free──► Place
                  └─ no ──► OverloadedError with when to try again

Of the streams that wait, those of the caller with the fewest places come first. While others call too, a caller that
has half of all places does not get the last quarter of them; if it has them already, others find a few more. Each
refusal names a later time than the same caller's refusal before it, as requests that were refused before come back too
(`promises`): their places are kept from the caller's new requests, but for one while no stream is under way. Several
callers get their times in turn, even if one of them was refused more often.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

from gateway.errors import OverloadedError
from gateway.routing.promises import Promises
from gateway.routing.settings import RoutingSettings
from gateway.routing.slot_forecast import OpenStreams, SlotForecast, StreamDurations
from servicekit.clock import Clock
from token2wav_service.contract import DEFAULT_PRIORITY

MIN_PLACES = 4
"""Fewest places: a host slower than speech still serves a few streams."""
LEAST_RETRY_S = 1.0
"""Shortest Retry-After in seconds, which is also its unit."""
MAX_RETRY_S = 300.0
"""Longest Retry-After in seconds; a forecast for later would be a guess."""
_RESERVED_SHARE = 0.25
"""Share of places kept for promises: larger than changes of the measured limit, or other callers would wait."""
_MANY = 0.5
_EXTRA_SHARE = 0.1
"""Share of the places that there are beyond the limit for callers with fewer than those, while another has many."""
_CALLER_MEMORY_S = 60.0
_LOOKS_AHEAD_S = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Seconds ahead: a stream is admitted if requests with a promised time find a place after each, until it ends."""
_ROUNDS = 4
"""Rounds that count the requests before a refused one; each adds those that come meanwhile."""
_PROMISED_SHARE = 0.75
"""Share of the places coming free that are promised; the rest is for new requests and for wrong forecasts."""


@dataclass(frozen=True)
class Ends:
    """How fast streams end at services that work all the time; zeros where that is unknown."""

    stream_s: float = 0.0
    """Seconds from a stream's beginning to its end."""
    apart_s: float = 0.0
    """Seconds from one stream's end to the next one's."""


@dataclass(eq=False)
class Place:
    """A stream's right to be under way."""

    caller: str
    taken_s: float


@dataclass(frozen=True)
class Asker:
    """A request for a place: its caller, priority and fingerprint."""

    caller: str = ""
    priority: int = DEFAULT_PRIORITY
    """Scheduling class, 1 (first) to 10."""
    fingerprint: int = 0
    """Hash by which a refused request is known when it comes again."""
    patience_s: float | None = None
    """Seconds that the caller waits at most, if less than `admission_wait_s`."""


@dataclass(eq=False)
class PlaceTurn:
    """A stream that waits for its place."""

    asker: Asker
    on_given: Callable[[Place], None]
    is_back: bool
    """Whether the request was refused before and came back at its promised time."""
    number: int
    """Number of the request in the order of asking."""

    @property
    def caller(self) -> str:
        """The caller that asks."""
        return self.asker.caller

    @property
    def kind(self) -> _Kind:
        """The key of the queue that it waits in; each queue is served in the order of asking."""
        return self.asker.priority, self.asker.caller, self.is_back


_Kind = tuple[int, str, bool]
"""Priority, caller, and whether the request was refused before."""


class Places:
    """All places of one gateway."""

    def __init__(
        self,
        settings: RoutingSettings,
        clock: Clock,
        limit: Callable[[], float],
        ends: Callable[[], Ends],
        is_certain: Callable[[], bool] = lambda: True,
        most: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """Begin with all places free.

        Args:
            settings: limits of waiting.
            clock: of everything here.
            limit: places that there are now, a fraction or inf included.
            ends: how fast streams end at the speed of now.
            is_certain: whether the limit is known; while it is only the least that is sure, a stream waits its time.
            most: streams that may be under way at all, at whatever speed.
        """
        self.refused_total = 0
        """Streams that were told to come back later."""
        self._settings = settings
        self._clock = clock
        self._measured_limit = limit
        self._ends = ends
        self._is_certain = is_certain
        self._most = most
        self._taken: dict[Place, None] = {}
        self._by_caller: Counter[str] = Counter()
        self._asked_s: OrderedDict[str, float] = OrderedDict()
        """Time when each caller asked last, the newest last."""
        self._waiting: dict[_Kind, dict[PlaceTurn, None]] = {}
        self._asked = 0
        self._promises = Promises(clock)
        self._durations = StreamDurations()
        self._forecast = SlotForecast(clock, self._durations)

    @property
    def limit(self) -> float:
        """Streams that may be under way at once."""
        return max(float(MIN_PLACES), self._measured_limit())

    @property
    def waiting(self) -> int:
        """Streams that wait for a place."""
        return sum(map(len, self._waiting.values()))

    def wait_s(self, patience_s: float | None) -> float:
        """Return how long a stream may wait; its caller may have less patience than we."""
        wait_s = self._settings.admission_wait_s
        return wait_s if patience_s is None else min(patience_s, wait_s)

    def ask(self, asker: Asker, on_given: Callable[[Place], None]) -> Place | PlaceTurn:
        """Ask for a place.

        Args:
            asker: who asks.
            on_given: called with the place if there is none now; not before this has returned.

        Raises:
            OverloadedError: no place is expected to be free in time, or too many wait.
        """
        self._note_caller(asker.caller)
        self._asked += 1
        turn = PlaceTurn(asker, on_given, self._promises.keep(asker.caller, asker.fingerprint), self._asked)
        ahead = self._ahead_of(turn)
        limit = self.limit
        if not ahead and self._has_room_for(turn, limit, self._extra(limit)):
            return self._take(asker.caller)
        wait_s = self.wait_s(asker.patience_s)
        # NOTE: a request that comes back when it was told to may wait: the forecast may be wrong by a little.
        may_be_late = self._is_certain() and not turn.is_back
        is_late = may_be_late and self._expected_s(ahead + round(self._coming_before(turn, wait_s))) > wait_s
        if is_late or self.waiting >= self._settings.max_waiting:
            raise self.overloaded(turn)
        self._waiting.setdefault(turn.kind, {})[turn] = None
        return turn

    def leave(self, turn: PlaceTurn) -> None:
        """Wait no longer; harmless for one that has its place."""
        same = self._waiting.get(turn.kind, {})
        same.pop(turn, None)
        if not same:
            self._waiting.pop(turn.kind, None)

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
        """Give free places to waiting streams."""
        while (turn := self._next_turn()) is not None:
            self.leave(turn)
            turn.on_given(self._take(turn.caller))

    def overloaded(self, turn: PlaceTurn) -> OverloadedError:
        """Make the refusal of a stream that finds no place in time."""
        self.refused_total += 1
        retry_s = self._promise_s(turn)
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

    def _has_room_for(self, turn: PlaceTurn, limit: float, extra: float) -> bool:
        caller = turn.caller
        if self._by_caller[caller] < extra:
            limit += extra
        if len(self._asked_s) > 1 and self._by_caller[caller] >= _MANY * limit:
            limit -= max(1.0, math.floor(_RESERVED_SHARE * limit))
        # NOTE: services that do nothing wait for nobody: who was told a time may not come, and finds the other places.
        is_idle = not self._taken
        return len(self._taken) + 1 <= limit and (turn.is_back or is_idle or self._keeps_promises(turn, limit))

    def _extra(self, limit: float) -> float:
        """Return the places beyond the limit: who has hardly any waits for no end of a caller's that has many."""
        if len(self._taken) + 1 <= limit or max(self._by_caller.values()) < _MANY * limit:
            return 0.0
        return min(max(1.0, math.floor(_EXTRA_SHARE * limit)), max(0.0, self._most() - limit))

    def _keeps_promises(self, turn: PlaceTurn, limit: float) -> bool:
        """Tell whether requests with a promised time find a place although this stream has one until its end."""
        for within_s in _LOOKS_AHEAD_S:
            if within_s and within_s >= (self._durations.mean_s or 0.0):
                return True
            coming = self._coming_before(turn, within_s)
            if coming and len(self._taken) + 1 + coming - self._forecast.ends_within(within_s, self._open) > limit:
                return False
        return True

    def _coming_before(self, turn: PlaceTurn, within_s: float) -> float:
        """Expect how many requests come back as promised within some time and go before this stream."""
        if turn.is_back:
            return 0.0
        places = self._by_caller[turn.caller]
        return self._promises.awaited(within_s, lambda caller: self._by_caller[caller] <= places)

    def _next_turn(self) -> PlaceTurn | None:
        limit = self.limit
        extra = self._extra(limit)
        if not self._waiting or len(self._taken) + 1 > limit + extra:
            return None
        firsts = (next(iter(same)) for same in self._waiting.values())
        return min(
            (turn for turn in firsts if self._has_room_for(turn, limit, extra)),
            key=lambda turn: (turn.asker.priority, self._by_caller[turn.caller], not turn.is_back, turn.number),
            default=None,
        )

    def _ahead_of(self, turn: PlaceTurn) -> int:
        """Count the streams that asked earlier and get a place earlier."""
        urgent, waiting = 0, Counter[str]()
        for (priority, caller, is_back), same in self._waiting.items():
            earlier = len(same)
            if turn.number < self._asked:
                earlier = sum(1 for _ in takewhile(lambda other: other.number < turn.number, same))
            if priority < turn.asker.priority:
                urgent += earlier
            elif priority == turn.asker.priority and (caller != turn.caller or is_back or not turn.is_back):
                waiting[caller] += earlier
        fair = self._by_caller[turn.caller] + waiting[turn.caller] + 1
        return urgent + sum(
            number if name == turn.caller else min(number, max(0, fair - self._by_caller[name]))
            for name, number in waiting.items()
        )

    def _expected_s(self, ahead: int) -> float:
        over = max(0, math.ceil(len(self._taken) + 1 - self.limit) - 1) if self._taken else 0
        by_age_s = self._forecast.nth_s(ahead + over, self._open) or 0.0
        ends, oldest = self._ends(), next(iter(self._taken), None)
        first_s = 0.0 if oldest is None else max(0.0, ends.stream_s - (self._clock.now() - oldest.taken_s))
        return max(by_age_s, first_s + (ahead + over + 1) * ends.apart_s)

    def _open(self) -> list[OpenStreams]:
        return [OpenStreams([place.taken_s for place in self._taken], others=0)]

    def _promise_s(self, turn: PlaceTurn) -> float:
        """Choose when a refused stream is to come back, in whole seconds.

        That is behind its caller's own that were told so before it; one that came in vain comes as soon as it can.
        """
        caller, ahead = turn.caller, self._ahead_of(turn)
        expected_s = self._expected_s(ahead)
        if turn.is_back:
            for _ in range(_ROUNDS):
                expected_s = self._expected_s(ahead + round(self._promises.awaited(expected_s, caller.__eq__)))
        else:
            apart_s = self._ends().apart_s or (self._durations.mean_s or 0.0) / self.limit
            expected_s += apart_s / _PROMISED_SHARE * self._promises.ahead_of(caller)
        retry_s = min(float(math.ceil(max(LEAST_RETRY_S, expected_s))), MAX_RETRY_S)
        if retry_s < MAX_RETRY_S:
            self._promises.make(caller, turn.asker.fingerprint, self._clock.now() + retry_s)
        return retry_s
