"""The GPU engine: requests join and leave at every step, and the next step is launched before the last one is read.

    add_request -> waiting --slot and pages--> prompting --last piece launched--> ready --end token read--> gone

Stands where `llm_service.embedded.engine.SpeechLMEngine` stands: not thread-safe, owned by `loop.py`. Knows nothing of
HTTP, threads or kernels.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from llm_service.embedded.engine import EngineLimits, SlotAllocator, check_request
from llm_service.embedded.interleaving import Interleaver
from llm_service.embedded.sampling import RepetitionGuard
from llm_service.embedded.types import EngineStats, FinishReason, GenerationOutput, GenerationRequest
from llm_service.errors import (
    DeadlineExceededError,
    EngineError,
    GenerationFailedError,
    InvalidGenerationError,
)
from llm_service.gpu.answer import Answer, EventPacking, Next, TokenTexts
from llm_service.gpu.schedule import (
    SchedulePolicy,
    Slots,
    StreamPaces,
    choose_rows,
    nearly_due,
    next_to_begin,
    prompt_tokens,
)
from llm_service.gpu.slot_state import PAGE_TOKENS, PagePool, pages_for
from llm_service.gpu.step_runner import LaunchedStep, PromptPiece, StepRunner
from llm_service.gpu.weights import SpeechIds
from llm_service.vocab import SpeechVocabulary, VocabularyError, vocabulary_of_ids
from servicekit.clock import Clock

logger = logging.getLogger(__name__)

MAX_WINDOW_TOKENS = 256
"""Longest window of repetition-aware sampling; the device reads all of it at once."""
UNBOUNDED = np.iinfo(np.int32).max
"""Length for the device of an answer whose real length is checked when a token is read."""


@dataclass(frozen=True)
class _Step:
    """A step that was launched and not yet read."""

    launched: LaunchedStep
    answers: Sequence[Answer]  # one for each token


class GpuEngine:
    """Runs many requests on one `StepRunner`."""

    def __init__(
        self,
        runner: StepRunner,
        ids: SpeechIds,
        vocabulary_rows: int,
        limits: EngineLimits,
        pages: int,
        guard: RepetitionGuard,
        clock: Clock,
        policy: SchedulePolicy | None = None,
        packing: EventPacking | None = None,
    ) -> None:
        """Take a warm runner.

        Args:
            runner: its state has `limits.slots` slots and `pages` pages.
            ids: the checkpoint's numbering.
            vocabulary_rows: LLM ids are below.
            limits: `max_step_tokens` is not looked at: prompts run in pieces.
            pages: of the cache.
            guard: repetition-aware sampling.
            clock: for leads, waits and deadlines.
            policy: of scheduling.
            packing: of outputs.
        """
        self._runner, self._ids, self._clock, self._guard = runner, ids, clock, guard
        self._limits, self._vocabulary_rows = limits, vocabulary_rows
        self._policy, self._packing = policy or SchedulePolicy(), packing or EventPacking()
        self._texts = TokenTexts(ids)
        self._slots, self._pages = SlotAllocator(limits.slots), PagePool(pages)
        self._waiting: list[Answer] = []
        self._prompting: list[Answer] = []
        self._held: dict[str, Answer] = {}  # those with a slot, by request id
        self._by_slot: list[Answer | None] = [None] * limits.slots
        self._is_ready = np.zeros(limits.slots, bool)
        self._is_interleaved = np.zeros(limits.slots, bool)
        self._most_tokens = np.zeros(limits.slots, np.int32)
        self._paces = StreamPaces.for_slots(limits.slots)
        self._ready: Slots = np.zeros(0, np.int32)
        self._has_ready_changed = False
        self._ran_prompt = False
        self._may_admit = False  # whether a request has come or a place become free since it was last looked
        self._flying: _Step | None = None
        self._deadlines: list[tuple[float, int, Answer]] = []  # a heap
        self._counter = itertools.count()
        self._counters = EngineStats()

    @property
    def limits(self) -> EngineLimits:
        """What this engine may hold."""
        return self._limits

    @property
    def has_work(self) -> bool:
        """Tell whether anything is under way."""
        return bool(self._held or self._waiting or self._flying is not None)

    def idle_s(self) -> float:
        """Return the seconds until a step has something to do: 0 if it has now, infinity if nothing is under way."""
        if self._flying is not None or self._prompting or (self._waiting and self._may_admit):
            return 0.0
        now_s = self._clock.now()
        self._look_who_is_ready()
        _, idle_s = nearly_due(self._ready, self._paces, now_s, self._policy)
        deadline_s = self._deadlines[0][0] - now_s if self._deadlines else math.inf
        return max(0.0, min(idle_s, deadline_s))

    @property
    def speech_ids(self) -> range:
        """LLM ids of the speech tokens, in their order."""
        return range(self._ids.first_id, self._ids.first_id + min(self._ids.end_rows))

    def validate(self, request: GenerationRequest) -> None:
        """Check a request against the limits; changes nothing, and may be called from any thread.

        Raises:
            InvalidGenerationError: it can never run here; the message says why.
        """
        tokens = len(request.prompt_ids)
        most_prompt_tokens = self._limits.max_sequence_tokens - 1
        check_request(request, most_prompt_tokens, self._vocabulary_rows, self._most_positions - tokens)
        self._interleaver(request)
        if not 0 <= request.continued_tokens < tokens:
            raise InvalidGenerationError(
                f"continued_tokens is {request.continued_tokens}; expected 0..{tokens - 1}, tokens at the prompt's end"
            )

    def feed(self, request_id: str, text_ids: Sequence[int], is_last: bool) -> None:
        """Take more text of an interleaved answer; nothing happens if it is gone already.

        Raises:
            InvalidGenerationError: it can't take the text; the answer is to be aborted.
        """
        waiting = (answer for answer in self._waiting if answer.request.request_id == request_id)
        answer = self._held.get(request_id) or next(waiting, None)
        if answer is None:
            return
        answer.push(text_ids, is_last)
        if answer.waits_for_text:
            self._go_on(answer)

    def add_request(self, request: GenerationRequest) -> None:
        """Put a request in the queue.

        Raises:
            InvalidGenerationError: it can never run here.
        """
        self.validate(request)
        answer = self._answer(request)
        self._waiting.append(answer)
        self._may_admit = True
        if request.deadline_s is not None:
            heappush(self._deadlines, (request.deadline_s, next(self._counter), answer))

    def abort(self, request_id: str) -> None:
        """Forget a request and free its slot; nothing happens if it is gone already."""
        answer = self._held.get(request_id)
        if answer is not None:
            self._release(answer)
            self._counters.aborted += 1
            return
        for waiting in self._waiting:
            if waiting.request.request_id == request_id:
                self._waiting.remove(waiting)
                waiting.is_over = True
                self._counters.aborted += 1
                return

    def step(self) -> list[GenerationOutput]:
        """Launch the next step, then read the one before it; return what came out of that one."""
        now_s = self._clock.now()
        outputs = self._expire(now_s)
        self._admit(now_s)
        launched = self._launch(now_s)
        done, self._flying = self._flying, launched
        if launched is not None:
            self._counters.steps += 1
        if done is not None:
            outputs += self._read(done)
        return outputs

    def stats(self) -> EngineStats:
        """Return the counters."""
        return self._counters.holding(
            running=len(self._held),
            waiting=len(self._waiting),
            slots=self._limits.slots,
            free_slots=self._slots.free_count,
        )

    def check_integrity(self) -> None:
        """Check that every slot and page is either free or held by exactly one request."""
        held = list(self._held.values())
        slots = [answer.slot for answer in held]
        pages = [page for answer in held for page in answer.pages]
        assert len(set(slots)) == len(slots) and len(set(pages)) == len(pages)
        assert len(slots) + self._slots.free_count == self._limits.slots
        assert len(pages) + self._pages.free_count == self._pages.count
        assert all(self._by_slot[answer.slot] is answer for answer in held)

    @property
    def _most_positions(self) -> int:
        """Of one answer in the cache."""
        return min(self._limits.max_sequence_tokens, self._pages.count * PAGE_TOKENS)

    def _vocabulary(self) -> SpeechVocabulary:
        try:
            return vocabulary_of_ids(self._ids.first_id)
        except VocabularyError as err:
            raise InvalidGenerationError(
                f"interleaved answers need the numbering of a known family: {err}; send the text whole"
            ) from err

    def _answer(self, request: GenerationRequest) -> Answer:
        given = (request, self._ids, self._texts, self._clock.now())
        return Answer(*given, self._interleaver(request), self._most_positions)

    def _interleaver(self, request: GenerationRequest) -> Interleaver | None:
        if request.interleaved is None:
            return None
        layout = (request.prompt_ids, request.interleaved, self._vocabulary())
        return Interleaver(*layout, self._most_positions, request.continued_tokens)

    def _expire(self, now_s: float) -> list[GenerationOutput]:
        """Fail what has passed its deadline."""
        if not self._deadlines or now_s < self._deadlines[0][0]:
            return []
        late = []
        while self._deadlines and now_s >= self._deadlines[0][0]:
            answer = heappop(self._deadlines)[2]
            late += [] if answer.is_over else [answer]
        return [self._fail(answer, DeadlineExceededError("the request's deadline has passed")) for answer in late]

    def _admit(self, now_s: float) -> None:
        """Give slots and pages to waiting requests, the next in order first; a large one is not overtaken."""
        self._may_admit = False
        while self._waiting and self._slots.free_count:
            index = next_to_begin(self._waiting, now_s, self._policy)
            answer = self._waiting[index]
            pages = pages_for(answer.most_positions)
            if pages > self._pages.free_count:
                return
            del self._waiting[index]
            answer.slot, answer.pages = self._slots.allocate(), self._pages.allocate(pages)
            self._held[answer.request.request_id] = self._by_slot[answer.slot] = answer
            self._paces.begin(answer.slot, answer.request.head_start_tokens, answer.request.tokens_per_s)
            self._is_interleaved[answer.slot] = answer.is_interleaved
            self._most_tokens[answer.slot] = UNBOUNDED if answer.is_interleaved else answer.most_tokens
            self._go_on(answer)

    def _go_on(self, answer: Answer) -> None:
        """Have what comes next in an answer run; text that came goes before whole prompts, which are longer."""
        following = answer.go_on()
        if following is Next.PROMPT:
            self._prompting.insert(0 if answer.is_interleaved else len(self._prompting), answer)
        elif following is Next.DECODE:
            self._is_ready[answer.slot] = True
            self._has_ready_changed = True

    def _launch(self, now_s: float) -> _Step | None:
        """Launch a step of prompts or of answers, in turn while there are both; None where neither must run."""
        self._look_who_is_ready()
        near, _ = nearly_due(self._ready, self._paces, now_s, self._policy)
        if self._prompting and not (self._ran_prompt and len(near)):
            self._ran_prompt = True
            return self._launch_prompts()
        self._ran_prompt = False
        return self._launch_rows(near, now_s) if len(near) else None

    def _look_who_is_ready(self) -> None:
        if self._has_ready_changed:
            self._ready = np.flatnonzero(self._is_ready).astype(np.int32)
            self._has_ready_changed = False

    def _launch_rows(self, near: Slots, now_s: float) -> _Step:
        max_rows = self._runner.sizes.decode_rows[-1]
        prompts_wait = bool(self._prompting)
        slots = choose_rows(near, self._paces, prompts_wait, now_s, max_rows, self._policy)
        launched = self._runner.decode(slots)
        self._counters.steps_by_rows[len(slots)] += 1
        self._paces.launched[slots] += 1
        self._leave_when_done(slots)
        by_slot = self._by_slot
        return _Step(launched, [by_slot[slot] for slot in slots.tolist()])

    def _leave_when_done(self, slots: Slots) -> None:
        """Take streams out of the ready ones when all their tokens are drawn or being drawn, or each must be read."""
        done = slots[(self._paces.launched[slots] >= self._most_tokens[slots]) | self._is_interleaved[slots]]
        if len(done):
            self._is_ready[done] = False
            self._has_ready_changed = True

    def _launch_prompts(self) -> _Step:
        room = min(prompt_tokens(self._ready, self._paces, self._policy), self._runner.sizes.prompt_rows[-1])
        pieces: list[PromptPiece] = []
        ended: list[Answer] = []
        fed: list[Answer] = []  # whose text must come before they speak
        while self._prompting and room and len(pieces) < self._runner.sizes.draws:
            answer = self._prompting[0]
            piece = self._piece(answer, room)
            pieces.append(piece)
            room -= len(piece.token_ids)
            if answer.prompted < len(answer.prompt):
                continue
            self._prompting.pop(0)
            (ended if piece.ends else fed).append(answer)
        launched = self._runner.prompt(pieces)
        slots = np.array([answer.slot for answer in ended], np.int32)
        self._paces.launched[slots] += 1
        self._is_ready[slots] = True
        self._has_ready_changed = True
        self._leave_when_done(slots)
        for answer in fed:
            self._go_on(answer)
        return _Step(launched, ended)

    def _piece(self, answer: Answer, room: int) -> PromptPiece:
        begin = answer.prompted
        tokens = answer.prompt[begin : begin + room]
        answer.prompted += len(tokens)
        ends = answer.draws_behind and answer.prompted == len(answer.prompt)
        start = answer.start(self._guard) if begin == 0 else None
        return PromptPiece(answer.slot, answer.prompt_begin + begin, tokens, ends, start)

    def _read(self, step: _Step) -> list[GenerationOutput]:
        rows = step.launched.tokens()
        now_s = self._clock.now()
        outputs: list[GenerationOutput] = []
        packing = self._packing
        count = 0
        for answer, row in zip(step.answers, rows, strict=True):
            if answer.is_over:
                continue
            if row < 0 or row in answer.closing_rows or self._is_interleaved[answer.slot]:
                outputs.append(self._read_closely(answer, row, now_s))
                continue
            count += 1
            answer.generated = generated = answer.generated + 1
            answer.pending.append(row)
            if generated == 1:
                self._paces.first_token_s[answer.slot] = now_s
            if generated >= answer.request.params.max_tokens:
                outputs.append(self._finish(answer, answer.flush(FinishReason.LENGTH)))
            elif generated >= answer.request.head_start_tokens and (
                generated <= (answer.request.head_start_tokens or packing.single_tokens)
                or now_s >= answer.flush_s
                or (len(answer.pending) >= packing.most_tokens)
            ):
                answer.flush_s = now_s + packing.longest_wait_s
                outputs.append(answer.flush())
        self._counters.generated_tokens += count
        return outputs

    def _read_closely(self, answer: Answer, row: int, now_s: float) -> GenerationOutput:
        """Read a row that is no plain token in the middle of an answer."""
        if row < 0:
            return self._fail(answer, GenerationFailedError(_REASONS[row]))
        self._counters.generated_tokens += 1
        if not answer.note(row):
            self._go_on(answer)
            return GenerationOutput(answer.request.request_id, fills=(0,))
        answer.generated += 1
        if answer.generated == 1:
            self._paces.first_token_s[answer.slot] = now_s
        output = answer.accept_closely(row)
        if output.is_last:
            return self._finish(answer, output)
        self._go_on(answer)
        return output

    def _finish(self, answer: Answer, output: GenerationOutput) -> GenerationOutput:
        self._release(answer)
        self._counters.finished += 1
        return output

    def _fail(self, answer: Answer, error: EngineError) -> GenerationOutput:
        logger.error("request %s failed: %s", answer.request.request_id, error)
        if answer in self._waiting:
            self._waiting.remove(answer)
            answer.is_over = True
        else:
            self._release(answer)
        self._counters.failed += 1
        return GenerationOutput(answer.request.request_id, error=error)

    def _release(self, answer: Answer) -> None:
        """Free slot and pages. A step under way may still write there: what comes after it is ordered behind it."""
        answer.is_over = True
        self._may_admit = True
        del self._held[answer.request.request_id]
        if answer in self._prompting:
            self._prompting.remove(answer)
        self._by_slot[answer.slot] = None
        if self._is_ready[answer.slot]:
            self._is_ready[answer.slot] = False
            self._has_ready_changed = True
        self._slots.free(answer.slot)
        self._pages.free(answer.pages)


_REASONS = {
    -1: "no token is possible: stop_token_ids, banned or allowed ids and min_tokens exclude all of them",
    -2: "the model gave logits that are not finite; check the checkpoint and dtype",
}
