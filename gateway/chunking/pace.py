"""How fast a stream goes: the LLM's tokens, token2wav's chunks, and how long the listener's audio lasts.

    push ──── cost ────► audio                cost = fixed + per token, measured
         first audio ├────── audio so far ──────┤ runs dry
                                 now ├─ slack ──┤

`PaceMeter` measures one stream, `PaceBook` remembers all of them, and `Pace` is what a chunk policy gets to see. Knows
nothing of policies or services; time comes from the clock it is given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from servicekit.clock import Clock
from token2wav_service.contract import LOOKAHEAD_TOKENS, TOKEN_RATE_HZ

CAUTION = 1.25
"""Usual factor on the expected time of work that has not ended."""
HELD_BACK_S = 0.16
"""Audio in seconds that the vocoder holds back: the newest 8 frames (50 a second), for its joins."""
_BOOK_DECAY = 0.98
"""Factor on the weight of earlier chunks at each new one: about the newest 50 count."""
_HALF_LIFE_S = 2.0
"""Shortest time in which a measurement loses half of its weight: after a crowd, few chunks tell that it has gone."""
_HALF_LIFE_CHUNKS = 10.0
"""The same in mean costs of a chunk, for slow hosts, of which 2 s are too few chunks."""
_OUTLIER = 4.0
"""Most times the expected cost that one chunk counts, so that one stall does not spoil the estimate."""
_URGENT_HALF_LIFE_S = 0.5
"""Time in which an urgent chunk loses half of its weight: a crowd that has gone costs nobody anything."""
_URGENT_MEMORY_S = 2.0
_CROWD_DECAY = 0.9
"""Factor on the weight of earlier urgent chunks in a crowd as large, at each new one."""
_UNDER_WAY = 1
"""Chunks that token2wav has begun when a crowd's come."""
_SPREADS = 4.0
"""Margin of the estimate in mean relative excesses."""
_SLOPE_PRIOR_TOKENS2 = 25.0
"""Weight of the assumption about the fixed share of a cost, against the variance of chunk sizes seen."""
_OWN_CHUNKS = 3
"""Number of a stream's newest chunks, none of which may have cost more than the estimate."""
_RATE_PRIOR_TOKENS = 4.0
"""Weight of other streams' token rate against the tokens of this one."""
_RATE_WINDOW_S = 1.0
_RATE_LEARNT_TOKENS = 32
"""Tokens after which a stream's rate is told to the others: early, before a slow caller can hold the LLM back."""
_RATE_LEARNT_SHARE = 0.2
_CHOICE_HOLDS_S = 5.0
"""Time for which the length of a first chunk holds for other streams, as long as no crowd comes or goes."""


class ChunkCost(NamedTuple):
    """Seconds from pushing a chunk to its audio when nothing is queued before it."""

    fixed_s: float
    per_token_s: float

    def of_hop(self, hop_tokens: int) -> float:
        """Return the seconds for a hop and its look-ahead."""
        return self.fixed_s + self.per_token_s * (hop_tokens + LOOKAHEAD_TOKENS)

    def growing_share(self, tokens: float) -> float:
        """Return how much of the cost of so many tokens, look-ahead included, grows with them, 0 to 1."""
        growing_s = self.per_token_s * tokens
        return growing_s / (self.fixed_s + growing_s) if growing_s else 0.0

    def scaled(self, factor: float) -> ChunkCost:
        """Return a cost so many times as high."""
        return ChunkCost(self.fixed_s * factor, self.per_token_s * factor)


PRIOR_COST = ChunkCost(fixed_s=0.25, per_token_s=0.003)
"""Cost until a chunk was measured: slower than the original runtime's 165-230 ms for 18 tokens on a large GPU."""
PRIOR_TOKEN_RATE_HZ = 2.0 * TOKEN_RATE_HZ
"""Token rate until a stream was measured: twice as fast as speech."""


class Pace(NamedTuple):
    """A stream's speed as measured up to now; all seconds count from now."""

    token_rate_hz: float = PRIOR_TOKEN_RATE_HZ
    """Speech tokens that the LLM makes in a second."""
    burst_tokens: int = 1
    """Most tokens that the LLM's next message may have."""
    cost: ChunkCost = PRIOR_COST
    """Cautious estimate of a chunk's cost."""
    free_in_s: float = 0.0
    """Estimated seconds until token2wav has answered every chunk under way."""
    dry_in_s: float = float("inf")
    """Seconds until the listener has played all audio delivered and under way; inf before the first chunk."""
    hop_multiple: int = 1
    """Tokens that token2wav wants every hop behind the first to be a multiple of."""
    urgent_cost: ChunkCost | None = None
    """What chunks cost whose listeners had nothing left, lately or when as many were without a sound: token2wav makes
    them first, and `cost` includes that others wait for them. None: there were none, or this stream has begun."""
    is_beside: bool = False
    """Whether this process has other requests under way."""


@dataclass
class _FadingSums:
    """Sums over measured chunks, of which older ones fade: what a least-squares line through (tokens, cost) needs."""

    weight: float = 0.0
    tokens: float = 0.0
    cost_s: float = 0.0
    tokens_squared: float = 0.0
    tokens_by_cost: float = 0.0

    def add(self, tokens: int, cost_s: float, decay: float) -> None:
        """Count one more chunk; the weight of those before is multiplied by `decay`."""
        self.weight = self.weight * decay + 1
        self.tokens = self.tokens * decay + tokens
        self.cost_s = self.cost_s * decay + cost_s
        self.tokens_squared = self.tokens_squared * decay + tokens * tokens
        self.tokens_by_cost = self.tokens_by_cost * decay + tokens * cost_s

    def fit(self, like: ChunkCost | None = None) -> ChunkCost:
        """Return the line; where chunk sizes hardly differ, a share of the mean cost is taken to be fixed.

        Args:
            like: has that share; None: half.
        """
        mean_tokens, mean_cost_s = self.tokens / self.weight, self.cost_s / self.weight
        variance = max(self.tokens_squared / self.weight - mean_tokens * mean_tokens, 0.0)
        covariance = self.tokens_by_cost / self.weight - mean_tokens * mean_cost_s
        growing = 0.5 if like is None else like.growing_share(mean_tokens)
        prior_slope, prior_weight = growing * mean_cost_s / mean_tokens, _SLOPE_PRIOR_TOKENS2 / self.weight
        slope = (covariance + prior_weight * prior_slope) / (variance + prior_weight)
        slope = min(max(slope, 0.0), mean_cost_s / mean_tokens)  # NOTE: neither part of a cost is negative
        return ChunkCost(mean_cost_s - slope * mean_tokens, slope)


@dataclass
class _Learnt:
    """The newest chunks and token rates."""

    sums: _FadingSums = field(default_factory=_FadingSums)
    cost: ChunkCost = PRIOR_COST
    spread: float = 0.0
    cost_s: float = float("-inf")
    """When the latest cost was learnt."""
    token_rate_hz: float = PRIOR_TOKEN_RATE_HZ
    rate_s: float = float("-inf")
    """When the latest token rate was learnt."""

    @property
    def half_life_s(self) -> float:
        mean_s = self.sums.cost_s / self.sums.weight if self.sums.weight else 0.0
        return max(_HALF_LIFE_S, _HALF_LIFE_CHUNKS * mean_s)


class PaceBook:
    """What all streams of a process have measured: the prior of the next one.

    A stream alone and streams beside others are told apart: of a crowd that has gone nothing is left for a single one.
    """

    def __init__(self) -> None:
        """Begin with the constants' prior; the first chunk measured replaces it."""
        self.hop_multiple = 1
        """As the stream that was opened last had it."""
        self.requests = 0
        """Requests that have begun and not ended."""
        self.soundless = 0
        """Streams that were opened and whose listeners have heard nothing yet."""
        self._alone = _Learnt()
        self._beside: _Learnt | None = None
        self._urgent = _FadingSums()
        self._urgent_s = float("-inf")
        self._choice: tuple[int, float, tuple[Hashable, ...]] = (0, float("-inf"), ())
        """Tokens of the latest first chunk, when they were chosen, and for what; see `first_chunk`."""
        self._crowds: dict[int, _FadingSums] = {}
        """Urgent chunks by the number of soundless streams when they were pushed: its length in bits, from 2 on."""

    @property
    def line(self) -> ChunkCost:
        """Fit through the recent chunks of all streams, least squares with older chunks fading."""
        return self._now.cost

    @property
    def spread(self) -> float:
        """Share of the line that a cautious estimate adds, at least 0: from how much more than it chunks cost."""
        return _SPREADS * self._now.spread

    @property
    def token_rate_hz(self) -> float:
        """Typical token rate of the LLM for one stream."""
        return self._now.token_rate_hz

    @property
    def _now(self) -> _Learnt:
        if self.requests <= 1:
            return self._alone
        if self._beside is None:
            self._beside = replace(self._alone, sums=replace(self._alone.sums))
        return self._beside

    def record_cost(self, hop_tokens: int, seconds: float, now_s: float) -> None:
        """Learn from one chunk that has just come."""
        learnt = self._now
        if learnt.sums.weight:
            seconds = min(seconds, _OUTLIER * learnt.cost.of_hop(hop_tokens))
        decay = _BOOK_DECAY * _left(now_s - learnt.cost_s, learnt.half_life_s)
        learnt.cost_s = now_s
        learnt.sums.add(hop_tokens + LOOKAHEAD_TOKENS, seconds, decay)
        learnt.cost = learnt.sums.fit()
        expected_s = learnt.cost.of_hop(hop_tokens)
        excess = max(seconds - expected_s, 0.0) / max(expected_s, 1e-9)
        learnt.spread += (1 - decay) * (excess - learnt.spread)

    def record_urgent(self, hop_tokens: int, seconds: float, now_s: float, soundless: int) -> None:
        """Learn from one chunk whose listener had nothing left, and which has just come.

        Args:
            hop_tokens: of the chunk.
            seconds: that it took.
            now_s: time.
            soundless: streams without a sound when it was pushed.
        """
        decay = _left(now_s - self._urgent_s, _URGENT_HALF_LIFE_S)
        self._urgent.add(hop_tokens + LOOKAHEAD_TOKENS, seconds, decay)
        self._urgent_s = now_s
        if soundless > 1:
            crowd = self._crowds.setdefault(soundless.bit_length(), _FadingSums())
            crowd.add(hop_tokens + LOOKAHEAD_TOKENS, seconds, _CROWD_DECAY)

    def urgent_line(self, now_s: float) -> ChunkCost | None:
        """Fit through urgent chunks: of the newest seconds, or of the last crowd as large as now's if that took longer.

        A crowd begins all at once, before any of its chunks tells what it costs. None if nothing is known.
        """
        is_late = self.requests > 1 and now_s - self._urgent_s <= _URGENT_MEMORY_S
        lately = [self._urgent.fit(self.line)] if is_late else []
        return max((*lately, *self._crowd_lines()), key=_of_a_second, default=None)

    def _crowd_lines(self) -> list[ChunkCost]:
        """Return what the last crowd as large as now's cost, if there was any.

        It costs no more now than one chunk after another would: that crowd may have come beside more load than now.
        """
        sizes = [size for size in self._crowds if size <= self.soundless.bit_length()]
        if not sizes:
            return []
        one_by_one = self.line.scaled(self.soundless + _UNDER_WAY)
        return [min(self._crowds[max(sizes)].fit(self.line), one_by_one, key=_of_a_second)]

    def first_chunk(self, policy: Hashable, now_s: float, choose: Callable[[], int]) -> int:
        """Return the tokens of a stream's first chunk: as chosen a moment ago with nothing changed since, else anew."""
        tokens, then_s, chosen_for = self._choice
        now_for = (policy, self._now.sums.weight > 0, self.requests > 1, self.soundless.bit_length())
        if chosen_for != now_for or now_s - then_s > _CHOICE_HOLDS_S:
            tokens = choose()
            self._choice = (tokens, now_s, now_for)
        return tokens

    def record_token_rate(self, token_rate_hz: float, now_s: float) -> None:
        """Learn from one stream's LLM; what was learnt long ago counts less."""
        learnt = self._now
        kept = (1 - _RATE_LEARNT_SHARE) * _left(now_s - learnt.rate_s, learnt.half_life_s)
        learnt.rate_s = now_s
        learnt.token_rate_hz += (1 - kept) * (token_rate_hz - learnt.token_rate_hz)


def _times_usual(line: ChunkCost, hop: int, seconds: float) -> float:
    """Return how many times as long as usual a chunk took."""
    return seconds / max(line.of_hop(hop), 1e-9)


def _of_a_second(line: ChunkCost) -> float:
    return line.of_hop(TOKEN_RATE_HZ)


def _left(seconds: float, half_life_s: float) -> float:
    """Return the share of a weight that is left after so long; all of it where time has not gone on."""
    return float(0.5 ** (max(seconds, 0.0) / half_life_s))


class PaceMeter:
    """Measures one stream; told of every token, chunk and answer when it happens."""

    def __init__(self, book: PaceBook, clock: Clock) -> None:
        """Begin a stream; `book` gives the prior and learns from it."""
        self._book = book
        self._clock = clock
        self._arrivals: deque[tuple[float, int]] = deque()
        self._tokens = 0
        self._burst = 1
        self._first: tuple[float, int] | None = None
        self._is_rate_told = False
        self._under_way: deque[tuple[float, int]] = deque()
        self._soundless: deque[int] = deque()
        """Streams without a sound when each of these was pushed."""
        self._is_soundless = False
        self.waits_for_voice = False
        """Whether the next chunk may wait until its voice is made; then its time tells nothing of the others'."""
        self._chunks = 0
        self._own: deque[tuple[int, float]] = deque(maxlen=_OWN_CHUNKS)
        self._answered_s = float("-inf")
        self._dry_s = float("-inf")

    def opened(self) -> None:
        """Note that the stream's listener waits for the first sound from now on."""
        if not self._is_soundless:
            self._is_soundless = True
            self._book.soundless += 1

    def ended(self) -> None:
        """Note that the stream is over, or its listener has heard a sound."""
        if self._is_soundless:
            self._is_soundless = False
            self._book.soundless -= 1

    def received(self, messages: list[int]) -> None:
        """Note the tokens in each message of the LLM that has just come."""
        now_s, count = self._clock.now(), sum(messages)
        if not count:
            return
        self._tokens += count
        if self._first is not None:  # a head start comes in one message, however small the others will be
            self._burst = 2 * max(messages)  # they grow with the listener's lead
        self._arrivals.append((now_s, self._tokens))
        while len(self._arrivals) > 2 and self._arrivals[0][0] < now_s - _RATE_WINDOW_S:
            self._arrivals.popleft()
        self._first = self._first or (now_s, count)
        self._tell_rate(now_s)

    def sent(self, chunk_tokens: int) -> None:
        """Note a chunk, look-ahead included, that has just been pushed."""
        self._under_way.append((self._clock.now(), max(chunk_tokens - LOOKAHEAD_TOKENS, 0)))
        self._soundless.append(self._book.soundless)
        self._chunks += 1

    def answered(self, audio_s: float) -> None:
        """Note that the audio of the oldest chunk under way has just come; it may be empty."""
        now_s = self._clock.now()
        (pushed_s, hop), soundless = self._under_way.popleft(), self._soundless.popleft()
        cost_s = now_s - max(pushed_s, self._answered_s)
        self._answered_s = now_s
        was_urgent = now_s > self._dry_s
        if audio_s > 0:
            self.ended()
            self._dry_s = max(self._dry_s, now_s) + audio_s
        if self.waits_for_voice:
            self.waits_for_voice = False
            return
        if was_urgent:
            self._book.record_urgent(hop, cost_s, now_s, soundless)
        self._own.append((hop, cost_s))
        self._book.record_cost(hop, cost_s, now_s)

    def left_out(self, audio_s: float) -> None:
        """Note that so much of the audio that has come is not played."""
        self._dry_s -= audio_s

    def begins(self, audio_s: float, tokens_come: bool) -> bool:
        """Tell whether a listener who has heard nothing yet should hear so much audio now, and note it if so.

        Else the listener would have nothing left before the next chunk's audio is there.

        Args:
            audio_s: seconds of audio that have come.
            tokens_come: the LLM speaks, and waits for nobody.
        """
        now_s = self._clock.now()
        if (self._under_way or tokens_come) and self._own and self._book.requests > 1:
            pushed_s, hop = self._under_way[0] if self._under_way else (now_s, self._own[-1][0])
            cost_s = CAUTION * _times_usual(self._book.line, *self._own[-1]) * self._book.line.of_hop(hop)
            if max(pushed_s, self._answered_s) + cost_s > now_s + audio_s:
                return False
        self._dry_s = now_s + audio_s
        return True

    def read(self) -> Pace:
        """Return what is known now."""
        now_s, cost = self._clock.now(), self._cautious_cost()
        free_s, dry_s = self._look_ahead(now_s, cost)
        dry_in_s = dry_s - now_s if self._chunks else float("inf")
        free_in_s = max(free_s - now_s, 0.0)
        urgent_cost = self._book.urgent_line(now_s) if not self._chunks else None
        rate_hz, multiple, is_beside = self._token_rate(now_s), self._book.hop_multiple, self._book.requests > 1
        return Pace(rate_hz, self._burst, cost, free_in_s, dry_in_s, multiple, urgent_cost, is_beside)

    def _look_ahead(self, now_s: float, cost: ChunkCost) -> tuple[float, float]:
        """Play what is under way; return when token2wav is free and when the listener runs dry."""
        free_s, dry_s = self._answered_s, self._dry_s
        index = self._chunks - len(self._under_way)
        for pushed_s, hop in self._under_way:
            free_s = max(max(free_s, pushed_s) + cost.of_hop(hop), now_s)
            audio_s = hop / TOKEN_RATE_HZ - (0.0 if index else HELD_BACK_S)
            dry_s = max(dry_s, free_s) + max(audio_s, 0.0)
            index += 1
        return free_s, dry_s

    def _cautious_cost(self) -> ChunkCost:
        line = self._book.line
        return line.scaled(max([1 + self._book.spread, *[_times_usual(line, *chunk) for chunk in self._own]]))

    def _token_rate(self, now_s: float) -> float:
        prior_hz = self._book.token_rate_hz
        if not self._arrivals:
            return prior_hz
        since_s, before = self._arrivals[0]
        tokens = self._tokens - before + _RATE_PRIOR_TOKENS
        return tokens / (now_s - since_s + _RATE_PRIOR_TOKENS / prior_hz)

    def _tell_rate(self, now_s: float) -> None:
        if self._is_rate_told or self._first is None:
            return
        since_s, before = self._first
        if self._tokens - before >= _RATE_LEARNT_TOKENS and now_s > since_s:
            self._book.record_token_rate((self._tokens - before) / (now_s - since_s), now_s)
            self._is_rate_told = True
