"""Says how many streams a service may have open at once, from how much time to spare it serves them with. Pure.

Additive increase, multiplicative decrease: the limit grows while most pieces of work are done early, and shrinks when
many are done with hardly any time left, which is before a listener has nothing to play. While more streams are open
than the limit allows, none is admitted, and it does not shrink further.

A stream's later pieces cost more than its first ones, and come seconds after them. So the limit follows at once what is
made only as far as `COLD_STREAMS` new streams a second need; above, it is fast only while pieces come early.

A piece of work is a chunk of audio, or some tokens. Its *room* is the time from its order until its listener has
nothing left; its *slack* is what was left of that time when it was done.
"""

from __future__ import annotations

from servicekit.clock import Clock

STREAMS, OPEN_STREAMS, NEXT_END_S = "streams", "open-streams", "next-end-s"
"""Names under which a service tells its limit, its open streams and the seconds until one is likely to end, as metadata
behind the answer to a gRPC health check."""
COLD_STREAMS = 64
"""Limit of a GPU before anything was measured; of CPU cores it is the least."""
LEAST_STREAMS = 4
"""Fewest streams: a host slower than speech still serves a few."""
RESERVED_SHARE, EXTRA_SHARE = 0.1, 0.25
"""Share of the slots, one at least, that is kept for callers with few streams; and share of the limit by which they may
exceed it."""
FIRST_ROOM_S = 1.0
"""Room of a stream's first piece: nobody listens yet, but somebody waits."""
TIGHT_S, TIGHT_SHARE = 0.15, 0.25
"""A piece is tight if it was done with less slack than either: so many seconds, such a share of its room."""
_WINDOW_S, _WINDOW_PIECES = 0.5, 16
"""Least length of a window, and fewest pieces in it, after which the limit may change."""
_FEW, _SOME, _MANY, _HALF, _MOST = 0.05, 0.1, 1 / 3, 1 / 2, 0.6
"""Shares of a window's pieces. With more than some tight ones the limit falls: while streams begin, up to a tenth is.
It grows until many take over half of their room, or half of them if their mean slack is comfortable, `_AHEAD_S`;
where as many streams are open as can be served, more do. It may grow fastest while few do. Where most do, more streams
bring no more speech a second and leave each less time to spare: it shrinks."""
_USED_SHARE = 0.9
"""A service that makes so many seconds of speech a second can serve as many streams, or as many as are open if it is
ahead of their listeners. The limit falls to this share of them at the lowest, and grows at once to this share of what
is made while it is below what was proven. It grows further only if this share of it is open."""
_IN_USE = 0.6
"""Share of the limit from which on the open streams put it to the test. With fewer, some pieces are tight because many
streams have begun at once, what was made is what was asked for, and what was not proven is forgotten."""
_GROWTH, _AHEAD_GROWTH, _FASTEST_GROWTH, _LEAST_GROWTH, _SHRINKING = 0.01, 0.06, 0.1, 0.1, 0.03
"""Growth in a window, as a share: usual, with comfortable slack, and at most; the least number of streams; and by which
share it shrinks."""
_AHEAD_S = 0.7
"""Slack that is comfortable."""
_CALM_WINDOWS = 60
"""Windows after a fall until the limit may grow fastest."""
_FIRST_LASTED_S, _NEWEST_SHARE = 6.0, 0.1
"""Seconds that a stream is taken to last before one has ended, and weight of the newest in the mean."""


class StreamLimit:
    """The limit of one engine. Not thread-safe: its owner serialises access."""

    def __init__(self, most: int, clock: Clock, *, cold: int = COLD_STREAMS, is_fixed: bool = False) -> None:
        """Begin cold.

        Args:
            most: the limit never exceeds it.
            cold: limit before anything was measured.
            is_fixed: the limit is `most`, for work that no listener waits for.
        """
        self._most = most
        self._is_fixed = is_fixed
        self._clock = clock
        self._limit = float(most if is_fixed else min(cold, most))
        self._windows = _CALM_WINDOWS
        """Windows since the limit fell."""
        self._mean_slack_s = FIRST_ROOM_S
        """Of the newest window; while it rises, a fall has shown its effect."""
        self._proven = COLD_STREAMS * _FIRST_LASTED_S
        """Limit up to which it follows what is made: for `COLD_STREAMS` new ones a second, what it fell to or kept."""
        self._lasted_s = _FIRST_LASTED_S
        self._begin_window()

    @property
    def streams(self) -> int:
        """Streams that may be open now."""
        return int(self._limit)

    def next_end_s(self, open_streams: int) -> float:
        """Expect the seconds until a stream ends that leaves room for another one."""
        return (1 + max(0, open_streams - self.streams)) * self._lasted_s / max(1, open_streams)

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
        self._pieces += 1
        self._slow += slack_s < room_s / 2
        self._slack_s += slack_s
        self._tight += slack_s < min(TIGHT_S, TIGHT_SHARE * room_s)
        self._made_s += made_s
        window_s = self._clock.now() - self._began_s
        if self._pieces >= _WINDOW_PIECES and window_s >= _WINDOW_S:
            self._judge(self._made_s / window_s, open_streams)
            self._begin_window()

    def _begin_window(self) -> None:
        self._began_s = self._clock.now()
        self._pieces = self._slow = self._tight = 0
        self._made_s = self._slack_s = 0.0

    def _judge(self, made_s_per_s: float, open_streams: int) -> None:
        """Change the limit by the pieces of the window that ends now."""
        tight, slack_s = self._tight / self._pieces, self._slack_s / self._pieces
        is_better, self._mean_slack_s = slack_s > self._mean_slack_s, slack_s
        is_ahead = slack_s >= _AHEAD_S and self._limit > COLD_STREAMS
        self._windows += 1
        if tight > _SOME:
            if open_streams <= self._limit and not is_better:
                fallen = self._limit - tight**2 * (self._limit - open_streams / 2)
                served = _USED_SHARE * min(made_s_per_s, open_streams)
                self._limit = max(fallen, served, float(min(LEAST_STREAMS, self._most)))
                if open_streams >= _IN_USE * self._limit:
                    self._windows = 0
                    self._proven = min(self._proven, self._limit)
        elif self._slow <= (_HALF if is_ahead else _MANY) * self._pieces:
            is_calm = self._windows > _CALM_WINDOWS and self._slow <= _FEW * self._pieces
            grown = max(self._limit, min(_USED_SHARE * made_s_per_s, self._proven))
            if open_streams >= _USED_SHARE * self.streams:
                share = _FASTEST_GROWTH if is_calm else _AHEAD_GROWTH if is_ahead else _GROWTH
                grown = max(grown, self._limit + max(_LEAST_GROWTH, share * self._limit))
                self._proven = max(self._proven, grown if is_calm else 0.0)
            elif open_streams < _IN_USE * self._limit:
                grown = min(grown, max(self._proven, COLD_STREAMS * _FIRST_LASTED_S))
            self._limit = min(grown, float(self._most))
        elif self._slow > _MOST * self._pieces and open_streams >= _IN_USE * self._limit and self._limit > COLD_STREAMS:
            self._limit *= 1 - _SHRINKING


def reserved_streams(slots: int) -> int:
    """Return how many slots are kept for callers with few streams."""
    return max(1, int(RESERVED_SHARE * slots))


def extra_streams(limit: int) -> int:
    """Return how many streams beyond a limit callers with few streams may open."""
    return max(1, int(EXTRA_SHARE * limit))
