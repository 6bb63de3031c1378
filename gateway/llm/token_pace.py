"""How fast one LLM answer comes. Pure."""

from __future__ import annotations

from servicekit.clock import Clock

LEAST_TOKENS = 16
MOST_TOKENS = 256
"""Whoever reads the answer takes so many without ever holding it back; later tokens may wait for the listener."""


class TokenPace:
    """Measures the beginning of one answer."""

    def __init__(self, clock: Clock) -> None:
        """Wait for the first tokens."""
        self._clock = clock
        self._first_s: float | None = None
        self._tokens = 0

    def note(self, tokens: int) -> float | None:
        """Note tokens; return the seconds from one to the next once there are enough, until there are many."""
        now_s = self._clock.now()
        if self._first_s is None:
            self._first_s = now_s
            return None
        self._tokens += tokens
        elapsed_s = now_s - self._first_s
        return elapsed_s / self._tokens if LEAST_TOKENS <= self._tokens <= MOST_TOKENS and elapsed_s > 0 else None
