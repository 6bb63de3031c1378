"""Decides which streams run in the next step. No tensors, no model, no lock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from token2wav_service.engine.stream import Stream
from token2wav_service.types import TokenChunk

CLASS_PENALTY_S = 0.5
"""Each priority class behind the first may be made to wait so much longer, and no longer: none starves."""
CROWDED_STEPS = 10.0
"""Where the ready chunks fill so many steps, a step may take chunks of several buckets. Below it new streams would wait
longer than they do beside steps of one bucket (simulated)."""
LEAST_SHARE = 0.5
"""Share of the most chunks of a bucket's step; a step of several buckets takes no fewer, and more than without them."""


class Programs(Protocol):
    """What runs a batch, as far as a scheduler must know it; every `Runner` does."""

    def bucket(self, chunk: TokenChunk, state: Any) -> int:
        """See `Runner.bucket`."""
        ...

    def step_size(self, bucket: int, ready: int) -> int:
        """See `Runner.step_size`."""
        ...


@dataclass(frozen=True)
class Batch:
    """Streams that run one chunk each in the same step."""

    streams: tuple[Stream, ...]


class Scheduler:
    """Earliest deadline first: a new stream is due soon, a playing one when its listener runs dry."""

    def __init__(self, max_batch_size: int, crowded_steps: float = CROWDED_STEPS) -> None:
        """Begin without streams.

        Args:
            max_batch_size: most chunks of a step.
            crowded_steps: see `CROWDED_STEPS`.
        """
        self._max_batch_size = max_batch_size
        self._crowded_steps = crowded_steps

    def schedule(self, streams: Iterable[Stream], programs: Programs) -> Batch | None:
        """Return the next step's batch, or None when no stream has a chunk to run.

        A step takes chunks of the most urgent stream's bucket only, so that it is short and that stream does not wait
        for longer chunks. Where many chunks wait, steps of few chunks would make all streams late: there the most
        urgent chunk runs in a larger bucket's program, together with the chunks of all buckets up to that one.

        Args:
            streams: all open streams.
            programs: what runs the batch.
        """
        ready = sorted((stream for stream in streams if stream.is_ready), key=_due_s)
        if not ready:
            return None
        buckets = [programs.bucket(stream.waiting[0], stream.state) for stream in ready]
        first = buckets[0]
        alike = [stream for stream, bucket in zip(ready, buckets, strict=True) if bucket == first]
        own = self._step_size(first, len(alike), programs)
        for larger in self._larger_buckets(first, buckets, programs):
            fitting = [stream for stream, bucket in zip(ready, buckets, strict=True) if bucket <= larger]
            count = self._step_size(larger, len(fitting), programs)
            if count > own and count >= LEAST_SHARE * self._most(larger, programs):
                return Batch(tuple(fitting[:count]))
        return Batch(tuple(alike[:own]))

    def _larger_buckets(self, first: int, buckets: Sequence[int], programs: Programs) -> list[int]:
        """Return the buckets whose programs the most urgent chunk may run in beside its own, ascending."""
        counts = Counter(buckets)
        if sum(count / self._most(bucket, programs) for bucket, count in counts.items()) < self._crowded_steps:
            return []
        return sorted(bucket for bucket in counts if bucket > first)

    def _most(self, bucket: int, programs: Programs) -> int:
        """Return the most chunks that a step of a bucket takes."""
        return programs.step_size(bucket, self._max_batch_size)

    def _step_size(self, bucket: int, ready: int, programs: Programs) -> int:
        return programs.step_size(bucket, min(ready, self._max_batch_size))


def _due_s(stream: Stream) -> float:
    return stream.due_s + (stream.options.priority - 1) * CLASS_PENALTY_S
