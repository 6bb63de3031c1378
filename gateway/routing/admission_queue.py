"""Streams that wait for a slot: by priority, equal ones in the order of asking. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from gateway.routing.replica import ReplicaLife
from token2wav_service.contract import DEFAULT_PRIORITY

P = TypeVar("P")
"""Type of what a waiting stream is given."""


@dataclass(eq=False)
class QueueEntry(Generic[P]):
    """A stream's turn in the queue."""

    queue: AdmissionQueue[P]
    rank: int
    on_leased: Callable[[P], None]
    avoid: frozenset[str]
    spared: frozenset[ReplicaLife] = frozenset()

    def leave(self) -> None:
        """Wait no longer; harmless for one that has its slot."""
        self.queue.leave(self)


class AdmissionQueue(Generic[P]):
    """The streams that wait for a slot of one service."""

    def __init__(self) -> None:
        """Begin empty."""
        self._by_rank: list[dict[QueueEntry[P], None]] = [{} for _ in range(DEFAULT_PRIORITY + 1)]

    def __len__(self) -> int:
        return sum(map(len, self._by_rank))

    def ahead_of(self, rank: int) -> int:
        """Count those whose turn would come before that of a newcomer; rank 0 is the first.

        Those that can't have any place but must wait for another one do not count.
        """
        return sum(not entry.spared for entries in self._by_rank[: rank + 1] for entry in entries)

    def join(
        self,
        rank: int,
        on_leased: Callable[[P], None],
        avoid: frozenset[str],
        spared: frozenset[ReplicaLife] = frozenset(),
    ) -> QueueEntry[P]:
        """Wait behind all of the same rank."""
        entry = QueueEntry(self, rank, on_leased, avoid, spared)
        self._by_rank[rank][entry] = None
        return entry

    def leave(self, entry: QueueEntry[P]) -> None:
        """Take an entry out; harmless if it is out."""
        self._by_rank[entry.rank].pop(entry, None)

    def in_order(self) -> Iterator[QueueEntry[P]]:
        """Yield the waiting streams, the next one first."""
        for entries in self._by_rank:
            yield from entries
