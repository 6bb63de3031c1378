"""The embedded engine's vocabulary: requests, outputs, counters. Knows nothing of HTTP or tensors."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from llm_service.embedded.interleaving import InterleavedPrompt
from llm_service.errors import EngineError

DEFAULT_PRIORITY = 10
"""Priorities are 1 (first) to 10."""


class FinishReason(str, Enum):
    """Why an answer ended, in OpenAI's words."""

    STOP = "stop"  # an end token or a stop token
    LENGTH = "length"  # max_tokens


_GREEDY_BELOW = 1e-5
"""Temperature below which the likeliest token is drawn, as in vLLM: scores divided by less are not finite."""


@dataclass(frozen=True)
class SamplingParams:
    """How to draw the tokens of one request; ids are LLM ids."""

    max_tokens: int
    seed: int
    min_tokens: int = 0
    temperature: float = 0.8  # 0 is greedy
    top_p: float = 0.95
    top_k: int = 50  # 0 or less: no limit
    min_p: float = 0.0  # least share of the likeliest token's probability
    repetition_penalty: float = 1.1  # 1 is none
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False  # end tokens are impossible
    allowed_token_ids: frozenset[int] | None = None  # nothing else is drawn; None: no such limit

    def __post_init__(self) -> None:
        if self.temperature < _GREEDY_BELOW:
            object.__setattr__(self, "temperature", 0.0)


@dataclass(frozen=True)
class GenerationRequest:
    """One answer to make; `request_id` is ours."""

    request_id: str
    prompt_ids: tuple[int, ...]  # LLM ids
    params: SamplingParams
    trace_id: str | None = None  # for the log
    priority: int = DEFAULT_PRIORITY  # who begins earlier
    continued_tokens: int = 0  # at the prompt's end: tokens of this very answer, drawn by a server that was lost
    tokens_per_s: float = 0.0  # needed behind the head start; 0: as fast as can be. The eager engine does not rest
    head_start_tokens: int = 0  # tokens that it needs at once
    interleaved: InterleavedPrompt | None = None  # the text comes by `feed` while speech is drawn; None: all is there

    @property
    def has_listener(self) -> bool:
        """Tell whether somebody hears the answer while it is drawn, so that it can come too late."""
        return self.tokens_per_s > 0 and self.interleaved is None


@dataclass(frozen=True)
class GenerationOutput:
    """What one step added to one request. The last one has a finish reason or an error."""

    request_id: str
    token_ids: tuple[int, ...] = ()  # LLM ids
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None  # the LLM id that ended it
    error: EngineError | None = None
    fills: tuple[int, ...] = ()  # the LLM asked for text before its block was full: behind so many `token_ids`

    @property
    def is_last(self) -> bool:
        return self.finish_reason is not None or self.error is not None


@dataclass
class EngineStats:
    """What an engine counts as it goes on, and what it holds at one moment."""

    running: int = 0
    waiting: int = 0
    slots: int = 0
    free_slots: int = 0
    steps: int = 0
    generated_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0
