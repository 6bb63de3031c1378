"""One request inside the engine: its sampler, its stop conditions, what it may hand out. Knows no tensors, no HTTP."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from llm_service.embedded.sampling import RepetitionGuard, TokenSampler
from llm_service.embedded.stop_strings import Released, StopStringFilter
from llm_service.embedded.types import FinishReason, GenerationOutput, GenerationRequest, SamplingParams
from llm_service.vocab import COSYVOICE2, SPEECH_TOKEN_COUNT, SpeechVocabulary


class Sequence:
    """A request from its arrival to its last token."""

    def __init__(
        self, request: GenerationRequest, guard: RepetitionGuard, vocabulary: SpeechVocabulary = COSYVOICE2
    ) -> None:
        self.request = request
        self._vocabulary = vocabulary
        self.slot: int | None = None  # while running
        self.last_token_id = request.prompt_ids[-1]
        self._generated = 0
        self._stops = StopStringFilter(request.params.stop)
        self._sampler = TokenSampler(
            request.params,
            guard,
            rows=vocabulary.head_rows,
            prompt_rows=self._rows(request.prompt_ids),
            end_rows=self._rows(vocabulary.end_ids),
            stop_rows=self._rows(request.params.stop_token_ids),
            barred_rows=self._barred_rows(request.params),
        )

    @property
    def next_position(self) -> int:
        """Where the latest token goes in the slot."""
        return len(self.request.prompt_ids) + self._generated - 1

    def advance(self, logits: npt.NDArray[np.float32]) -> GenerationOutput:
        """Draw the next token from logits [rows of the head] and say what may be handed out.

        Raises:
            GenerationFailedError: no token can be drawn.
        """
        row = self._sampler.sample(logits)
        token_id = self._vocabulary.first_id + row
        self._generated += 1
        self.last_token_id = token_id
        if row >= SPEECH_TOKEN_COUNT or token_id in self.request.params.stop_token_ids:
            return self._stopped_by_token(token_id, row)
        released = self._stops.push(token_id, self._vocabulary.row_text(row))
        if released.stop is not None:
            return self._output(released, FinishReason.STOP, released.stop)
        if self._generated >= self.request.params.max_tokens:
            return self._output(_joined(released, self._stops.flush()), FinishReason.LENGTH)
        return self._output(released)

    def _stopped_by_token(self, token_id: int, row: int) -> GenerationOutput:
        released = self._stops.flush()
        if self.request.params.include_end_token:
            released = _joined(released, Released((token_id,), self._vocabulary.row_text(row)))
        return self._output(released, FinishReason.STOP, token_id)

    def _output(
        self, released: Released, reason: FinishReason | None = None, stop_reason: str | int | None = None
    ) -> GenerationOutput:
        return GenerationOutput(self.request.request_id, released.token_ids, released.text, reason, stop_reason)

    def _rows(self, llm_ids: Iterable[int]) -> list[int]:
        """Return the head rows of those ids that have one."""
        first_id, count = self._vocabulary.first_id, self._vocabulary.head_rows
        return [llm_id - first_id for llm_id in llm_ids if 0 <= llm_id - first_id < count]

    def _barred_rows(self, params: SamplingParams) -> set[int]:
        """Return the head rows that are never drawn."""
        barred = set(self._rows(params.banned_token_ids))
        if params.allowed_token_ids is not None:
            barred |= set(range(self._vocabulary.head_rows)) - set(self._rows(params.allowed_token_ids))
        return barred


def _joined(first: Released, second: Released) -> Released:
    return Released(first.token_ids + second.token_ids, first.text + second.text)
