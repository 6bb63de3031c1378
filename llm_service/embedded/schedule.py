"""Decides what the next step computes, by the needs of listeners. Pure: time and counts are passed in.

A listener hears 25 tokens a second from the first one on. A stream's *lead* is the speech it has beyond what its
listener can have heard, in seconds. First tokens come before everybody's later ones: prompts run as soon as a step has
ended, then streams that have few tokens, then those with the least lead. A stream far ahead gives way where that makes
the step shorter for those who need it; as its lead melts, its turn comes again, so nobody starves.

A stream whose caller named a pace is *due* when it falls behind it. Steps run only while somebody is due, which leaves
the GPU to token2wav in between. Whoever is nearly due takes part in a step that runs anyway, so that streams share
their steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llm_service.vocab import SPEECH_TOKENS_PER_SECOND

Slots = npt.NDArray[np.int32]


@dataclass(frozen=True)
class SchedulePolicy:
    """What the scheduler goes by."""

    first_tokens: int = 32
    """Number of tokens up to which a stream is young: the first window of token2wav, and some more."""
    max_lead_s: float = 5.0
    """Seconds ahead of playback beyond which a stream gives way while others wait."""
    free_rows: int = 64
    """Rows up to which a step takes little longer than with one row, so that nobody gives way."""
    piece_tokens: int = 256
    """Prompt tokens of a step while streams past their first tokens run, which wait for the step."""
    burst_piece_tokens: int = 2048
    """Prompt tokens of a step otherwise."""
    aging_s: float = 5.0
    """Seconds of waiting after which a request's priority rises by one."""
    early_tokens: float = 8.0
    """Tokens ahead of its own pace up to which a stream takes part in others' steps."""
    keeps_pace: bool = True
    """Whether streams rest when they are ahead of the pace that their callers named."""


def rank(priority: int, arrived_s: float, now_s: float, policy: SchedulePolicy) -> tuple[int, float]:
    """Return who begins first, the least of all: by priority, 1 to 10, which rises with the wait, then by arrival."""
    return priority - int((now_s - arrived_s) / policy.aging_s), arrived_s


@dataclass
class StreamPaces:
    """How far each slot's stream is; arrays by slot, written by the engine."""

    launched: npt.NDArray[np.int32]  # tokens that were or are being drawn
    first_token_s: npt.NDArray[np.float64]  # when the first came; infinity before
    head_start: npt.NDArray[np.int32]  # tokens before which a stream is due at once
    token_s: npt.NDArray[np.float64]  # between two tokens at the stream's pace; 0: it is always due

    @classmethod
    def for_slots(cls, count: int) -> StreamPaces:
        """Make them for so many slots."""
        return cls(np.zeros(count, np.int32), np.full(count, np.inf), np.zeros(count, np.int32), np.zeros(count))

    def begin(self, slot: int, head_start_tokens: int, tokens_per_s: float) -> None:
        """Give a slot to a new stream; `tokens_per_s` 0 is as fast as can be."""
        self.launched[slot] = 0
        self.first_token_s[slot] = np.inf
        self.head_start[slot] = max(head_start_tokens, 1)
        self.token_s[slot] = 1.0 / tokens_per_s if tokens_per_s else 0.0

    def due_in_s(self, slots: Slots, now_s: float) -> npt.NDArray[np.float64]:
        """Return the seconds until each of these slots' streams is due; 0 or less: it is."""
        token_s = self.token_s[slots]
        paced = self.launched[slots] - self.head_start[slots]
        due_s: npt.NDArray[np.float64] = np.where(
            (token_s == 0) | (paced < 0), 0.0, self.first_token_s[slots] + (paced + 1) * token_s - now_s
        )
        return due_s

    def leads_s(self, slots: Slots, now_s: float) -> npt.NDArray[np.float64]:
        """Return the lead of each of these slots' streams, in seconds."""
        heard_s = np.maximum(now_s - self.first_token_s[slots], 0.0)
        leads: npt.NDArray[np.float64] = self.launched[slots] / SPEECH_TOKENS_PER_SECOND - heard_s
        return leads


def nearly_due(ready: Slots, paces: StreamPaces, now_s: float, policy: SchedulePolicy) -> tuple[Slots, float]:
    """Return the slots that may take part in a step now, and the seconds until one must run.

    Args:
        ready: slots whose streams may go on, rising.
        paces: how far they are.
        now_s: the time.
        policy: see there.

    Returns:
        The slots, rising, `ready` itself if that is all of them, and the seconds: 0 if somebody is due, infinity if
        there is nobody. The slots are none where nobody is due.
    """
    if not len(ready):
        return ready, np.inf
    due_s = paces.due_in_s(ready, now_s)
    soonest_s = float(due_s.min())
    if soonest_s > 0:
        return ready[:0], soonest_s
    is_near = due_s <= policy.early_tokens * paces.token_s[ready]
    return (ready if is_near.all() else ready[is_near]), 0.0


def choose_rows(
    ready: Slots, paces: StreamPaces, prompts_wait: bool, now_s: float, max_rows: int, policy: SchedulePolicy
) -> Slots:
    """Return the slots that the next decode step advances, in rising order; `ready` itself if that is all of them.

    Args:
        ready: slots whose streams may go on, rising.
        paces: how far they are.
        prompts_wait: prompts are there to be run.
        now_s: the time.
        max_rows: of a step.
        policy: see there.
    """
    if len(ready) <= policy.free_rows:
        return ready
    is_young = paces.launched[ready] < policy.first_tokens
    if not (prompts_wait or len(ready) > max_rows or (is_young.any() and not is_young.all())):
        return ready
    leads = paces.leads_s(ready, now_s)
    needy = int((is_young | (leads <= policy.max_lead_s)).sum())
    count = min(max(needy, policy.free_rows), max_rows)
    if count >= len(ready):
        return ready
    return np.sort(ready[np.lexsort((leads, ~is_young))[:count]])


def prompt_tokens(ready: Slots, paces: StreamPaces, policy: SchedulePolicy) -> int:
    """Return how many prompt tokens the next step may run."""
    if not (paces.launched[ready] >= policy.first_tokens).any():
        return policy.burst_piece_tokens
    # As many prompt tokens as there are rows take about as long as the decode step itself.
    return min(max(policy.piece_tokens, len(ready)), policy.burst_piece_tokens)
