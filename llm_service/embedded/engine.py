"""The continuous-batching engine: requests join and leave at every step. Not thread-safe; `loop.py` owns it.

One `step` advances all running requests by a token, then lets waiting ones in while there are slots and token budget.
Knows nothing of HTTP, threads or time.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from llm_service.embedded.interleaving import Feed, Interleaver
from llm_service.embedded.model import DecodeRow
from llm_service.embedded.sampling import RepetitionGuard
from llm_service.embedded.sequence import Sequence
from llm_service.embedded.types import EngineStats, GenerationOutput, GenerationRequest
from llm_service.errors import EngineError, GenerationFailedError, InvalidGenerationError
from llm_service.vocab import COSYVOICE2, SPEECH_TOKEN_COUNT, SpeechVocabulary

logger = logging.getLogger(__name__)

Logits = npt.NDArray[np.float32]


class SlotModel(Protocol):
    """What the engine needs of a model whose cache is allocated; see `SpeechLanguageModel`."""

    def prefill(self, slot: int, token_ids: SequenceOf[int], start: int = 0) -> Logits: ...

    def decode(self, rows: SequenceOf[DecodeRow]) -> list[Logits]: ...

    def clear_slot(self, slot: int) -> None: ...


@dataclass(frozen=True)
class EngineLimits:
    """What one engine may hold."""

    slots: int  # requests that run together
    max_sequence_tokens: int  # prompt plus answer
    max_step_tokens: int  # tokens computed in a step; more than `slots`

    @property
    def max_prompt_tokens(self) -> int:
        """Longest prompt that fits a step in which every other slot decodes."""
        return min(self.max_step_tokens - self.slots, self.max_sequence_tokens - 1)


class SlotAllocator:
    """Hands out slots; the lowest free one first, so that few forwards cover them."""

    def __init__(self, slots: int) -> None:
        self._free = list(range(slots))
        self._slots = slots

    @property
    def free_count(self) -> int:
        """Free slots."""
        return len(self._free)

    def allocate(self) -> int:
        """Take the lowest free slot; the caller has looked at `free_count`."""
        slot = min(self._free)
        self._free.remove(slot)
        return slot

    def free(self, slot: int) -> None:
        """Give a slot back."""
        assert slot not in self._free and 0 <= slot < self._slots
        self._free.append(slot)


def check_request(request: GenerationRequest, max_prompt_tokens: int, vocabulary_rows: int, room: int) -> None:
    """Check a request against an engine's limits.

    Args:
        request: not changed.
        max_prompt_tokens: in the longest prompt that can be computed.
        vocabulary_rows: prompt ids are below it.
        room: tokens that an answer may have behind this prompt.

    Raises:
        InvalidGenerationError: it can never run; the message says why.
    """
    prompt_tokens = len(request.prompt_ids)
    if not 1 <= prompt_tokens <= max_prompt_tokens:
        raise InvalidGenerationError(f"the prompt has {prompt_tokens} tokens; expected 1..{max_prompt_tokens}")
    outside = [token_id for token_id in request.prompt_ids if not 0 <= token_id < vocabulary_rows]
    if outside:
        raise InvalidGenerationError(f"prompt token {outside[0]} is out of range 0..{vocabulary_rows - 1}")
    if request.params.max_tokens > room:
        raise InvalidGenerationError(
            f"max_tokens is {request.params.max_tokens}, but after a prompt of {prompt_tokens} tokens there is "
            f"room for {max(room, 0)}; lower it or shorten the prompt"
        )


class SpeechLMEngine:
    """Runs many requests on one model."""

    def __init__(
        self,
        model: SlotModel,
        limits: EngineLimits,
        guard: RepetitionGuard,
        vocabulary: SpeechVocabulary = COSYVOICE2,
    ) -> None:
        self._model = model
        self._vocabulary = vocabulary
        self._limits = limits
        self._guard = guard
        self._allocator = SlotAllocator(limits.slots)
        self._waiting: deque[Sequence] = deque()
        self._running: dict[str, Sequence] = {}
        self._counters = EngineStats()

    @property
    def limits(self) -> EngineLimits:
        """What this engine may hold."""
        return self._limits

    @property
    def has_work(self) -> bool:
        """Tell whether a step would do anything."""
        can_admit = bool(self._waiting) and self._allocator.free_count > 0
        return can_admit or any(sequence.can_go_on for sequence in self._running.values())

    def idle_s(self) -> float:
        """Return the seconds until a step has something to do: 0 or, if nothing is under way, infinity."""
        return 0.0 if self.has_work else math.inf

    @property
    def speech_ids(self) -> range:
        """LLM ids of the speech tokens, in their order."""
        return range(self._vocabulary.first_id, self._vocabulary.first_id + SPEECH_TOKEN_COUNT)

    def validate(self, request: GenerationRequest) -> None:
        """Check a request against the limits; changes nothing, and may be called from any thread.

        Raises:
            InvalidGenerationError: it can never run here; the message says why.
        """
        room = self._limits.max_sequence_tokens - len(request.prompt_ids)
        check_request(request, self._limits.max_prompt_tokens, self._vocabulary.table_rows, room)
        if request.interleaved is not None:
            layout = (request.prompt_ids, request.interleaved, self._vocabulary)
            Interleaver(*layout, continued_tokens=request.continued_tokens)

    def add_request(self, request: GenerationRequest) -> None:
        """Put a request in the queue.

        Raises:
            InvalidGenerationError: it can never run here.
        """
        self.validate(request)
        self._waiting.append(Sequence(request, self._guard, self._vocabulary, self._limits.max_sequence_tokens))

    def feed(self, request_id: str, text_ids: SequenceOf[int], is_last: bool) -> None:
        """Take more text of an interleaved answer; nothing happens if it is gone already.

        Raises:
            InvalidGenerationError: it can't take the text; the answer is to be aborted.
        """
        sequence = self._running.get(request_id) or next(
            (waiting for waiting in self._waiting if waiting.request.request_id == request_id), None
        )
        if sequence is not None:
            sequence.push(text_ids, is_last)

    def abort(self, request_id: str) -> None:
        """Forget a request and free its slot; nothing happens if it is gone already."""
        running = self._running.get(request_id)
        if running is not None:
            self._release(running)
            self._counters.aborted += 1
            return
        for sequence in self._waiting:
            if sequence.request.request_id == request_id:
                self._waiting.remove(sequence)
                self._counters.aborted += 1
                return

    def step(self) -> list[GenerationOutput]:
        """Advance every running request by a token, then admit waiting ones; return what came out."""
        self._counters.steps += 1
        feeds = [(sequence, feed) for sequence in self._running.values() if (feed := sequence.take()) is not None]
        is_single = [feed.draws and len(feed.token_ids) == 1 for _, feed in feeds]
        pieces = [each for each, single in zip(feeds, is_single, strict=True) if not single]
        outputs = self._decode([each for each, single in zip(feeds, is_single, strict=True) if single])
        for sequence, feed in pieces:
            outputs += self._run_piece(sequence, feed)
        return outputs + self._admit(self._limits.max_step_tokens - sum(len(feed.token_ids) for _, feed in feeds))

    def stats(self) -> EngineStats:
        """Return the counters."""
        return self._counters.holding(
            running=len(self._running),
            waiting=len(self._waiting),
            slots=self._limits.slots,
            free_slots=self._allocator.free_count,
        )

    def check_integrity(self) -> None:
        """Check that every slot is either free or held by exactly one running request."""
        held = [sequence.slot for sequence in self._running.values()]
        assert None not in held and len(set(held)) == len(held)
        assert len(held) + self._allocator.free_count == self._limits.slots

    def _decode(self, feeds: SequenceOf[tuple[Sequence, Feed]]) -> list[GenerationOutput]:
        """Advance the sequences whose next input is the token that they drew last."""
        if not feeds:
            return []
        self._counters.steps_by_rows[len(feeds)] += 1
        try:
            logits = self._model.decode([_decode_row(*each) for each in feeds])
        except Exception:
            # Only a run alone shows which request is at fault; writing the same keys and values again does no harm.
            logger.exception("a step of %d requests failed; running them one by one", len(feeds))
            return [self._decode_alone(*each) for each in feeds]
        return [self._advance(sequence, row) for (sequence, _), row in zip(feeds, logits, strict=True)]

    def _decode_alone(self, sequence: Sequence, feed: Feed) -> GenerationOutput:
        try:
            logits = self._model.decode([_decode_row(sequence, feed)])[0]
        except Exception as err:
            return self._fail(sequence, err)
        return self._advance(sequence, logits)

    def _admit(self, budget_tokens: int) -> list[GenerationOutput]:
        outputs: list[GenerationOutput] = []
        while self._waiting and self._allocator.free_count:
            prompt_ids = self._waiting[0].request.prompt_ids
            if len(prompt_ids) > budget_tokens:
                break
            budget_tokens -= len(prompt_ids)
            outputs += self._start(self._waiting.popleft())
        return outputs

    def _start(self, sequence: Sequence) -> list[GenerationOutput]:
        sequence.slot = self._allocator.allocate()
        self._running[sequence.request.request_id] = sequence
        feed = sequence.take()
        return [] if feed is None else self._run_piece(sequence, feed)

    def _run_piece(self, sequence: Sequence, feed: Feed) -> list[GenerationOutput]:
        """Run several tokens of one request; where text must come before it speaks, nothing is drawn."""
        assert sequence.slot is not None
        start = sequence.fed_tokens - len(feed.token_ids)
        further = (start,) if start else ()
        try:
            logits = self._model.prefill(sequence.slot, feed.token_ids, *further)
        except Exception as err:
            return [self._fail(sequence, err)]
        return [self._advance(sequence, logits)] if feed.draws else []

    def _advance(self, sequence: Sequence, logits: Logits) -> GenerationOutput:
        try:
            output = sequence.advance(logits)
        except Exception as err:
            return self._fail(sequence, err)
        self._counters.generated_tokens += 1
        if output.is_last:
            self._release(sequence)
            self._counters.finished += 1
        return output

    def _fail(self, sequence: Sequence, cause: Exception) -> GenerationOutput:
        request_id = sequence.request.request_id
        logger.error("request %s failed", request_id, exc_info=cause)
        if sequence.slot is not None:
            self._model.clear_slot(sequence.slot)
        self._release(sequence)
        self._counters.failed += 1
        error = cause if isinstance(cause, EngineError) else GenerationFailedError(f"generation failed: {cause}")
        return GenerationOutput(request_id, error=error)

    def _release(self, sequence: Sequence) -> None:
        del self._running[sequence.request.request_id]
        if sequence.slot is not None:
            self._allocator.free(sequence.slot)
            sequence.slot = None


def _decode_row(sequence: Sequence, feed: Feed) -> DecodeRow:
    assert sequence.slot is not None
    return DecodeRow(sequence.slot, feed.token_ids[-1], sequence.fed_tokens - 1)
