"""What will become of a stream if its next chunk speaks so many tokens: arithmetic on its pace.

    tokens come ─ ready ─┐
    chunks under way ─ free ─┴─ cost ─► audio ── room ──► dry

Pure; knows nothing of clocks, services or policies.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from gateway.chunking.pace import CAUTION, HELD_BACK_S, Pace
from token2wav_service.contract import LOOKAHEAD_TOKENS, TOKEN_RATE_HZ

MARGIN_S = 0.05
"""Seconds added for the way to the listener and for the scheduler."""
SUSTAINED_SHARE = 0.9
"""A hop sustains playback if token2wav is busy with it for at most this share of its audio."""


class Outlook(NamedTuple):
    """A stream at one moment; all seconds count from there."""

    pace: Pace
    """As measured; `free_in_s` and `dry_in_s` below say the same for this moment."""
    tokens_pending: float
    """Tokens received and not sent yet, look-ahead included."""
    last_hop_tokens: int
    """Tokens of the latest hop; 0: nothing was sent yet."""
    free_in_s: float
    """Until token2wav has answered every chunk under way."""
    dry_in_s: float
    """Until the listener has played all audio delivered and under way; inf before the first chunk."""
    caution: float
    """Factor on what has not begun; 1 for costs that need none."""

    @classmethod
    def measured(cls, pace: Pace, tokens_pending: float, last_hop_tokens: int = 0, caution: float = CAUTION) -> Outlook:
        """Return the outlook at the moment when the pace was measured."""
        return cls(pace, tokens_pending, last_hop_tokens, pace.free_in_s, pace.dry_in_s, caution)

    def ready_in_s(self, hop: int) -> float:
        """Until the LLM has sent the hop and its look-ahead, in whole messages."""
        missing = hop + LOOKAHEAD_TOKENS - self.tokens_pending
        if missing <= 0:
            return 0.0
        burst = self.pace.burst_tokens
        return math.ceil(missing / burst) * burst / self.pace.token_rate_hz

    def audio_in_s(self, hop: int) -> float:
        """Until the hop's audio is here."""
        return max(self.ready_in_s(hop), self.free_in_s) + self.pace.cost.of_hop(hop)

    def is_in_time(self, hop: int) -> bool:
        """Whether that is before the listener runs dry, with caution."""
        to_come_s = self.audio_in_s(hop) - self.free_in_s
        return self.free_in_s + self.caution * to_come_s + MARGIN_S <= self.dry_in_s

    def longest_in_time(self, hops: Sequence[int]) -> int | None:
        """Return the longest hop whose audio is in time; None if none is.

        Args:
            hops: to choose from, shortest first; a longer one's audio never comes earlier.
        """
        if self.is_in_time(hops[-1]):  # more often than not
            return hops[-1]
        fitting = bisect_left(hops, True, hi=len(hops) - 1, key=lambda hop: not self.is_in_time(hop))
        return hops[fitting - 1] if fitting else None

    def after(self, hop: int) -> Outlook:
        """Return the outlook at the moment when that chunk has been pushed."""
        ready_s, audio_s = self.ready_in_s(hop), self.audio_in_s(hop)
        spoken_s = hop / TOKEN_RATE_HZ - (0.0 if self.last_hop_tokens else HELD_BACK_S)
        dry_s = audio_s if math.isinf(self.dry_in_s) else max(self.dry_in_s, audio_s)
        dry_in_s = dry_s + max(spoken_s, 0.0) - ready_s
        tokens = self.tokens_pending + ready_s * self.pace.token_rate_hz - hop
        return Outlook(self.pace, tokens, hop, audio_s - ready_s, dry_in_s, self.caution)

    def sustaining_hop(self) -> int | None:
        """Return the shortest hop that token2wav speaks faster than it is played; None if there is none."""
        per_token_s = SUSTAINED_SHARE / TOKEN_RATE_HZ - self.pace.cost.per_token_s
        if per_token_s <= 0:
            return None
        return math.ceil(self.pace.cost.of_hop(0) / per_token_s)
