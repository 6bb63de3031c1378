"""Decides which streams run in the next step. No tensors, no model, no lock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from token2wav_service.engine.stream import Stream

CLASS_PENALTY_S = 0.5
"""Each priority class behind the first may be made to wait so much longer, and no longer: none starves."""


@dataclass(frozen=True)
class Batch:
    """Streams that run one chunk each in the same step."""

    streams: tuple[Stream, ...]


class Scheduler:
    """Earliest deadline first: a new stream is due at once, a playing one when its listener runs dry."""

    def __init__(self, max_batch_size: int) -> None:
        self._max_batch_size = max_batch_size

    def schedule(self, streams: Iterable[Stream]) -> Batch | None:
        """Return the next step's batch, or None when no stream has a chunk to run."""
        ready = sorted((stream for stream in streams if stream.is_ready), key=_due_s)
        return Batch(tuple(ready[: self._max_batch_size])) if ready else None


def _due_s(stream: Stream) -> float:
    return stream.runs_dry_s + (stream.options.priority - 1) * CLASS_PENALTY_S
