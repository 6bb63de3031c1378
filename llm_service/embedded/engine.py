"""The engine: requests join and leave at every step, and the next step is launched before the last one is read.

    add_request -> waiting --slot and pages--> prompting --last piece launched--> ready --end token read--> gone

Not thread-safe: owned by `loop.py`. Knows nothing of HTTP, threads or how a step is computed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np
from prometheus_client import Histogram

from llm_service.embedded.answer import WAIT_SHARE, Answer, Next, output_wait_s
from llm_service.embedded.sampling import RepetitionGuard
from llm_service.embedded.schedule import (
    SchedulePolicy,
    Slots,
    StreamPaces,
    choose_rows,
    nearly_due,
    prompt_tokens,
    rank,
)
from llm_service.embedded.steps import (
    BROKEN,
    NO_TOKEN,
    NOT_FINITE,
    PAGE_TOKENS,
    LLMRunner,
    PromptPiece,
    Step,
    pages_for,
)
from llm_service.embedded.types import EngineStats, FinishReason, GenerationOutput, GenerationRequest
from llm_service.errors import EngineError, GenerationFailedError, InvalidGenerationError
from llm_service.vocab import COSYVOICE2, SPEECH_TOKEN_COUNT, SpeechVocabulary
from servicekit.clock import Clock

logger = logging.getLogger(__name__)

METRICS = "cosydit_llm"
"""Beginning of the names of this service's metrics."""
STEP_ROWS_BUCKETS = (1, 2, 4, 8, 16, 32, 64)
UNBOUNDED = np.iinfo(np.int32).max
"""Length in a step of an answer whose real length is checked when a token is read."""
_REASONS = {
    NO_TOKEN: "no token is possible: stop_token_ids, allowed ids and min_tokens exclude all of them",
    NOT_FINITE: "the model gave logits that are not finite; check the checkpoint and dtype",
    BROKEN: "generation failed; see the server's log",
}


@dataclass(frozen=True)
class EngineLimits:
    """What one engine may hold."""

    slots: int  # requests that run together
    max_sequence_tokens: int  # prompt plus answer


class FreeNumbers:
    """Hands out numbers, the lowest free ones first, so that those in use lie close together."""

    def __init__(self, numbers: range) -> None:
        self.count = len(numbers)
        self._free = list(numbers)

    @property
    def free_count(self) -> int:
        """How many are free."""
        return len(self._free)

    def take(self, count: int) -> tuple[int, ...]:
        """Take so many; the caller has looked at `free_count`."""
        return tuple(heappop(self._free) for _ in range(count))

    def give_back(self, numbers: Sequence[int]) -> None:
        """Have numbers free again."""
        for number in numbers:
            heappush(self._free, number)


@dataclass(frozen=True)
class _Flying:
    """A step that was launched and not yet read."""

    step: Step
    answers: Sequence[Answer]  # one for each token


class SpeechLMEngine:
    """Runs many requests on one `LLMRunner`."""

    def __init__(
        self,
        runner: LLMRunner,
        limits: EngineLimits,
        guard: RepetitionGuard,
        clock: Clock,
        vocabulary: SpeechVocabulary = COSYVOICE2,
        pages: int | None = None,
        policy: SchedulePolicy | None = None,
        wait_share: float = WAIT_SHARE,
    ) -> None:
        """Take a warm runner.

        Args:
            runner: its state has `limits.slots` slots and `pages` pages.
            limits: of the engine.
            guard: repetition-aware sampling.
            clock: for leads and waits.
            vocabulary: the checkpoint's numbering.
            pages: of the cache; None: as many as all slots can use.
            policy: of scheduling.
            wait_share: see there; 0: tokens come one by one.
        """
        self._runner, self._vocabulary, self._clock, self._guard = runner, vocabulary, clock, guard
        self.limits = limits
        """What this engine may hold."""
        self._policy, self._wait_share = policy or SchedulePolicy(), wait_share
        self._slots = FreeNumbers(range(limits.slots))
        # Page 0 belongs to the padding rows of a step.
        pages = limits.slots * pages_for(limits.max_sequence_tokens) if pages is None else pages
        self._pages = FreeNumbers(range(1, pages + 1))
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
        self._flying: _Flying | None = None
        self._counters = EngineStats()
        said = "Requests that a step decoded together"
        self.step_rows = Histogram(f"{METRICS}_step_batch_size", said, registry=None, buckets=STEP_ROWS_BUCKETS)

    def idle_s(self) -> float:
        """Return the seconds until a step has something to do: 0 if it has now, infinity if nothing is under way."""
        if self._flying is not None or self._prompting or (self._waiting and self._may_admit):
            return 0.0
        now_s = self._clock.now()
        self._look_who_is_ready()
        return nearly_due(self._ready, self._paces, now_s, self._policy)[1]

    @property
    def speech_ids(self) -> range:
        """LLM ids of the speech tokens, in their order."""
        return range(self._vocabulary.first_id, self._vocabulary.first_id + SPEECH_TOKEN_COUNT)

    def validate(self, request: GenerationRequest) -> None:
        """Check a request against the limits; changes nothing, and may be called from any thread.

        Raises:
            InvalidGenerationError: it can never run here; the message says why.
        """
        tokens, most_tokens = len(request.prompt_ids), self.limits.max_sequence_tokens - 1
        if not 1 <= tokens <= most_tokens:
            raise InvalidGenerationError(f"the prompt has {tokens} tokens; expected 1..{most_tokens}")
        rows = self._runner.limits.vocabulary_rows
        outside = [token_id for token_id in request.prompt_ids if not 0 <= token_id < rows]
        if outside:
            raise InvalidGenerationError(f"prompt token {outside[0]} is out of range 0..{rows - 1}")
        room = self._most_positions - tokens
        if request.params.max_tokens > room:
            raise InvalidGenerationError(
                f"max_tokens is {request.params.max_tokens}, but after a prompt of {tokens} tokens there is "
                f"room for {max(room, 0)}; lower it or shorten the prompt"
            )
        if request.interleaved is not None:
            self._answer(request)  # checks the layout
        if not 0 <= request.continued_tokens < tokens:
            raise InvalidGenerationError(
                f"continued_tokens is {request.continued_tokens}; expected 0..{tokens - 1}, tokens at the prompt's end"
            )

    def feed(self, request_id: str, text_ids: Sequence[int], is_last: bool) -> None:
        """Take more text of an interleaved answer; nothing happens if it is gone already.

        Raises:
            InvalidGenerationError: it can't take the text; the answer is to be aborted.
        """
        answer = self._held.get(request_id) or self._waiting_one(request_id)
        if answer is None:
            return
        answer.push(text_ids, is_last)
        if answer.waits_for_text:
            self._go_on(answer)

    def add_request(self, request: GenerationRequest) -> None:
        """Put a request in the queue, which `validate` has let pass."""
        self._waiting.append(self._answer(request))
        self._may_admit = True

    def abort(self, request_id: str) -> None:
        """Forget a request and free its slot; nothing happens if it is gone already."""
        answer = self._held.get(request_id)
        if answer is not None:
            self._release(answer)
            self._counters.aborted += 1
        elif (waiting := self._waiting_one(request_id)) is not None:
            self._waiting.remove(waiting)
            self._counters.aborted += 1

    def step(self) -> list[GenerationOutput]:
        """Launch the next step, then read the one before it, and itself if it has run; return what came out."""
        now_s = self._clock.now()
        self._admit(now_s)
        launched = self._launch(now_s)
        done, self._flying = self._flying, launched
        if launched is not None:
            self._counters.steps += 1
            if self._runner.limits.is_immediate:
                done, self._flying = launched, None
        return [] if done is None else self._read(done)

    def stats(self) -> EngineStats:
        """Return the counters, and what the engine holds now."""
        return replace(
            self._counters,
            running=len(self._held),
            waiting=len(self._waiting),
            slots=self.limits.slots,
            free_slots=self._slots.free_count,
        )

    @property
    def _most_positions(self) -> int:
        """Of one answer in the cache."""
        return min(self.limits.max_sequence_tokens, self._pages.count * PAGE_TOKENS)

    def _answer(self, request: GenerationRequest) -> Answer:
        return Answer(request, self._vocabulary, self._clock.now(), self._most_positions)

    def _waiting_one(self, request_id: str) -> Answer | None:
        return next((answer for answer in self._waiting if answer.request.request_id == request_id), None)

    def _admit(self, now_s: float) -> None:
        """Give slots and pages to waiting requests, the next in order first; a large one is not overtaken."""
        self._may_admit = False
        while self._waiting and self._slots.free_count:
            answer = min(
                self._waiting, key=lambda each: rank(each.request.priority, each.arrived_s, now_s, self._policy)
            )
            pages = pages_for(answer.most_positions)
            if pages > self._pages.free_count:
                return
            self._waiting.remove(answer)
            (answer.slot,), answer.pages = self._slots.take(1), self._pages.take(pages)
            self._held[answer.request.request_id] = self._by_slot[answer.slot] = answer
            pace = answer.request.tokens_per_s if self._policy.keeps_pace else 0.0
            self._paces.begin(answer.slot, answer.request.head_start_tokens, pace)
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

    def _launch(self, now_s: float) -> _Flying | None:
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

    def _launch_rows(self, near: Slots, now_s: float) -> _Flying:
        max_rows = self._runner.limits.decode_rows
        prompts_wait = bool(self._prompting)
        slots = choose_rows(near, self._paces, prompts_wait, now_s, max_rows, self._policy)
        launched = self._runner.decode(slots)
        self.step_rows.observe(len(slots))
        self._paces.launched[slots] += 1
        self._leave_when_done(slots)
        by_slot = self._by_slot
        return _Flying(launched, [by_slot[slot] for slot in slots.tolist()])

    def _leave_when_done(self, slots: Slots) -> None:
        """Take streams out of the ready ones when all their tokens are drawn or being drawn, or each must be read."""
        done = slots[(self._paces.launched[slots] >= self._most_tokens[slots]) | self._is_interleaved[slots]]
        if len(done):
            self._is_ready[done] = False
            self._has_ready_changed = True

    def _launch_prompts(self) -> _Flying:
        limits = self._runner.limits
        room = min(prompt_tokens(self._ready, self._paces, self._policy), limits.prompt_tokens)
        pieces: list[PromptPiece] = []
        ended: list[Answer] = []
        fed: list[Answer] = []  # whose text must come before they speak
        while self._prompting and room > 0 and len(pieces) < limits.draws:
            answer = self._prompting[0]
            if limits.is_immediate and pieces and len(answer.prompt) > room:
                break
            piece = self._piece(answer, len(answer.prompt) if limits.is_immediate else room)
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
        return _Flying(launched, ended)

    def _piece(self, answer: Answer, room: int) -> PromptPiece:
        begin = answer.prompted
        tokens = answer.prompt[begin : begin + room]
        answer.prompted += len(tokens)
        ends = answer.draws_behind and answer.prompted == len(answer.prompt)
        start = answer.start(self._guard) if begin == 0 else None
        return PromptPiece(answer.slot, answer.prompt_begin + begin, tokens, ends, start)

    def _read(self, flying: _Flying) -> list[GenerationOutput]:
        rows = flying.step.tokens()
        now_s = self._clock.now()
        outputs: list[GenerationOutput] = []
        count = 0
        for answer, row in zip(flying.answers, rows, strict=True):
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
            elif generated >= answer.request.head_start_tokens and now_s >= answer.flush_s:
                since_first_s = now_s - float(self._paces.first_token_s[answer.slot])
                answer.flush_s = now_s + output_wait_s(generated, since_first_s, self._wait_share)
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
        self._slots.give_back([answer.slot])
        self._pages.give_back(answer.pages)
