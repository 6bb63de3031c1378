"""Streams that wait for a place: by priority, equal ones in the order of asking. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from token2wav_service.contract import DEFAULT_PRIORITY

P = TypeVar("P")
"""What those who wait are given."""


@dataclass(eq=False)
class Ticket(Generic[P]):
    """A stream's turn in the line."""

    line: Line[P]
    rank: int
    on_placed: Callable[[P], None]
    avoid: frozenset[str]

    def leave(self) -> None:
        """Wait no longer; harmless for one that has its place."""
        self.line.leave(self)


class Line(Generic[P]):
    """All who wait for a place of one service."""

    def __init__(self) -> None:
        """Begin empty."""
        self._by_rank: list[dict[Ticket[P], None]] = [{} for _ in range(DEFAULT_PRIORITY + 1)]

    def __len__(self) -> int:
        return sum(map(len, self._by_rank))

    def ahead_of(self, rank: int) -> int:
        """Count those whose turn would come before that of a newcomer; rank 0 is the first."""
        return sum(map(len, self._by_rank[: rank + 1]))

    def join(self, rank: int, on_placed: Callable[[P], None], avoid: frozenset[str]) -> Ticket[P]:
        """Wait behind all of the same rank."""
        ticket = Ticket(self, rank, on_placed, avoid)
        self._by_rank[rank][ticket] = None
        return ticket

    def leave(self, ticket: Ticket[P]) -> None:
        """Take a ticket out; harmless if it is out."""
        self._by_rank[ticket.rank].pop(ticket, None)

    @property
    def first(self) -> Ticket[P] | None:
        """Whose turn it is."""
        return next((ticket for tickets in self._by_rank for ticket in tickets), None)
