"""Holds back generated tokens while they may be the beginning of a stop string. Knows nothing of engines or HTTP."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Released:
    """Tokens that may be handed out now."""

    token_ids: tuple[int, ...] = ()
    text: str = ""
    stop: str | None = None  # the stop string that was met


class StopStringFilter:
    """Looks for stop strings in a text that grows token by token."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held: list[tuple[int, str]] = []

    def push(self, token_id: int, text: str) -> Released:
        """Take the next token; return what is certain not to be part of a stop string.

        When a stop string is met, the text up to it and the whole tokens before it are returned, and the rest is gone.
        """
        self._held.append((token_id, text))
        pending = "".join(text for _, text in self._held)
        hits = [(position, stop) for stop in self._stops if (position := pending.find(stop)) >= 0]
        if hits:
            position, stop = min(hits)
            ids = self._take(position)
            self._held.clear()
            return Released(ids, pending[:position], stop)
        safe = len(pending) - self._longest_beginning(pending)
        length_before = len(pending)
        ids = self._take(safe)
        length_held = sum(len(text) for _, text in self._held)
        return Released(ids, pending[: length_before - length_held])

    def flush(self) -> Released:
        """Return all that is held: the answer has ended otherwise."""
        held, self._held = self._held, []
        return Released(tuple(token_id for token_id, _ in held), "".join(text for _, text in held))

    def _take(self, length: int) -> tuple[int, ...]:
        """Remove and return the tokens that lie wholly in the first `length` characters."""
        ids: list[int] = []
        end = 0
        while self._held and (end := end + len(self._held[0][1])) <= length:
            ids.append(self._held.pop(0)[0])
        return tuple(ids)

    def _longest_beginning(self, pending: str) -> int:
        """Return the length of the longest end of `pending` with which some stop string begins."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(pending)), longest, -1):
                if pending.endswith(stop[:length]):
                    longest = length
                    break
        return longest
