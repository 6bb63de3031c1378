"""What will become of a stream if its next chunk speaks so many tokens: arithmetic on its pace.

    tokens come ─ ready ─┐
    chunks under way ─ free ─┴─ cost ─► audio ── room ──► dry

Pure; knows nothing of clocks, services or policies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gateway.chunking.pace import HELD_BACK_S, Pace
from token2wav_service.contract import LOOKAHEAD_TOKENS, TOKEN_RATE_HZ

CAUTION = 1.25
"""Usual factor on the expected time of work that has not begun."""
MARGIN_S = 0.05
"""Seconds added for the way to the listener and for the scheduler."""
SUSTAINED_SHARE = 0.9
"""A hop sustains playback if token2wav is busy with it for at most this share of its audio."""


@dataclass(frozen=True)
class Outlook:
    """A stream at one moment; all seconds count from there."""

    pace: Pace
    tokens_pending: float
    """Tokens received and not sent yet, look-ahead included."""
    last_hop_tokens: int = 0
    """Tokens of the latest hop; 0: nothing was sent yet."""
    caution: float = CAUTION
    """Factor on what has not begun; 1 for costs that need none."""

    def ready_in_s(self, hop: int) -> float:
        """Until the LLM has sent the hop and its look-ahead, in whole messages."""
        missing = hop + LOOKAHEAD_TOKENS - self.tokens_pending
        if missing <= 0:
            return 0.0
        burst = self.pace.burst_tokens
        return math.ceil(missing / burst) * burst / self.pace.token_rate_hz

    def audio_in_s(self, hop: int) -> float:
        """Until the hop's audio is here."""
        return max(self.ready_in_s(hop), self.pace.free_in_s) + self.pace.cost.of_hop(hop)

    def is_in_time(self, hop: int) -> bool:
        """Whether that is before the listener runs dry, with caution."""
        to_come_s = self.audio_in_s(hop) - self.pace.free_in_s
        return self.pace.free_in_s + self.caution * to_come_s + MARGIN_S <= self.pace.dry_in_s

    def after(self, hop: int) -> Outlook:
        """Return the outlook at the moment when that chunk has been pushed."""
        ready_s, audio_s = self.ready_in_s(hop), self.audio_in_s(hop)
        spoken_s = hop / TOKEN_RATE_HZ - (0.0 if self.last_hop_tokens else HELD_BACK_S)
        dry_s = audio_s if math.isinf(self.pace.dry_in_s) else max(self.pace.dry_in_s, audio_s)
        pace = replace(self.pace, free_in_s=audio_s - ready_s, dry_in_s=dry_s + max(spoken_s, 0.0) - ready_s)
        tokens = self.tokens_pending + ready_s * self.pace.token_rate_hz - hop
        return Outlook(pace, tokens, hop, self.caution)

    def sustaining_hop(self) -> int | None:
        """Return the shortest hop that token2wav speaks faster than it is played; None if there is none."""
        per_token_s = SUSTAINED_SHARE / TOKEN_RATE_HZ - self.pace.cost.per_token_s
        if per_token_s <= 0:
            return None
        return math.ceil(self.pace.cost.of_hop(0) / per_token_s)
