"""What will become of a stream if its next chunk speaks so many tokens: arithmetic on its pace.

    tokens come ─ ready ─┐
    chunks under way ─ free ─┴─ cost ─► audio ── room ──► dry

Pure; knows nothing of clocks, services or policies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from gateway.chunking.pace import HELD_BACK_S, Pace
from token2wav_service.contract import LOOKAHEAD_TOKENS, TOKEN_RATE_HZ

CAUTION = 1.25
"""Usual factor on the expected time of work that has not begun."""
MARGIN_S = 0.05
"""Seconds added for the way to the listener and for the scheduler."""
SUSTAINED_SHARE = 0.9
"""A hop sustains playback if token2wav is busy with it for at most this share of its audio."""


class Outlook(NamedTuple):
    """A stream at one moment; all seconds count from there."""

    pace: Pace
    """As measured; that token2wav is free and the listener dry is said below, for this moment."""
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

    def longest_in_time(self, hops: Sequence[int]) -> int | None:
        """Return the longest hop whose audio comes before the listener runs dry, with caution; None if none does.

        Args:
            hops: to choose from, shortest first; a longer one's audio never comes earlier.
        """
        # NOTE: called some ten times a request, so the loop says `ready_in_s` and `of_hop` without calling them.
        pace, pending, _, free_s, dry_s, caution = self
        burst, rate_hz, cost = pace.burst_tokens, pace.token_rate_hz, pace.cost
        fixed_s, per_token_s = cost.fixed_s, cost.per_token_s
        low, high = 0, len(hops)
        middle = high - 1  # NOTE: all are in time more often than not
        while low < high:
            tokens = hops[middle] + LOOKAHEAD_TOKENS
            audio_s = fixed_s + per_token_s * tokens
            ready_s = math.ceil((tokens - pending) / burst) * burst / rate_hz if tokens > pending else 0.0
            audio_s += ready_s if ready_s > free_s else free_s
            if free_s + caution * (audio_s - free_s) + MARGIN_S <= dry_s:
                low = middle + 1
            else:
                high = middle
            middle = (low + high) // 2
        return hops[low - 1] if low else None

    def after(self, hop: int) -> Outlook:
        """Return the outlook at the moment when that chunk has been pushed."""
        pace, pending, last_hop, free_s, dry_s, caution = self
        ready_s = self.ready_in_s(hop)
        audio_s = (ready_s if ready_s > free_s else free_s) + pace.cost.of_hop(hop)
        spoken_s = hop / TOKEN_RATE_HZ if last_hop else max(hop / TOKEN_RATE_HZ - HELD_BACK_S, 0.0)
        if dry_s == math.inf or dry_s < audio_s:
            dry_s = audio_s
        tokens = pending + ready_s * pace.token_rate_hz - hop
        return Outlook(pace, tokens, hop, audio_s - ready_s, dry_s + spoken_s - ready_s, caution)

    def sustaining_hop(self) -> int | None:
        """Return the shortest hop that token2wav speaks faster than it is played; None if there is none."""
        per_token_s = SUSTAINED_SHARE / TOKEN_RATE_HZ - self.pace.cost.per_token_s
        if per_token_s <= 0:
            return None
        return math.ceil(self.pace.cost.of_hop(0) / per_token_s)
