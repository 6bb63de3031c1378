"""Decides what the next step is for, by what listeners need. Pure: time and counts are passed in.

A listener hears 25 tokens a second from the first one on. A stream's *lead* is the speech it has beyond what its
listener can have heard, in seconds. First tokens come before everybody's later ones: prompts run as soon as a step has
ended, then streams that have few tokens, then those with the least lead. A stream far ahead gives way where that makes
the step shorter for those who need it; as its lead melts, its turn comes again, so nobody starves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from llm_service.vocab import SPEECH_TOKENS_PER_SECOND

Slots = npt.NDArray[np.int32]


@dataclass(frozen=True)
class SchedulePolicy:
    """What the scheduler goes by."""

    first_tokens: int = 32
    """A stream is young until it has so many: the first window of token2wav, and some more."""
    max_lead_s: float = 5.0
    """A stream further ahead gives way while others wait."""
    free_rows: int = 64
    """A step of so many rows takes little longer than one of a single row: up to here nobody gives way."""
    piece_tokens: int = 256
    """Prompt tokens of a step while streams past their first tokens run: what these wait for in between."""
    burst_piece_tokens: int = 2048
    """Prompt tokens of a step otherwise."""
    aging_s: float = 5.0
    """A request that has waited so long goes one priority up."""


class Waiting(Protocol):
    """What the order of beginning goes by."""

    @property
    def priority(self) -> int:
        """1 begins first."""
        ...

    @property
    def arrived_s(self) -> float:
        """When it came."""
        ...


def next_to_begin(waiting: Sequence[Waiting], now_s: float, policy: SchedulePolicy) -> int:
    """Return the index of the request that begins next: by priority, which grows with the wait, then by arrival."""

    def rank(index: int) -> tuple[int, float]:
        entry = waiting[index]
        aged = int((now_s - entry.arrived_s) / policy.aging_s)
        return entry.priority - aged, entry.arrived_s

    return min(range(len(waiting)), key=rank)


@dataclass
class StreamPaces:
    """How far each slot's stream is; arrays by slot, written by the engine."""

    launched: npt.NDArray[np.int32]  # tokens that were or are being drawn
    first_token_s: npt.NDArray[np.float64]  # when the first came; infinity before

    @classmethod
    def for_slots(cls, count: int) -> StreamPaces:
        """Make them for so many slots."""
        return cls(np.zeros(count, np.int32), np.full(count, np.inf))

    def leads_s(self, slots: Slots, now_s: float) -> npt.NDArray[np.float64]:
        """Return the lead of each of these slots' streams, in seconds."""
        heard_s = np.maximum(now_s - self.first_token_s[slots], 0.0)
        leads: npt.NDArray[np.float64] = self.launched[slots] / SPEECH_TOKENS_PER_SECOND - heard_s
        return leads


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
    # So many prompt tokens take about as long as a decode step of so many rows.
    return min(max(policy.piece_tokens, len(ready)), policy.burst_piece_tokens)
