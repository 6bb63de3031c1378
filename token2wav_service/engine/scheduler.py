"""Decides which streams run in the next step. No tensors, no model, no lock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from token2wav_service.engine.stream import Stream
from token2wav_service.types import TokenChunk

CLASS_PENALTY_S = 0.5
"""Each priority class behind the first may be made to wait so much longer, and no longer: none starves."""


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

    def __init__(self, max_batch_size: int) -> None:
        self._max_batch_size = max_batch_size

    def schedule(self, streams: Iterable[Stream], programs: Programs) -> Batch | None:
        """Return the next step's batch, or None when no stream has a chunk to run.

        Args:
            streams: all open streams.
            programs: chunks of different buckets would run one after another, so a step takes those of the most
                urgent stream's bucket only, and nobody waits for another bucket's chunks.
        """
        ready = sorted((stream for stream in streams if stream.is_ready), key=_due_s)
        if not ready:
            return None
        bucket = programs.bucket(ready[0].waiting[0], ready[0].state)
        alike = [stream for stream in ready if programs.bucket(stream.waiting[0], stream.state) == bucket]
        return Batch(tuple(alike[: programs.step_size(bucket, min(len(alike), self._max_batch_size))]))


def _due_s(stream: Stream) -> float:
    return stream.due_s + (stream.options.priority - 1) * CLASS_PENALTY_S
