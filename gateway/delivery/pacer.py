"""How far audio may be sent ahead of its listener: near real time, with a bounded run-ahead.

    sent    ├────────────────────────────────┤
    played  ├──────────────────┤  run-ahead  │ more has to wait
                             now

Some clients can't be seen to interrupt: they go on receiving and throw away what comes. What was sent beyond what was
played is then lost work, so that it must be little. Pure; time comes from the clock it is given.
"""

from __future__ import annotations

from servicekit.clock import Clock

DEFAULT_RUN_AHEAD_S = 2.0
"""Outlasts the stalls of a mobile network; an interruption that can't be seen wastes no more."""

_SHORTEST_WAIT_S = 1e-3
"""Less is not worth a sleep, and may be too little to move a clock."""


class Pacer:
    """Watches one listener, who plays from the first audio on and goes on as soon as there is more after a gap."""

    def __init__(self, clock: Clock, run_ahead_s: float = DEFAULT_RUN_AHEAD_S) -> None:
        """Begin before the first audio.

        Args:
            clock: tells the time.
            run_ahead_s: seconds of audio sent and not played yet, at most; `math.inf` never waits.
        """
        self._clock = clock
        self._run_ahead_s = run_ahead_s
        self._plays_until_s = clock.now()

    @property
    def ahead_s(self) -> float:
        """Seconds of audio sent and not played yet."""
        return max(self._plays_until_s - self._clock.now(), 0.0)

    def wait_s(self, audio_s: float) -> float:
        """Return how long the next `audio_s` seconds have to wait; those that are too many go when all is played."""
        wait_s = self.ahead_s + min(audio_s, self._run_ahead_s) - self._run_ahead_s
        return wait_s if wait_s >= _SHORTEST_WAIT_S else 0.0

    def sent(self, audio_s: float) -> None:
        """Note that so many seconds have been sent."""
        self._plays_until_s = self._clock.now() + self.ahead_s + audio_s
