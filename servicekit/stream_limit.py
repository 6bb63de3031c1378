"""Says how many streams a service may have open at once, from how much time to spare it serves them with. Pure.

Additive increase, multiplicative decrease: the limit grows while nearly every piece of work is done in good time, and
faster the longer that lasts. It shrinks when pieces are done with hardly any time left, which is before a listener has
nothing to play. While more streams are open than the limit allows, none is admitted, and it does not shrink further.

A piece of work is a chunk of audio, or some tokens. Its *room* is the time from its order until its listener has
nothing left; its *slack* is what was left of that time when it was done.
"""

from __future__ import annotations

import math

from servicekit.clock import Clock

STREAMS, OPEN_STREAMS, NEXT_END_S = "streams", "open-streams", "next-end-s"
"""Names under which a service tells its limit, its open streams and the seconds until one is likely to end, as metadata
behind the answer to a gRPC health check."""
COLD_STREAMS = 64
"""Limit before anything was measured."""
LEAST_STREAMS = 4
"""Fewest streams: a host slower than speech still serves a few."""
RESERVED_SHARE, EXTRA_SHARE = 0.1, 0.25
"""Share of the slots, one at least, that is kept for callers with few streams; and share of the limit by which they may
exceed it."""
FIRST_ROOM_S = 1.0
"""Room of a stream's first piece: nobody listens yet, but somebody waits."""
TIGHT_S, TIGHT_SHARE = 0.15, 0.25
"""A piece is tight if it was done with less slack than either: so many seconds, such a share of its room. One done with
less than twice that is no sign of room for more streams."""
_WINDOW_S, _WINDOW_PIECES = 0.5, 16
"""Least length of a window, and fewest pieces in it, after which the limit may change."""
_FEW = 0.05
"""Share of the pieces of a window that says nothing: a piece may be late for many reasons."""
_USED_SHARE = 0.9
"""A service that makes so many seconds of speech a second can serve as many streams. The limit falls to this share of
them after a window with tight pieces, and grows to it at once when none was tight for long."""
_LEAST_CUT, _MOST_CUT = 0.02, 0.5
"""Shares by which the limit falls: at least, and at most, which is if all pieces are tight."""
_IN_USE = 0.6
"""Share of the limit from which on the open streams put it to the test. With fewer, some pieces are tight because many
streams have begun at once, and what was made is what was asked for."""
_GROWTH, _FASTEST_GROWTH, _LEAST_GROWTH = 0.005, 0.05, 0.1
"""Growth in a window, as a share: soon after a cut, and at most; and the least number of streams."""
_PROVEN_WINDOWS, _CALM_WINDOWS = 20, 60
"""Calm windows after which the limit grows at once to what was made, and after which it grows faster and faster."""
_FIRST_LASTED_S, _NEWEST_SHARE = 5.0, 0.1
"""Seconds that a stream is taken to last before one has ended, and weight of the newest in the mean."""


class StreamLimit:
    """The limit of one engine. Not thread-safe: its owner serialises access."""

    def __init__(self, most: int, clock: Clock, *, is_fixed: bool = False) -> None:
        """Begin cold.

        Args:
            most: the limit never exceeds it.
            is_fixed: the limit is `most`, for work that no listener waits for.
        """
        self._most = most
        self._is_fixed = is_fixed
        self._clock = clock
        self._limit = float(most if is_fixed else min(COLD_STREAMS, most))
        self._calm_windows = _CALM_WINDOWS + math.ceil(_FASTEST_GROWTH / _GROWTH)
        self._made_s_per_s = 0.0
        """Seconds of speech made in a second, of about the last two windows."""
        self._lasted_s = _FIRST_LASTED_S
        self._begin_window()

    @property
    def streams(self) -> int:
        """Streams that may be open now."""
        return int(self._limit)

    def next_end_s(self, open_streams: int) -> float:
        """Expect the seconds until a stream ends that leaves room for another one."""
        too_many = max(0, open_streams - self.streams) + 1
        return too_many * self._lasted_s / max(1, open_streams)

    def note_end(self, lasted_s: float) -> None:
        """Note that a stream has ended, which was open for so long."""
        self._lasted_s += _NEWEST_SHARE * (lasted_s - self._lasted_s)

    def note_piece(self, slack_s: float, room_s: float, made_s: float, open_streams: int) -> None:
        """Note that a piece of a stream's work is done.

        Args:
            slack_s: seconds until the stream's listener has nothing left; negative: it has run dry.
            room_s: what that was when the piece was ordered. If nothing was left then, the piece says nothing.
            made_s: seconds of speech in it.
        """
        if room_s <= 0 or self._is_fixed:
            return
        tight_s = min(TIGHT_S, TIGHT_SHARE * room_s)
        self._pieces += 1
        self._uneasy += slack_s < 2 * tight_s
        self._tight += slack_s < tight_s
        self._made_s += made_s
        window_s = self._clock.now() - self._began_s
        if self._pieces >= _WINDOW_PIECES and window_s >= _WINDOW_S:
            self._judge(self._made_s / window_s, open_streams)
            self._begin_window()

    def _begin_window(self) -> None:
        self._began_s = self._clock.now()
        self._pieces = self._uneasy = self._tight = 0
        self._made_s = 0.0

    def _judge(self, made_s_per_s: float, open_streams: int) -> None:
        """Change the limit by the pieces of the window that ends now."""
        self._made_s_per_s = (self._made_s_per_s + made_s_per_s) / 2
        few, proven = _FEW * self._pieces, _USED_SHARE * made_s_per_s
        is_used = open_streams >= _IN_USE * self._limit
        if self._tight > few:
            if open_streams <= self._limit:
                kept = self._limit * (1.0 - max(_MOST_CUT * (self._tight / self._pieces) ** 2, _LEAST_CUT))
                if is_used and proven < self._limit * (1.0 - _LEAST_CUT):
                    kept = max(proven, self._limit * (1.0 - _MOST_CUT))
                self._limit = max(kept, float(min(LEAST_STREAMS, self._most)))
            if is_used:
                self._calm_windows = 0
        elif self._uneasy <= few:
            self._calm_windows += 1
            grown = self._limit
            if open_streams >= self._limit / 2:
                share = min(_FASTEST_GROWTH, _GROWTH * max(1, self._calm_windows - _CALM_WINDOWS))
                grown += max(_LEAST_GROWTH, share * self._limit)
            if self._calm_windows > _PROVEN_WINDOWS:
                grown = max(grown, _USED_SHARE * self._made_s_per_s)
            self._limit = min(float(self._most), grown)


def reserved_streams(slots: int) -> int:
    """Return how many slots are kept for callers with few streams."""
    return max(1, int(RESERVED_SHARE * slots))


def extra_streams(limit: int) -> int:
    """Return how many streams beyond a limit callers with few streams may open."""
    return max(1, int(EXTRA_SHARE * limit))
