"""The shapes that steps may have: buckets of streams and tokens, and how many streams one takes. Arithmetic only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from token2wav_service.contract import CHUNK_SIZES_TOKENS, LOOKAHEAD_TOKENS

STREAM_BUCKETS = (1, 2, 4, 8, 16, 32, 64)
TOKEN_BUCKETS = (*CHUNK_SIZES_TOKENS[:-1], CHUNK_SIZES_TOKENS[-1] + LOOKAHEAD_TOKENS)
"""Spoken tokens (25 Hz) of the chunks with a program; a last one speaks its look-ahead too. Longer chunks run without a
graph."""
STEP_TOKENS, CROWDED_STEP_TOKENS = 1024, 2048
"""Most streams times tokens in one step, and where many chunks wait. New streams wait for a step's end, but beside the
LLM on one H200 64 streams of 25 tokens take 65 ms and 32 take 44."""
BESIDE_STREAMS = 8
"""Most streams of a step beside another one. Many are served sooner by the other steps, which make more in a time."""
BESIDE_TOKEN_BUCKETS = 2
"""Number of the smallest token buckets that have a program beside others: those of a listener's first two chunks."""
FULL_SHARE = 0.75
"""Share of a program that a batch must fill; else the rest waits for the next step and a smaller program runs."""


def stream_buckets_up_to(most: int) -> tuple[int, ...]:
    """Return the buckets that steps of at most so many streams use: no other program is captured."""
    return (
        tuple(size for size in STREAM_BUCKETS if size < most)
        + tuple(size for size in STREAM_BUCKETS if size >= most)[:1]
    )


@dataclass(frozen=True)
class StepShapes:
    """The programs there are; both ascending."""

    stream_buckets: tuple[int, ...] = STREAM_BUCKETS
    token_buckets: tuple[int, ...] = TOKEN_BUCKETS

    def beside(self) -> StepShapes:
        """Return the shapes of steps beside others."""
        streams = tuple(size for size in self.stream_buckets if size <= BESIDE_STREAMS)
        return StepShapes(streams or self.stream_buckets[:1], self.token_buckets[:BESIDE_TOKEN_BUCKETS])

    def token_bucket(self, tokens: int) -> int:
        """Return the spoken tokens that such a chunk's program has room for."""
        return next((bucket for bucket in self.token_buckets if bucket >= tokens), tokens)

    def stream_bucket(self, streams: int) -> int:
        """Return the streams that such a batch's program has room for."""
        return next((bucket for bucket in self.stream_buckets if bucket >= streams), streams)

    def most_streams(self, tokens: int, is_crowded: bool) -> int:
        """Return the streams that a program of a token bucket may hold."""
        most = CROWDED_STEP_TOKENS if is_crowded else STEP_TOKENS
        return max((size for size in self.stream_buckets if size * tokens <= most), default=self.stream_buckets[0])

    def programs(self) -> Iterator[tuple[int, int]]:
        """Yield streams and tokens of every program."""
        for tokens in self.token_buckets:
            for streams in self.stream_buckets:
                if streams <= self.most_streams(tokens, is_crowded=True):
                    yield streams, tokens

    def groups(self, tokens: Sequence[int]) -> list[tuple[list[int], int]]:
        """Return which chunks of so many tokens run in one program: (indices, token bucket).

        All run in the largest chunk's program where it may hold as many. Else they are split by token bucket, and by
        what one program may hold.
        """
        largest = self.token_bucket(max(tokens, default=0))
        if 0 < len(tokens) <= self.most_streams(largest, is_crowded=True):
            return [(list(range(len(tokens))), largest)]
        buckets: dict[int, list[int]] = {}
        for index, count in enumerate(tokens):
            buckets.setdefault(self.token_bucket(count), []).append(index)
        groups = []
        for bucket, members in buckets.items():
            most = self.most_streams(bucket, is_crowded=True)
            groups += [(members[start : start + most], bucket) for start in range(0, len(members), most)]
        return groups

    def step_size(self, bucket: int, ready: int, is_crowded: bool) -> int:
        """Return how many of so many chunks one step of a bucket's program should take; see `Runner.step_size`."""
        count = min(ready, self.most_streams(bucket, is_crowded))
        if count in self.stream_buckets or count >= FULL_SHARE * self.stream_bucket(count):
            return count
        return max(size for size in self.stream_buckets if size < count)
