"""Measures how fast one service makes speech for each stream, and how many streams it can serve at once. Pure.

    speed = seconds of speech made / seconds that streams waited for it          (all streams together)
    pace  = seconds of speech made / seconds in which any stream waited

As many streams as its pace get real time, were the service never to do more in a second than now. Services work in
batches, so a service is assumed to serve twice as many until it is seen at its limit. The limit and the number of
streams that it was seen to serve are remembered for a while. A slow service is at its limit only if most of the waiting
was urgent: one with time to spare does first what listeners need first, and lets the others wait.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from servicekit.clock import Clock

MIN_BUSY_S = 0.1
MIN_SPEECH_S = 2.0
"""Seconds of speech that one measurement needs, unless `MAX_BUSY_S` is over."""
MAX_BUSY_S = 3.0
GAPS = 4.0
"""Length of a measurement of the limit, in times the longest time without news, or `MAX_BUSY_S`. After a stall of this
process its news come at once: shorter measurements would look slow, then fast."""
_NEWEST_SHARE, _NEWEST_REPORTS_SHARE = 0.5, 0.8
"""Weight of the newest measurement in the mean; of what several processes saw, as that takes longer."""
_AT_ITS_LIMIT = 1.0
"""Times the least speed below which a service works all the time, so that its output is its limit."""
_NEAR_ITS_LIMIT = 1.1
"""Times the least speed below which a service will not serve more streams."""
_HOPED_FOR = 2.0
_SPARE_GROWTH = 1.25
"""Times as many streams as there are that a service may get, and one, while their listeners have enough."""
_FIRST_MEASUREMENTS, _FEW_STREAMS = 8, 4.0
"""Number of measurements, and most streams in them, that say nothing of a limit: the first streams of a service wait
for what it does only once."""
UNMEASURED_STREAMS = 64.0
"""Limit before the first measurement, which takes no longer than the first streams' first seconds of speech."""
_MEMORY_S = 60.0
"""Seconds of work in which a limit that was seen doubles and a number that was served halves, unless seen again."""
_IDLE_SHARE = 0.1
"""What a second without work counts: only something else on its machine makes an idle service faster or slower."""
_NEWEST_STREAMS_SHARE = 0.1

URGENT_LEAD_S = 1.0
"""Seconds of speech in a listener's hand below which waiting for more is urgent."""
_URGENT_SHARE = 0.5
"""Share of the waiting that is urgent from which on a slow service is at its limit."""
_SLOW_WAITS_S = 1.0
"""Seconds that each stream must have waited in the measurements that call a service slow. One that lets listeners with
enough wait serves many of them by turns: for moments little of what is waited for is made, then much."""
_MOST_WAIT = 0.5
"""Share of the streams that wait from which on a service works for all of them: what it makes is all that they get."""
_MANY_STREAMS = 32.0
"""Fewest streams that a service may serve by turns; fewer are served together, and the value above doesn't count."""
_REPORTS_S = 0.4
"""Least length of a measurement of what several processes see, who tell of it at moments of their own."""
_RAISING_S = 1.0
"""Seconds of work in the measurements that raise the limit: in a moment many chunks may come that were long made."""
_MOST_DOUBLINGS = 20.0


@dataclass
class _Sums:
    """What a service did in some time."""

    speech_s: float = 0.0
    waited_s: float = 0.0
    stream_waits_s: float = 0.0
    """Seconds waited, times the number of streams at the time."""
    busy_s: float = 0.0
    """Seconds in which any stream waited."""
    gap_s: float = 0.0
    """The longest time without news in which any stream waited."""
    spare_s: float = 0.0
    """Seconds of `waited_s` in which the listener had enough."""

    def add(self, more: _Sums) -> None:
        """Add what it did in some more time."""
        self.speech_s += more.speech_s
        self.waited_s += more.waited_s
        self.stream_waits_s += more.stream_waits_s
        self.busy_s += more.busy_s
        self.gap_s = max(self.gap_s, more.gap_s)
        self.spare_s += more.spare_s

    @property
    def speed(self) -> float:
        return self.speech_s / self.waited_s

    @property
    def pace(self) -> float:
        return self.speech_s / self.busy_s

    @property
    def speed_for_all(self) -> float:
        """Return the speed for each stream; where most wait, those that don't will wait in turn."""
        is_for_all = self.waited_s >= _MOST_WAIT * self.busy_s * self.streams
        return self.pace / self.streams if is_for_all else self.speed

    @property
    def is_urgent(self) -> bool:
        return self.spare_s <= (1.0 - _URGENT_SHARE) * self.waited_s

    @property
    def streams(self) -> float:
        return self.stream_waits_s / self.waited_s


@dataclass
class Work:
    """What one process saw a service do since it told of it last."""

    speech_s: float = 0.0
    waited_s: float = 0.0
    """Seconds that all streams waited, added up."""
    busy_s: float = 0.0
    """Seconds in which any stream waited."""
    gap_s: float = 0.0
    """The longest time without news in which any stream waited."""
    spare_s: float = 0.0
    """Seconds of `waited_s` in which the listeners had enough."""
    ended_s: list[float] = field(default_factory=list)
    """Seconds of speech of each stream that ended well."""

    def __bool__(self) -> bool:
        return bool(self.speech_s or self.waited_s or self.ended_s)


@dataclass(order=True)
class Wait:
    """One wait of a stream for the service."""

    spare_until_s: float
    """Time until which the listener has enough."""
    is_over: bool = field(default=False, compare=False)


class Listener:
    """Knows how much speech the listener of one stream has in hand: everybody plays from the first sound on."""

    def __init__(self, meter: SpeedMeter, clock: Clock) -> None:
        """Begin before the first sound."""
        self._meter = meter
        self._clock = clock
        self._first_s: float | None = None
        self._got_s = 0.0
        self._wait: Wait | None = None
        self._is_waiting = False

    def got(self, speech_s: float) -> None:
        """Note that so many seconds of speech have come."""
        if self._first_s is None:
            self._first_s = self._clock.now()
        self._got_s += speech_s
        if self._is_waiting:
            # It waits for a later chunk, and is in less of a hurry now.
            self.end_wait()
            self.begin_wait()

    def begin_wait(self) -> None:
        """Note that the stream waits for the service now."""
        now_s = self._clock.now()
        heard_until_s = now_s if self._first_s is None else self._first_s + self._got_s
        self._wait = self._meter.begin_wait(heard_until_s - URGENT_LEAD_S - now_s)
        self._is_waiting = True

    def end_wait(self) -> None:
        """Note that it waits no longer."""
        wait, self._wait = self._wait, None
        self._is_waiting = False
        self._meter.end_wait(wait)


class SpeedMeter:
    """Measures one service; told of everything when it happens."""

    def __init__(self, clock: Clock, least_speed: float) -> None:
        """Begin without a measurement.

        Args:
            clock: of the measurements.
            least_speed: times real time that every stream needs; 0: no speed is too low.
        """
        self.on_measured: Callable[[], None] = lambda: None
        """Called after each measurement."""
        self._clock = clock
        self._least_speed = least_speed
        self._streams = 0
        self._waiting = 0
        self._spare: list[Wait] = []
        """Waits of listeners that have enough, a heap; ended ones stay until their time."""
        self._waiting_at_ease = 0
        """Number of them that have not ended."""
        self._at_s = clock.now()
        self._new = _Sums()
        """Sums since the last measurement."""
        self._lately = _Sums()
        """Sums since they last counted as the service's limit."""
        self._longer = _Sums()
        """Sums since they last could raise that limit."""
        self._busy_elsewhere_s: dict[int, float] = {}
        """Process -> busy seconds since the last measurement; several may be busy at the same time."""
        self._began_s = self._at_s
        """Time of the last measurement, or from which on a process has worked since."""
        self._speed: float | None = None
        self._pace = self._streams_at_speed = 0.0
        self._measurements = 0
        self._is_urgent = True
        """Whether most of the waiting in the last measurement was urgent."""
        self._floor, self._ceiling = 0.0, math.inf
        self._floor_age_s = self._ceiling_age_s = 0.0
        self._worked_s = 0.0
        """Seconds in which any stream waited, over all measurements."""
        self._stream_speech_s: float | None = None

    @property
    def speed(self) -> float | None:
        """Times real time for each stream as measured last; None before the first measurement."""
        return self._speed

    @property
    def limit(self) -> float:
        """Streams at once that would get the least speed; inf if there is no such speed."""
        return min(self._hoped_for(), self._seen_limit())

    @property
    def is_certain(self) -> bool:
        """Whether the limit is what the service was seen at its limit with; else more may show in the next moment."""
        is_slow = self._speed is not None and self._speed < _NEAR_ITS_LIMIT * self._least_speed
        is_known = is_slow and self._is_urgent and self._tells_limit(self._streams_at_speed)
        return is_known or self._seen_limit() <= self._hoped_for()

    @property
    def proven(self) -> float:
        """Streams at once that are known to get the least speed, also if they were served one after the other."""
        if self._speed is None or not self._least_speed:
            return math.inf
        return max(min(self._pace / self._least_speed, self._seen_limit()), self._seen_served())

    @property
    def stream_speech_s(self) -> float | None:
        """Seconds of speech of a whole stream, in the mean of the newest; None before the first has ended."""
        return self._stream_speech_s

    def new_listener(self) -> Listener:
        """Return what knows of a new stream's listener."""
        return Listener(self, self._clock)

    def set_streams(self, streams: int) -> None:
        """Note how many streams use the service."""
        self._advance()
        self._streams = streams

    def begin_wait(self, spare_s: float = 0.0) -> Wait | None:
        """Note that a stream waits for the service now, whose listener has enough for `spare_s` seconds.

        Returns:
            What `end_wait` is told; None if the listener needs more at once.
        """
        self._advance()
        self._waiting += 1
        if spare_s <= 0:
            return None
        wait = Wait(self._at_s + spare_s)
        heapq.heappush(self._spare, wait)
        self._waiting_at_ease += 1
        return wait

    def end_wait(self, wait: Wait | None = None) -> None:
        """Note that a stream waits no longer; `wait` is what `begin_wait` returned."""
        self._stop_waiting(wait)
        if self._is_enough():
            self._measure()

    def made(self, speech_s: float) -> None:
        """Note seconds of speech that the service has made."""
        self._new.speech_s += speech_s

    def ended(self, speech_s: float) -> None:
        """Note that a stream has ended well, with so many seconds of speech."""
        before_s = speech_s if self._stream_speech_s is None else self._stream_speech_s
        self._stream_speech_s = before_s + _NEWEST_STREAMS_SHARE * (speech_s - before_s)

    def note(self, work: Work, process: int) -> None:
        """Take over what another process saw the service do, while as many streams as now used it."""
        self._new.speech_s += work.speech_s
        self._new.waited_s += work.waited_s
        self._new.stream_waits_s += work.waited_s * max(self._streams, 1)
        if not self._busy_elsewhere_s:
            self._began_s = max(self._began_s, self._clock.now() - work.busy_s)
        self._busy_elsewhere_s[process] = self._busy_elsewhere_s.get(process, 0.0) + work.busy_s
        passed_s = self._clock.now() - self._began_s
        self._new.busy_s = min(max(self._busy_elsewhere_s.values()), passed_s)
        self._new.gap_s = max(self._new.gap_s, work.gap_s)
        self._new.spare_s += work.spare_s
        for speech_s in work.ended_s:
            self.ended(speech_s)
        if passed_s >= _REPORTS_S and self._is_enough():
            self._measure(_NEWEST_REPORTS_SHARE)

    def _hoped_for(self) -> float:
        if not self._least_speed:
            return math.inf
        if self._speed is None:
            return UNMEASURED_STREAMS
        ratio = self._speed / self._least_speed
        hoped_for = self._pace / self._least_speed * min(max(1.0, ratio), _HOPED_FOR)
        if not self._is_urgent:
            hoped_for = max(hoped_for, self._streams_at_speed * _SPARE_GROWTH + 1.0)
        return max(hoped_for, self._seen_served())

    def _seen_limit(self) -> float:
        """Return the streams that the service could serve at its limit; the number grows with the time since."""
        return self._ceiling * self._grown_since(self._ceiling_age_s)

    def _seen_served(self) -> float:
        """Return the streams that the service was seen to serve; the number shrinks with the time since."""
        return self._floor / self._grown_since(self._floor_age_s)

    def _advance(self) -> None:
        now_s = self._clock.now()
        if self._waiting:
            gap_s = now_s - self._at_s
            waited_s = self._waiting * gap_s
            self._new.busy_s += gap_s
            self._new.gap_s = max(self._new.gap_s, gap_s)
            self._new.waited_s += waited_s
            self._new.stream_waits_s += waited_s * max(self._streams, 1)
        while self._spare and self._spare[0].spare_until_s <= now_s:
            wait = heapq.heappop(self._spare)
            if not wait.is_over:
                self._new.spare_s += max(0.0, wait.spare_until_s - self._at_s)
                self._waiting_at_ease -= 1
        self._new.spare_s += self._waiting_at_ease * (now_s - self._at_s)
        self._at_s = now_s

    def _stop_waiting(self, wait: Wait | None) -> None:
        self._advance()
        self._waiting -= 1
        if wait is not None and wait.spare_until_s > self._at_s:
            wait.is_over = True
            self._waiting_at_ease -= 1

    def _is_enough(self) -> bool:
        is_much = self._new.busy_s >= MIN_BUSY_S and self._new.speech_s >= MIN_SPEECH_S
        return is_much or self._new.busy_s >= MAX_BUSY_S

    def _measure(self, newest: float = _NEWEST_SHARE) -> None:
        if self._speed is None:
            self._speed, self._pace, self._streams_at_speed = self._new.speed, self._new.pace, self._new.streams
        self._speed += newest * (self._new.speed - self._speed)
        self._pace += newest * (self._new.pace - self._pace)
        self._streams_at_speed += newest * (self._new.streams - self._streams_at_speed)
        self._is_urgent = self._new.is_urgent
        self._measurements += 1
        self._worked_s += self._new.busy_s
        if self._least_speed:
            self._learn(self._new)
        self._new, self._began_s = _Sums(), self._clock.now()
        self._busy_elsewhere_s.clear()
        self.on_measured()

    def _learn(self, new: _Sums) -> None:
        """Note what the service did lately; the mean with what was long before would be the work of nobody."""
        self._lately.add(new)
        self._longer.add(new)
        if self._lately.busy_s < min(GAPS * self._lately.gap_s, MAX_BUSY_S):
            return
        is_slow = self._lately.speed_for_all < _AT_ITS_LIMIT * self._least_speed
        is_short = self._lately.waited_s < _SLOW_WAITS_S * self._lately.streams
        if is_slow and is_short and self._lately.streams >= _MANY_STREAMS:
            return
        # News may come late again soon, so the longest gap is only halved.
        lately, self._lately = self._lately, _Sums(gap_s=self._lately.gap_s / 2)
        is_at_its_limit = is_slow and lately.is_urgent and self._tells_limit(lately.streams)
        if not is_at_its_limit:
            if self._longer.busy_s < _RAISING_S:
                return
            lately, self._longer = self._longer, _Sums()
        streams, age_s = self._served(lately), self._age_s()
        if is_at_its_limit or streams > self._seen_served():
            self._floor, self._floor_age_s = streams, age_s
        if is_at_its_limit or streams > self._ceiling:
            self._ceiling, self._ceiling_age_s = streams, age_s

    def _tells_limit(self, streams: float) -> bool:
        return streams > _FEW_STREAMS or self._measurements > _FIRST_MEASUREMENTS

    def _served(self, sums: _Sums) -> float:
        """Return the streams that would have got the least speed."""
        return sums.pace / self._least_speed

    def _age_s(self) -> float:
        """Return how much this service has worked, and idled a little."""
        return self._worked_s + _IDLE_SHARE * self._clock.now()

    def _grown_since(self, age_s: float) -> float:
        return math.pow(2.0, min((self._age_s() - age_s) / _MEMORY_S, _MOST_DOUBLINGS))


class SpeedWitness(SpeedMeter):
    """Sees what a service does for one process of a gateway, and leaves it to another process to measure it."""

    def __init__(self, clock: Clock) -> None:
        """Begin with nothing seen; `clock` as `SpeedMeter`."""
        super().__init__(clock, least_speed=0.0)
        self._ended_s: list[float] = []

    def end_wait(self, wait: Wait | None = None) -> None:
        """See `SpeedMeter.end_wait`; nothing is measured here."""
        self._stop_waiting(wait)

    def ended(self, speech_s: float) -> None:
        """See `SpeedMeter.ended`."""
        self._ended_s.append(speech_s)

    def take_work(self) -> Work:
        """Return what was seen since the last call."""
        self._advance()
        new, self._new = self._new, _Sums()
        work = Work(new.speech_s, new.waited_s, new.busy_s, new.gap_s, new.spare_s, self._ended_s)
        self._ended_s = []
        return work
