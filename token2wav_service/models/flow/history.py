"""Which frames of a stream's past are kept, and in what order. Index arithmetic only, no model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from token2wav_service.config import HistoryPolicy, SynthesisPolicy

UPSTREAM_RECENT_FRAMES = 100
UPSTREAM_LIMIT_FRAMES = 5000
"""Frames of prompt and audio (100 s) that the original's position table holds."""

Labels = npt.NDArray[np.int64]
"""Absolute frame numbers: 0..P-1 the prompt's, then the stream's own."""


@dataclass(frozen=True)
class HistoryRules:
    """One policy's decisions for the two caches."""

    policy: HistoryPolicy
    """UPSTREAM or PROMPT_AND_RECENT, never AUTO."""
    estimator_recent: int
    conformer_recent: int

    def merge_order(self, held: int, new: int, prompt: int) -> Labels:
        """Return which of [held | new] estimator columns are kept, in order.

        Args:
            held: columns in the cache.
            new: columns of the newest chunk, numbered after the held ones.
            prompt: prompt frames P.

        Returns:
            Indices into the concatenation [held | new].

        Source: specification section 7 for UPSTREAM, which puts the newest chunk first and therefore keeps the
        newest P columns in block order and the last 100 of what is left.
        """
        own = np.arange(held, held + new)
        past = np.arange(held)
        if self.policy is HistoryPolicy.UPSTREAM:
            order, recent = np.concatenate([own, past]), UPSTREAM_RECENT_FRAMES
        else:
            order, recent = np.concatenate([past, own]), self.estimator_recent
        return prompt_and_tail(order, prompt, recent)

    def conformer_order(self, held: int, new: int, prompt: int, stride: int) -> Labels:
        """Return which of [held | new] conformer columns are kept, time ascending.

        Args:
            held, new, prompt: as in `merge_order`, in columns of the layer's own rate.
            stride: mel frames per column (2 for the token-rate layers).
        """
        order = np.arange(held + new)
        if self.policy is HistoryPolicy.UPSTREAM:
            return order
        return prompt_and_tail(order, prompt, self.conformer_recent // stride)


def prompt_and_tail(order: Labels, prompt: int, recent: int) -> Labels:
    """Keep the first `prompt` and the last `recent` entries when there are more than that."""
    if len(order) <= prompt + recent:
        return order
    return np.concatenate([order[:prompt], order[len(order) - recent :]])


def rules_for(policy: SynthesisPolicy, frames_after: int) -> HistoryRules:
    """Decide the rules of a chunk that brings a stream to `frames_after` frames, prompt included.

    Raises:
        ValueError: the policy is `upstream` and the chunk would pass its limit.
    """
    within = frames_after <= UPSTREAM_LIMIT_FRAMES
    if policy.history is HistoryPolicy.UPSTREAM and not within:
        raise ValueError(
            f"prompt and audio would reach {frames_after / 50:.2f} s, history policy `upstream` ends at "
            f"{UPSTREAM_LIMIT_FRAMES / 50:.0f} s; use `auto` or `prompt_and_recent` for longer streams"
        )
    kind = policy.history
    if kind is HistoryPolicy.AUTO:
        kind = HistoryPolicy.UPSTREAM if within else HistoryPolicy.PROMPT_AND_RECENT
    return HistoryRules(kind, policy.estimator_recent_frames, policy.conformer_recent_frames)


def sorted_recent(labels: Labels, prompt: int) -> Labels:
    """Return indices of the columns that are not the prompt's, oldest first."""
    index = np.flatnonzero(labels >= prompt)
    return index[np.argsort(labels[index], kind="stable")]
