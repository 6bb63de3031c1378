"""One stream in virtual time: an LLM, a token2wav that answers one chunk after another, and a listener."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from gateway.chunking.chunker import Chunker, TokenChunk
from gateway.chunking.pace import HELD_BACK_S, PaceBook, PaceMeter
from gateway.chunking.policies import ChunkPolicy
from tests.virtual_time import ManualClock
from token2wav_service.contract import LOOKAHEAD_TOKENS, TOKEN_RATE_HZ

CostOf = Callable[[int, float], float]
"""Seconds for a chunk of so many tokens that is begun at such a time."""


def linear(fixed_s: float, per_token_s: float) -> CostOf:
    """Cost that does not change with time."""
    return lambda tokens, _: fixed_s + per_token_s * tokens


MAX_UNDER_WAY = 3
"""The pipeline pushes no more chunks until the oldest one's audio has come."""


@dataclass(frozen=True)
class World:
    """The speed of both services."""

    token_rate_hz: float
    cost: CostOf
    tokens: int = 500
    burst: int = 1
    """Tokens in one message of the LLM."""
    llm_delay_s: float = 0.03


@dataclass
class Hearing:
    """What the listener got."""

    ttfa_s: float = 0.0
    hops: list[int] = field(default_factory=list)
    """Without look-ahead; the last chunk is left out."""
    gaps: list[tuple[float, float]] = field(default_factory=list)
    """When audio came too late, and by how much."""
    audio_s: float = 0.0

    @property
    def gap_s(self) -> float:
        return sum(seconds for _, seconds in self.gaps)


def listen(world: World, policy: ChunkPolicy, book: PaceBook | None = None) -> Hearing:
    """Play one stream to its end; a `book` kept from earlier streams is the prior."""
    return _Stream(world, policy, book or PaceBook()).play()


def learnt(world: World, policy: ChunkPolicy, streams: int = 2) -> PaceBook:
    """Return the book after some streams of a world."""
    book = PaceBook()
    for _ in range(streams):
        listen(world, policy, book)
    return book


class _Stream:
    def __init__(self, world: World, policy: ChunkPolicy, book: PaceBook) -> None:
        self._world = world
        self._clock = ManualClock()
        self._chunker = Chunker(policy)
        self._meter = PaceMeter(book, self._clock)
        self._order = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._free_s = self._dry_s = 0.0
        self._under_way = 0
        self._has_ended = self._is_flushed = False
        self._hearing = Hearing()

    def play(self) -> Hearing:
        self._at(self._world.llm_delay_s, lambda: self._speak(0))
        while self._events:
            self._clock.seconds, _, happen = heapq.heappop(self._events)
            happen()
        return self._hearing

    def _at(self, seconds: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (seconds, next(self._order), happen))

    def _speak(self, said: int) -> None:
        new = min(self._world.burst, self._world.tokens - said)
        self._meter.received([new])
        self._chunker.add(list(range(said, said + new)))
        self._has_ended = said + new == self._world.tokens
        self._push_ready()
        if not self._has_ended:
            self._at(self._clock.now() + new / self._world.token_rate_hz, lambda: self._speak(said + new))

    def _push_ready(self) -> None:
        while self._under_way < MAX_UNDER_WAY and not self._is_flushed:
            chunk = self._chunker.next_chunk(self._clock.now(), self._meter.read())
            if chunk is None and not self._has_ended:
                return
            self._push(chunk or self._chunker.flush())

    def _push(self, chunk: TokenChunk) -> None:
        self._is_flushed = chunk.is_last
        if not chunk.is_last:
            self._hearing.hops.append(len(chunk.token_ids) - LOOKAHEAD_TOKENS)
        self._meter.sent(len(chunk.token_ids))
        self._under_way += 1
        begun_s = max(self._free_s, self._clock.now())
        self._free_s = begun_s + self._world.cost(len(chunk.token_ids), begun_s)
        self._at(self._free_s, lambda: self._hear(chunk))

    def _hear(self, chunk: TokenChunk) -> None:
        held_s = HELD_BACK_S * (chunk.is_last - (chunk.index == 0))
        spoken = len(chunk.token_ids) - (0 if chunk.is_last else LOOKAHEAD_TOKENS)
        audio_s = max(spoken / TOKEN_RATE_HZ + held_s, 0.0)
        self._meter.answered(audio_s)
        now_s, heard = self._clock.now(), self._hearing
        if not heard.audio_s and audio_s:
            heard.ttfa_s = self._dry_s = now_s
        if heard.audio_s and now_s > self._dry_s + 1e-9:
            heard.gaps.append((now_s, now_s - self._dry_s))
        self._dry_s = max(self._dry_s, now_s) + audio_s
        heard.audio_s += audio_s
        self._under_way -= 1
        self._push_ready()
