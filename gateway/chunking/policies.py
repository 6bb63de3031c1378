"""When to send speech tokens on, and how many: the chunk policies and their settings.

Pure: no clock, no network, no audio. The time and the measurements a policy may look at are passed in.

Source: CosyVoice runtime/triton_trtllm/model_repo/cosyvoice2_dit; differs in that exponential hops may be bounded.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

from gateway.chunking.outlook import Outlook
from gateway.chunking.pace import CAUTION, Pace
from gateway.errors import ConfigError
from token2wav_service.contract import CHUNK_SIZES_TOKENS, LOOKAHEAD_TOKENS, TOKEN_RATE_HZ

DEFAULT_HOP_TOKENS = 15
"""Default tokens of a hop, 600 ms: the original runtime's token_hop_len."""
DEFAULT_MAX_HOP_TOKENS = 100
"""Default bound of a hop, 4 s, so that no chunk delays other streams by more than its own computation."""
MIN_HOP_TOKENS = 4
"""Fewest tokens of a hop, 160 ms: the vocoder holds back more than a shorter first chunk has."""
MIN_AUDIBLE_FIRST_HOP_TOKENS = MIN_HOP_TOKENS + 1
"""Fewest tokens of a first chunk from which the vocoder gives any sound."""
GROWTH_BASE_TOKENS = TOKEN_RATE_HZ
"""Tokens of the second exponential hop: 1 s."""
_DOUBLE_AHEAD = 4
_SINGLE_AHEAD = 2
_GROWTH = 2
"""Most times longer than the one before that a deadline hop may be: the listener's slack grows no faster."""
_GROWTH_AT_EASE, _EASE = 4, 2.0
"""The same where the audio is in time even if it takes so many times as long as expected: fewer chunks cost less."""
_MOST_BUSY_TOKENS = CHUNK_SIZES_TOKENS[1]
"""Most tokens of a hop where token2wav is busy with other streams, 1 s, and of one that will be late: it is due as a
whole when its first sample is. Where many have longer hops due together, some are late (simulated)."""
_BUSY_S = 0.1
"""token2wav is busy if such a hop takes longer than that: it speaks less than ten times as fast as listeners play."""
_LONGEST_FIRST_TOKENS = CHUNK_SIZES_TOKENS[2]
"""Most tokens of a first hop, 2 s, while even urgent chunks take so long that a usual one would run dry."""
_REHEARSED_CHUNKS = 12
"""Number of chunks simulated to judge a first hop; doubling reaches any usual bound before."""
POLICY_NAMES = ("exponential", "equal", "time_based", "deadline")
DEFAULT_POLICY = "deadline"
"""The default policy; every published figure was taken with it."""
UNMEASURED = Pace()


class ChunkProgress(NamedTuple):
    """What a policy may look at when it chooses the next hop."""

    chunks_sent: int
    tokens_sent: int
    """Tokens sent so far, look-ahead not counted."""
    tokens_pending: int
    """Tokens received and not sent yet, look-ahead included."""
    elapsed_s: float
    """Seconds since the request began."""
    last_hop_tokens: int = 0
    """Tokens of the latest hop; 0 before the first chunk."""
    hop_considered: int | None = None
    """The policy's previous answer for this very chunk; None: not asked before."""
    pace: Pace = UNMEASURED
    """Measured speed of the LLM and of token2wav, and the listener's slack; only `deadline` looks at it."""


class ChunkPolicy(Protocol):
    """Chooses how many tokens the next chunk speaks; has no state of its own, and equal ones choose alike."""

    def __hash__(self) -> int:
        """Answers for an unmeasured pace are kept by policy."""
        ...

    def next_hop(self, progress: ChunkProgress) -> int:
        """Return the tokens to speak in the next chunk, at least 1; asked again whenever tokens have come."""
        ...


@lru_cache(maxsize=64)
def first_chunk_tokens(policy: ChunkPolicy) -> int:
    """Return the most tokens that a stream's first chunk may wait for, look-ahead included."""
    return max(DEFAULT_HOP_TOKENS + LOOKAHEAD_TOKENS, awaited_tokens(policy, UNMEASURED))


def awaited_tokens(policy: ChunkPolicy, pace: Pace) -> int:
    """Return the tokens that a stream's first chunk will be made of as things look, look-ahead included."""
    return policy.next_hop(ChunkProgress(0, 0, 0, 0.0, pace=pace)) + LOOKAHEAD_TOKENS


@dataclass(frozen=True)
class ExponentialChunks:
    """A short first hop for an early start, then 25, 50, 100, ... up to a bound."""

    first_hop_tokens: int = DEFAULT_HOP_TOKENS
    max_hop_tokens: int | None = DEFAULT_MAX_HOP_TOKENS
    """Most tokens of a hop; None: unbounded, as the original runtime."""

    def next_hop(self, progress: ChunkProgress) -> int:
        """Double with every chunk sent."""
        hop = GROWTH_BASE_TOKENS * 2 ** (progress.chunks_sent - 1) if progress.chunks_sent else self.first_hop_tokens
        return int(hop) if self.max_hop_tokens is None else min(int(hop), self.max_hop_tokens)


@dataclass(frozen=True)
class FixedChunks:
    """Every hop alike, but for the first."""

    hop_tokens: int = DEFAULT_HOP_TOKENS
    first_hop_tokens: int = DEFAULT_HOP_TOKENS

    def next_hop(self, progress: ChunkProgress) -> int:
        """Return the one hop."""
        return self.hop_tokens if progress.chunks_sent else self.first_hop_tokens


@dataclass(frozen=True)
class TimeBasedChunks:
    """Long hops while playback is far behind production, short ones when it catches up."""

    hop_tokens: int = DEFAULT_HOP_TOKENS
    first_hop_tokens: int = DEFAULT_HOP_TOKENS
    max_hop_tokens: int | None = DEFAULT_MAX_HOP_TOKENS

    def next_hop(self, progress: ChunkProgress) -> int:
        """Compare the audio sent with the time it took, in units of the mean time per chunk; decide once a chunk."""
        if progress.hop_considered is not None:
            return progress.hop_considered
        if progress.chunks_sent == 0:
            return self.first_hop_tokens
        if progress.chunks_sent == 1:
            return self._bounded(self.first_hop_tokens)
        whole_hops = progress.tokens_pending // self.hop_tokens
        lead = self._lead(progress)
        if lead > _DOUBLE_AHEAD:
            return self._bounded((whole_hops + 1) * self.hop_tokens)
        return self._bounded(whole_hops * self.hop_tokens if lead > _SINGLE_AHEAD else self.hop_tokens)

    def _lead(self, progress: ChunkProgress) -> float:
        sent_s = progress.tokens_sent / TOKEN_RATE_HZ
        mean_cost_s = progress.elapsed_s / progress.chunks_sent
        return (sent_s - progress.elapsed_s) / mean_cost_s if mean_cost_s > 0 else float("inf")

    def _bounded(self, hop: int) -> int:
        at_least_one = max(hop, self.hop_tokens)
        return at_least_one if self.max_hop_tokens is None else min(at_least_one, self.max_hop_tokens)


@lru_cache(maxsize=4096)
def _grown_sizes(last_hop: int, shortest: int, bound: int, growth: int = _GROWTH) -> tuple[int, ...]:
    """Return the hops to choose from after this one."""
    return _sizes(shortest, min(max(growth * last_hop, shortest), bound), bound)


def _sizes(shortest: int, longest: int, bound: int) -> tuple[int, ...]:
    """Return the hops to choose from: any length below the smallest batched size, then these sizes, the bound."""
    short = range(shortest, min(longest, CHUNK_SIZES_TOKENS[0] - 1) + 1)
    sizes = sorted({*short, *CHUNK_SIZES_TOKENS, bound})
    return tuple(size for size in sizes if shortest <= size <= longest) or (shortest,)


@dataclass(frozen=True)
class DeadlineChunks:
    """The shortest first hop that playback can go on from, then the longest hops whose audio comes in time.

    Those behind the first are of 1 s at most where token2wav is busy with other streams.

    From 15 tokens on, hops are of the sizes that token2wav batches best. A block-masked flow's first hop is the usual
    one: for every other length token2wav would have to run the voice's prompt again, so that the hop ends a block.
    """

    first_hop_tokens: int | None = None
    """Tokens of the first hop; None: chosen from the measured speed, at most `hop_tokens`."""
    hop_tokens: int = DEFAULT_HOP_TOKENS
    """Most tokens of a chosen first hop, and of a hop that will be late, while token2wav is not overloaded."""
    max_hop_tokens: int = DEFAULT_MAX_HOP_TOKENS

    def next_hop(self, progress: ChunkProgress) -> int:
        """Follow the pace; a hop that will be late anyway is short, but long enough to catch up."""
        outlook = Outlook.measured(progress.pace, progress.tokens_pending, progress.last_hop_tokens)
        if progress.chunks_sent == 0:
            usual = self.hop_tokens if progress.pace.hop_multiple > 1 else None
            return min(self.first_hop_tokens or usual or self._first_hop(outlook), self.max_hop_tokens)
        shortest = self._shortest(outlook)
        bound = self._bound(outlook.pace)
        sizes = _grown_sizes(progress.last_hop_tokens, shortest, bound)
        hop = outlook.longest_in_time(sizes)
        if hop is None or hop < sizes[-1]:
            return hop or self._late(outlook, shortest)
        longer = _grown_sizes(progress.last_hop_tokens, shortest, bound, _GROWTH_AT_EASE)
        at_ease = Outlook.measured(progress.pace, progress.tokens_pending, progress.last_hop_tokens, _EASE)
        return max(hop, at_ease.longest_in_time(longer) or hop)

    def _first_hop(self, outlook: Outlook) -> int:
        """Return the shortest first hop after which all chunks to come are in time; a longer one is only safer.

        From `hop_tokens` on only what chunks cost that cannot wait counts, without caution: what others cost is their
        waiting for these. Nor is a hop chosen there whose tokens take longer to come than it takes to make.
        """
        candidates = range(MIN_AUDIBLE_FIRST_HOP_TOKENS, self.hop_tokens)
        hop = candidates.start + bisect_left(candidates, True, key=lambda hop: self._stays_in_time(outlook, hop))
        urgent_cost = outlook.pace.urgent_cost
        if urgent_cost is None:
            return hop
        rate_hz, burst, _, free_in_s, dry_in_s, multiple, *_ = outlook.pace
        urgent_pace = Pace(rate_hz, burst, urgent_cost, free_in_s, dry_in_s, multiple)
        urgent = Outlook.measured(urgent_pace, outlook.tokens_pending, outlook.last_hop_tokens, caution=1.0)
        sizes = sorted({self.hop_tokens, *CHUNK_SIZES_TOKENS})
        for longer in (size for size in sizes if max(hop, self.hop_tokens - 1) < size <= _LONGEST_FIRST_TOKENS):
            if self._stays_in_time(urgent, hop) or urgent.ready_in_s(longer) > urgent_cost.of_hop(longer):
                break
            hop = longer
        return hop

    def _stays_in_time(self, outlook: Outlook, hop: int) -> bool:
        """Rehearse this hop and the chunks to come; return whether the audio of every one after it is in time."""
        shortest, bound = self._shortest(outlook), self._bound(outlook.pace)
        for _ in range(_REHEARSED_CHUNKS):
            outlook = outlook.after(hop)
            longest = outlook.longest_in_time(_grown_sizes(hop, shortest, bound))
            if longest is None or longest == bound:
                return longest is not None
            hop = longest
        return True

    def _bound(self, pace: Pace) -> int:
        """Return the most tokens of a hop behind the first."""
        is_busy = pace.is_beside and pace.cost.of_hop(_MOST_BUSY_TOKENS) > _BUSY_S
        return min(self.max_hop_tokens, _MOST_BUSY_TOKENS) if is_busy else self.max_hop_tokens

    def _late(self, outlook: Outlook, shortest: int) -> int:
        """Return a hop whose audio will be late whatever its length: the shortest, unless token2wav is overloaded.

        It is if even that hop takes longer to make than to play. Longer ones take it less time for each second, so this
        is the longest whose tokens are here before token2wav is free for them.
        """
        sustaining = outlook.sustaining_hop()
        if sustaining is not None and sustaining <= shortest:
            return shortest
        longest = min(_GROWTH * outlook.last_hop_tokens, _MOST_BUSY_TOKENS, self.max_hop_tokens)
        wait_s = outlook.free_in_s / CAUTION
        sizes = _sizes(shortest, longest, self.max_hop_tokens)
        return max((hop for hop in sizes if outlook.ready_in_s(hop) <= wait_s), default=shortest)

    def _shortest(self, outlook: Outlook) -> int:
        """Return the shortest hop that is worth its cost: token2wav speaks it faster than it is played."""
        # NOTE: even shorter hops take longer to make than to play, which only delays the underrun.
        bound = min(self.hop_tokens, self.max_hop_tokens)
        return max(MIN_HOP_TOKENS, min(outlook.sustaining_hop() or bound, bound))


@dataclass(frozen=True)
class ChunkSettings:
    """The settings a policy is made from, under the original runtime's names."""

    dynamic_chunk_strategy: str = DEFAULT_POLICY
    """Name of the chunk policy: exponential, equal, time_based or deadline."""
    token_hop_len: int = DEFAULT_HOP_TOKENS
    """Tokens (25 Hz) per hop of `equal`, the unit of `time_based`, the bound of what `deadline` chooses first."""
    token_hop_len_first: int | None = None
    """Tokens of the first hop; None: 15, but with `deadline` chosen from the measured speed."""
    token_hop_len_max: int | None = DEFAULT_MAX_HOP_TOKENS
    """Most tokens of one hop; None is unbounded."""

    def __post_init__(self) -> None:
        if self.dynamic_chunk_strategy not in POLICY_NAMES:
            raise ConfigError(f"got chunk strategy {self.dynamic_chunk_strategy!r}, expected one of {POLICY_NAMES}")
        for name in ("token_hop_len", "token_hop_len_first", "token_hop_len_max"):
            tokens = getattr(self, name)
            if tokens is not None and tokens < MIN_HOP_TOKENS:
                raise ConfigError(f"got {name}={tokens}, expected at least {MIN_HOP_TOKENS} tokens (160 ms)")
        if self.dynamic_chunk_strategy == "deadline" and self.token_hop_len_max is None:
            raise ConfigError("got no bound of a hop, expected one with the strategy deadline: set token_hop_len_max")

    def policy(self) -> ChunkPolicy:
        """Make the policy these settings name."""
        first = DEFAULT_HOP_TOKENS if self.token_hop_len_first is None else self.token_hop_len_first
        if self.dynamic_chunk_strategy == "equal":
            return FixedChunks(self.token_hop_len, first)
        if self.dynamic_chunk_strategy == "time_based":
            return TimeBasedChunks(self.token_hop_len, first, self.token_hop_len_max)
        if self.dynamic_chunk_strategy == "deadline" and self.token_hop_len_max is not None:
            return DeadlineChunks(self.token_hop_len_first, self.token_hop_len, self.token_hop_len_max)
        return ExponentialChunks(first, self.token_hop_len_max)
