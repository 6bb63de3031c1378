"""One request inside the engine: its sampler, its stop conditions, what it may hand out. Knows no tensors, no HTTP."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from llm_service.embedded.sampling import RepetitionGuard, TokenSampler
from llm_service.embedded.stop_strings import Released, StopStringFilter
from llm_service.embedded.types import FinishReason, GenerationOutput, GenerationRequest, SamplingParams
from llm_service.vocab import END_IDS, END_TOKENS, SPEECH_HEAD_ROWS, SPEECH_TOKEN_OFFSET, speech_token_text


class Sequence:
    """A request from its arrival to its last token."""

    def __init__(self, request: GenerationRequest, guard: RepetitionGuard) -> None:
        self.request = request
        self.slot: int | None = None  # while running
        self.last_token_id = request.prompt_ids[-1]
        self._generated = 0
        self._stops = StopStringFilter(request.params.stop)
        self._sampler = TokenSampler(
            request.params,
            guard,
            rows=SPEECH_HEAD_ROWS,
            prompt_rows=_rows(request.prompt_ids),
            end_rows=_rows(END_IDS),
            stop_rows=_rows(request.params.stop_token_ids),
            barred_rows=_barred_rows(request.params),
        )

    @property
    def next_position(self) -> int:
        """Where the latest token goes in the slot."""
        return len(self.request.prompt_ids) + self._generated - 1

    def advance(self, logits: npt.NDArray[np.float32]) -> GenerationOutput:
        """Draw the next token from logits [6564] and say what may be handed out.

        Raises:
            GenerationFailedError: no token can be drawn.
        """
        token_id = SPEECH_TOKEN_OFFSET + self._sampler.sample(logits)
        self._generated += 1
        self.last_token_id = token_id
        is_end = token_id in END_IDS
        if is_end or token_id in self.request.params.stop_token_ids:
            return self._stopped_by_token(token_id)
        released = self._stops.push(token_id, speech_token_text(token_id - SPEECH_TOKEN_OFFSET))
        if released.stop is not None:
            return self._output(released, FinishReason.STOP, released.stop)
        if self._generated >= self.request.params.max_tokens:
            return self._output(_joined(released, self._stops.flush()), FinishReason.LENGTH)
        return self._output(released)

    def _stopped_by_token(self, token_id: int) -> GenerationOutput:
        released = self._stops.flush()
        if self.request.params.include_end_token:
            released = _joined(released, Released((token_id,), _token_text(token_id)))
        return self._output(released, FinishReason.STOP, token_id)

    def _output(
        self, released: Released, reason: FinishReason | None = None, stop_reason: str | int | None = None
    ) -> GenerationOutput:
        return GenerationOutput(self.request.request_id, released.token_ids, released.text, reason, stop_reason)


def _rows(llm_ids: tuple[int, ...] | frozenset[int]) -> list[int]:
    """Return the head rows of those ids that have one."""
    return [llm_id - SPEECH_TOKEN_OFFSET for llm_id in llm_ids if 0 <= llm_id - SPEECH_TOKEN_OFFSET < SPEECH_HEAD_ROWS]


def _barred_rows(params: SamplingParams) -> set[int]:
    """Return the head rows that are never drawn."""
    barred = set(_rows(params.banned_token_ids))
    if params.allowed_token_ids is not None:
        barred |= set(range(SPEECH_HEAD_ROWS)) - set(_rows(params.allowed_token_ids))
    return barred


def _token_text(token_id: int) -> str:
    if token_id in END_IDS:
        return END_TOKENS[END_IDS.index(token_id)]
    return speech_token_text(token_id - SPEECH_TOKEN_OFFSET)


def _joined(first: Released, second: Released) -> Released:
    return Released(first.token_ids + second.token_ids, first.text + second.text)
