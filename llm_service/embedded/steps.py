"""What an engine asks of whatever computes its steps: pieces of prompts in, drawn rows of the speech head out.

Two things compute steps: `llm_service.embedded.eager` in plain torch, `llm_service.gpu.step_runner` on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]

PAGE_TOKENS = 64
"""Tokens of a page of keys and values."""
SEEN, BANNED, CLOSING = 1, 2, 4
"""Bits of each head row in an answer's flags: spoken or heard before; impossible; impossible before min_tokens."""
NO_TOKEN, NOT_FINITE, BROKEN = -1, -2, -3
"""Drawn instead of a row: no token is possible; the logits are not finite; the computation itself failed."""


@dataclass(frozen=True)
class AnswerStart:
    """All that must be known of an answer before its first token, or before it goes on behind more text."""

    slot: int
    seed: int  # 64 bits
    prompt_tokens: int
    drawn: int  # tokens of this answer that stand in the prompt already
    min_tokens: int  # those drawn already included
    window: int  # of repetition-aware sampling; 0 is off
    repeat_limit: int  # occurrences in the window from which a token is drawn again
    top_k: int  # 0 is no limit
    temperature: float
    top_p: float
    min_p: float
    penalty: float
    recent_rows: tuple[int, ...]  # head rows drawn last, the latest at the end
    pages: tuple[int, ...]
    flags: npt.NDArray[np.int8]  # [rows]


@dataclass(frozen=True)
class PromptPiece:
    """Some tokens of one prompt."""

    slot: int
    first_position: int
    token_ids: Ints  # LLM ids
    ends: bool  # the prompt's last tokens: its answer's first token is drawn
    start: AnswerStart | None  # with the first piece


class Step(Protocol):
    """A step that was launched."""

    def tokens(self) -> list[int]:
        """Wait for it; return the head rows drawn in order, or what was drawn instead of one."""
        ...


@dataclass(frozen=True)
class RunnerLimits:
    """What one step may hold."""

    decode_rows: int
    prompt_tokens: int
    draws: int  # most answers that begin in one step
    vocabulary_rows: int  # LLM ids are below
    is_immediate: bool = False
    """Whether a step has run when it was launched. Prompts are then not cut: a piece computes as its whole prompt."""


class LLMRunner(Protocol):
    """Computes steps; one is launched while the one before it may still run."""

    @property
    def limits(self) -> RunnerLimits: ...

    def decode(self, slots: Ints) -> Step: ...

    def prompt(self, pieces: Sequence[PromptPiece]) -> Step: ...


def pages_for(tokens: int) -> int:
    """Return how many pages so many tokens fill."""
    return -(-tokens // PAGE_TOKENS)
