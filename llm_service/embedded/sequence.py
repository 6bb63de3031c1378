"""One request inside the engine: its sampler, when it ends, what it hands out. Knows no tensors, no HTTP."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
import numpy.typing as npt

from llm_service.embedded.interleaving import WHOLE_TEXT, Feed, Interleaver
from llm_service.embedded.sampling import RepetitionGuard, TokenSampler
from llm_service.embedded.types import FinishReason, GenerationOutput, GenerationRequest, SamplingParams
from llm_service.errors import InvalidGenerationError
from llm_service.vocab import COSYVOICE2, SPEECH_TOKEN_COUNT, SpeechVocabulary


class Sequence:
    """A request from its arrival to its last token."""

    def __init__(
        self,
        request: GenerationRequest,
        guard: RepetitionGuard,
        vocabulary: SpeechVocabulary = COSYVOICE2,
        positions: int = 0,
    ) -> None:
        """Begin with a request that was checked; `positions` are those of its slot, for text that is still to come."""
        self.request = request
        self._vocabulary = vocabulary
        self.slot: int | None = None  # while running
        self.fed_tokens = 0  # in the slot
        self._generated = 0
        self._latest = request.prompt_ids  # to be fed next, where the text is whole
        self.interleaver: Interleaver | None = None
        if request.interleaved is not None:
            layout = (request.prompt_ids, request.interleaved, vocabulary)
            self.interleaver = Interleaver(*layout, positions, request.continued_tokens)
            closing = {*self._rows(vocabulary.end_ids), *self._rows(request.params.stop_token_ids)}
            self._rows_of_ends = np.array(sorted(closing - set(self._rows([vocabulary.fill_id]))), dtype=np.int64)
        self._sampler = TokenSampler(
            request.params,
            guard,
            rows=vocabulary.head_rows,
            prompt_rows=self._rows(request.prompt_ids),
            end_rows=self._rows(vocabulary.end_ids),
            stop_rows=self._rows(request.params.stop_token_ids),
            barred_rows=self._barred_rows(request.params),
        )

    def push(self, text_ids: Collection[int], is_last: bool) -> None:
        """Take more text of an answer that is interleaved.

        Raises:
            InvalidGenerationError: the answer takes none, has had its last, or has no room for it.
        """
        if self.interleaver is None:
            raise InvalidGenerationError(WHOLE_TEXT)
        self.interleaver.push(text_ids, is_last)

    @property
    def can_go_on(self) -> bool:
        """Whether `take` has something."""
        return self.interleaver is None or self.interleaver.can_go_on

    def take(self) -> Feed | None:
        """Return what goes into the LLM next, which then counts as fed; None while text must come first."""
        feed = Feed(self._latest, draws=True) if self.interleaver is None else self.interleaver.take()
        if feed is not None:
            self.fed_tokens += len(feed.token_ids)
        return feed

    def advance(self, logits: npt.NDArray[np.float32]) -> GenerationOutput:
        """Draw the next token from logits [rows of the head] and say what may be handed out.

        Raises:
            GenerationFailedError: no token can be drawn.
        """
        row = self._sampler.sample(logits, self._barred_now())
        token_id = self._vocabulary.first_id + row
        if self.interleaver is not None and self.interleaver.is_fill(token_id):
            self.interleaver.note_fill()
            return GenerationOutput(self.request.request_id, fills=(0,))
        self._generated += 1
        self._latest = (token_id,)
        if self.interleaver is not None and row < SPEECH_TOKEN_COUNT:
            self.interleaver.note(token_id)
        if row >= SPEECH_TOKEN_COUNT or token_id in self.request.params.stop_token_ids:
            return self._output(row if self.request.params.include_end_token else None, FinishReason.STOP, token_id)
        return self._output(row, FinishReason.LENGTH if self._generated >= self._most_tokens() else None)

    def _barred_now(self) -> npt.NDArray[np.int64] | None:
        """Return the rows that must not be drawn while text is to come."""
        return None if self.interleaver is None or self.interleaver.is_closed else self._rows_of_ends

    def _most_tokens(self) -> int:
        """Return how long the answer may be; a text that came in pieces bounds it once it is whole."""
        asked = self.request.params.max_tokens
        return asked if self.interleaver is None else self.interleaver.most_tokens(asked, self._generated)

    def _output(self, row: int | None, reason: FinishReason | None, stop_reason: int | None = None) -> GenerationOutput:
        rows = () if row is None else (row,)
        ids = tuple(self._vocabulary.first_id + each for each in rows)
        text = "".join(map(self._vocabulary.row_text, rows))
        return GenerationOutput(self.request.request_id, ids, text, reason, stop_reason)

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
