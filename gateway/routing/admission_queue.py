"""Says which of the waiting requests is next: fair between callers, whatever one of them asks for. Pure.

A caller without a stream is the next one in, always. Then come the urgent requests, then the callers with the fewest
streams, which is a round over callers; requests of one caller come in the order of asking.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from gateway.routing.replica import MAX_WAITING


class Turn(Protocol):
    """What a request waits for: a future, which says whether it has its turn or was dropped from a full queue."""

    def done(self) -> bool: ...
    def set_result(self, result: bool, /) -> None: ...


@dataclass(eq=False)
class QueueEntry:
    """A request that waits."""

    caller: str
    priority: int
    """1 (first) to 10."""
    turn: Turn


_Kind = tuple[str, int]
"""Caller and priority."""


class AdmissionQueue:
    """The requests of one gateway process that wait, and the streams that its callers have."""

    def __init__(self) -> None:
        self.waiting: dict[_Kind, dict[QueueEntry, None]] = {}
        """Requests that wait, in the order of asking."""
        self._waiting_of = Counter[str]()
        self._streams = Counter[str]()

    def __len__(self) -> int:
        return self._waiting_of.total()

    def has_share(self, caller: str, but: int = 0) -> bool:
        """Tell whether a caller has half of a fair share of all streams, not counting `but` of its own."""
        streams = self._streams[caller] - but
        return streams > 0 and 2 * streams * len(self._streams) >= self._streams.total()

    def begin_stream(self, caller: str) -> None:
        """Count a stream that has its turn."""
        self._streams[caller] += 1

    def end_stream(self, caller: str) -> None:
        """Count it no more."""
        _decrement(self._streams, caller)

    def join(self, entry: QueueEntry) -> None:
        """Wait; of a full queue the newest request of the caller with the most requests is dropped, maybe this one."""
        self.waiting.setdefault((entry.caller, entry.priority), {})[entry] = None
        self._waiting_of[entry.caller] += 1
        if len(self) > MAX_WAITING:
            greediest = max(self._waiting_of, key=self._waiting_of.__getitem__)
            kind = max((kind for kind in self.waiting if kind[0] == greediest), key=lambda kind: kind[1])
            dropped = next(reversed(self.waiting[kind]))
            self.leave(dropped)
            if not dropped.turn.done():
                dropped.turn.set_result(False)

    def leave(self, entry: QueueEntry) -> None:
        """Wait no longer; harmless for an entry that is out."""
        kind = (entry.caller, entry.priority)
        entries = self.waiting.get(kind, {})
        if entry in entries:
            del entries[entry]
            _decrement(self._waiting_of, entry.caller)
            if not entries:
                del self.waiting[kind]

    def first(self) -> QueueEntry | None:
        """Return the request that is next; None if none waits."""
        while (kind := min(self.waiting, key=self._rank, default=None)) is not None:
            entry = next(iter(self.waiting[kind]))
            if not entry.turn.done():
                return entry
            self.leave(entry)  # NOTE: its caller has left at this very moment
        return None

    def _rank(self, kind: _Kind) -> tuple[bool, int, int]:
        # NOTE: of equal callers the first in the dictionary is next.
        caller, priority = kind
        streams = self._streams[caller]
        return streams > 0, priority, streams


def _decrement(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]
