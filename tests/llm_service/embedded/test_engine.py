"""The continuous-batching engine: independence of neighbours, bounds, stops, aborts, failures, and its thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from llm_service.embedded.engine import EngineLimits, Logits, SpeechLMEngine
from llm_service.embedded.loop import EngineLoop
from llm_service.embedded.model import DecodeRow, SpeechLanguageModel
from llm_service.embedded.sampling import RepetitionGuard
from llm_service.embedded.types import FinishReason, GenerationOutput, GenerationRequest, SamplingParams
from llm_service.errors import (
    EngineStoppedError,
    GenerationFailedError,
    InvalidGenerationError,
    QueueFullError,
)
from llm_service.vocab import (
    END_IDS,
    SOS_ID,
    SPEECH_HEAD_ROWS,
    SPEECH_TOKEN_OFFSET,
    TASK_ID,
    format_speech_tokens,
    is_speech_llm_id,
)
from servicekit.clock import SystemClock

LIMITS = EngineLimits(slots=4, max_sequence_tokens=300, max_step_tokens=400)
WAIT_S = 30.0


def make_engine(
    model: SpeechLanguageModel, limits: EngineLimits = LIMITS, guard: RepetitionGuard | None = None
) -> SpeechLMEngine:
    model.allocate_cache(model.cache_shape(limits.slots, limits.max_sequence_tokens), rows_per_forward=3)
    return SpeechLMEngine(model, limits, guard or RepetitionGuard())


def make_request(name: str, text_tokens: int = 5, **params: object) -> GenerationRequest:
    sampling = replace(SamplingParams(max_tokens=40, seed=3), **params)  # type: ignore[arg-type]
    return GenerationRequest(name, (SOS_ID, *range(text_tokens), TASK_ID), sampling)


def run_all(engine: SpeechLMEngine) -> dict[str, list[GenerationOutput]]:
    outputs: dict[str, list[GenerationOutput]] = {}
    while engine.has_work:
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
        engine.check_integrity()
    return outputs


def run_one(engine: SpeechLMEngine, request: GenerationRequest) -> tuple[list[int], GenerationOutput]:
    engine.add_request(request)
    outputs = run_all(engine)[request.request_id]
    return tokens_of(outputs), outputs[-1]


def tokens_of(outputs: Sequence[GenerationOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


@pytest.mark.slow
def test_equal_seeds_give_equal_tokens_whatever_runs_beside(model: SpeechLanguageModel) -> None:
    requests = [make_request(str(index), 3 + 9 * index, seed=index, max_tokens=60) for index in range(7)]
    alone = {request.request_id: run_one(make_engine(model), request)[0] for request in requests}
    engine = make_engine(model)
    for request in reversed(requests):
        engine.add_request(request)
    together = run_all(engine)
    assert {name: tokens_of(outputs) for name, outputs in together.items()} == alone
    assert max(engine.stats().steps_by_rows) == LIMITS.slots
    assert len({tuple(tokens) for tokens in alone.values()}) == len(alone)


@pytest.mark.slow
def test_only_speech_tokens_come_out_and_answers_vary(model: SpeechLanguageModel) -> None:
    engine = make_engine(model)
    answers = [run_one(engine, make_request("a", seed=seed, min_tokens=10, max_tokens=200)) for seed in range(12)]
    assert all(is_speech_llm_id(token) for tokens, _ in answers for token in tokens)
    assert len({token for tokens, _ in answers for token in tokens}) > 50
    reasons = {last.finish_reason for _, last in answers}
    assert FinishReason.STOP in reasons


def test_text_is_the_tokens_as_text(model: SpeechLanguageModel) -> None:
    engine = make_engine(model)
    engine.add_request(make_request("a"))
    for output in run_all(engine)["a"]:
        assert output.text == format_speech_tokens(token - SPEECH_TOKEN_OFFSET for token in output.token_ids)


def test_max_tokens_ends_with_length(model: SpeechLanguageModel) -> None:
    tokens, last = run_one(make_engine(model), make_request("a", max_tokens=17, ignore_eos=True))
    assert (len(tokens), last.finish_reason) == (17, FinishReason.LENGTH)


@pytest.mark.slow
def test_no_answer_is_shorter_than_min_tokens(model: SpeechLanguageModel) -> None:
    engine = make_engine(model)
    lengths = [len(run_one(engine, make_request("a", seed=seed, min_tokens=30))[0]) for seed in range(10)]
    assert min(lengths) >= 30


def test_a_stop_token_ends_the_answer_and_is_not_handed_out(model: SpeechLanguageModel) -> None:
    engine = make_engine(model)
    tokens, _ = run_one(engine, make_request("a", ignore_eos=True))
    stop = tokens[8]
    stopped, last = run_one(engine, make_request("b", ignore_eos=True, stop_token_ids=frozenset({stop})))
    assert stopped == tokens[: tokens.index(stop)]
    assert (last.finish_reason, last.stop_reason) == (FinishReason.STOP, stop)


def test_a_stop_string_ends_the_answer(model: SpeechLanguageModel) -> None:
    engine = make_engine(model)
    tokens, _ = run_one(engine, make_request("a", ignore_eos=True))
    stop = format_speech_tokens(token - SPEECH_TOKEN_OFFSET for token in tokens[8:10])
    stopped, last = run_one(engine, make_request("b", ignore_eos=True, stop=("never", stop)))
    assert stopped == tokens[:8]
    assert (last.finish_reason, last.stop_reason) == (FinishReason.STOP, stop)


def test_the_end_token_is_handed_out_on_request(model: SpeechLanguageModel) -> None:
    engine = make_engine(model)
    tokens, last = run_one(engine, make_request("a", max_tokens=290, include_end_token=True))
    assert last.finish_reason is FinishReason.STOP
    assert tokens[-1] == END_IDS[0] and last.text.endswith("<|eos1|>")


class StuckModel:
    """Always wants the same token."""

    def prefill(self, slot: int, token_ids: Sequence[int]) -> Logits:
        logits = np.zeros(SPEECH_HEAD_ROWS, dtype=np.float32)
        logits[5] = 60.0
        return logits

    def decode(self, rows: Sequence[DecodeRow]) -> list[Logits]:
        return [self.prefill(row.slot, ()) for row in rows]

    def clear_slot(self, slot: int) -> None:
        raise AssertionError("nothing fails here")


def test_the_guard_keeps_an_answer_from_being_stuck() -> None:
    request = make_request("a", repetition_penalty=1.0, max_tokens=60, ignore_eos=True)
    stuck, _ = run_one(SpeechLMEngine(StuckModel(), LIMITS, RepetitionGuard(0)), request)
    guarded, _ = run_one(SpeechLMEngine(StuckModel(), LIMITS, RepetitionGuard(10, 0.1)), request)
    assert set(stuck) == {SPEECH_TOKEN_OFFSET + 5}
    places = [place for place, token in enumerate(guarded) if token == SPEECH_TOKEN_OFFSET + 5]
    assert len(places) > 1 and np.diff(places).min() > 10


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        pytest.param(make_request("a", 400), "prompt has 402 tokens", id="long prompt"),
        pytest.param(make_request("a", max_tokens=294), "room for 293", id="no room"),
        pytest.param(GenerationRequest("a", (), SamplingParams(5, 0)), "0 tokens", id="empty"),
        pytest.param(GenerationRequest("a", (158336,), SamplingParams(5, 0)), "out of range", id="id"),
    ],
)
def test_requests_that_can_never_run_are_refused(
    model: SpeechLanguageModel, request_: GenerationRequest, message: str
) -> None:
    engine = make_engine(model)
    with pytest.raises(InvalidGenerationError, match=message):
        engine.add_request(request_)
    assert not engine.has_work


@pytest.mark.slow
def test_the_longest_request_fits(model: SpeechLanguageModel) -> None:
    tokens, _ = run_one(make_engine(model), make_request("a", max_tokens=293, ignore_eos=True))
    assert len(tokens) == 293


def test_requests_beyond_the_slots_wait_and_abort_frees_a_slot(model: SpeechLanguageModel) -> None:
    engine = make_engine(model)
    for index in range(6):
        engine.add_request(make_request(str(index), ignore_eos=True, max_tokens=30))
    engine.step()
    assert (engine.stats().running, engine.stats().waiting, engine.stats().free_slots) == (4, 2, 0)
    engine.abort("1")
    engine.abort("5")
    engine.abort("unknown")
    assert (engine.stats().running, engine.stats().waiting, engine.stats().free_slots) == (3, 1, 1)
    engine.step()
    assert (engine.stats().running, engine.stats().waiting) == (4, 0)
    assert set(run_all(engine)) == {"0", "2", "3", "4"}
    assert (engine.stats().finished, engine.stats().aborted, engine.stats().free_slots) == (4, 2, 4)


def test_prompts_share_the_token_budget_of_a_step(model: SpeechLanguageModel) -> None:
    engine = make_engine(model, EngineLimits(slots=4, max_sequence_tokens=300, max_step_tokens=100))
    for index in range(3):
        engine.add_request(make_request(str(index), 58, ignore_eos=True, max_tokens=30))
    engine.step()
    assert engine.stats().running == 1
    engine.step()
    assert engine.stats().running == 2


class FaultyModel:
    """Fails, or gives not-a-number, for one slot."""

    def __init__(self, model: SpeechLanguageModel, bad_slot: int, gives_nan: bool) -> None:
        self._model, self._bad_slot, self._gives_nan = model, bad_slot, gives_nan
        self.cleared: list[int] = []

    def prefill(self, slot: int, token_ids: Sequence[int]) -> Logits:
        return self._model.prefill(slot, token_ids)

    def decode(self, rows: Sequence[DecodeRow]) -> list[Logits]:
        is_bad = [row.slot == self._bad_slot for row in rows]
        if any(is_bad) and not self._gives_nan:
            raise RuntimeError("broken slot")
        logits = self._model.decode(rows)
        return [np.full_like(row, np.nan) if bad else row for row, bad in zip(logits, is_bad, strict=True)]

    def clear_slot(self, slot: int) -> None:
        self.cleared.append(slot)


@pytest.mark.parametrize("gives_nan", [False, True])
def test_a_failing_request_does_not_touch_the_others(model: SpeechLanguageModel, gives_nan: bool) -> None:
    requests = [make_request(str(index), seed=index, max_tokens=20) for index in range(3)]
    alone = {request.request_id: run_one(make_engine(model), request)[0] for request in requests}
    make_engine(model)
    faulty = FaultyModel(model, bad_slot=1, gives_nan=gives_nan)
    engine = SpeechLMEngine(faulty, LIMITS, RepetitionGuard())
    for request in requests:
        engine.add_request(request)
    outputs = run_all(engine)
    assert isinstance(outputs["1"][-1].error, GenerationFailedError)
    assert {name: tokens_of(outputs[name]) for name in ("0", "2")} == {name: alone[name] for name in ("0", "2")}
    assert (engine.stats().failed, engine.stats().free_slots, faulty.cleared) == (1, 4, [1])


def test_the_loop_bounds_its_queue_and_stopping_fails_what_runs(model: SpeechLanguageModel) -> None:
    loop = EngineLoop(make_engine(model), max_queue_size=1, clock=SystemClock())
    outputs: queue.Queue[GenerationOutput] = queue.Queue()
    with pytest.raises(EngineStoppedError):
        loop.submit(make_request("early"), outputs.put)
    loop.start()
    for index in range(5):
        loop.submit(make_request(str(index), ignore_eos=True, max_tokens=290), outputs.put)
    with pytest.raises(QueueFullError, match="try again in"):
        loop.submit(make_request("5"), outputs.put)
    loop.stop()
    ended = [output for output in iter_ready(outputs) if output.is_last]
    assert len(ended) == 5 and all(isinstance(output.error, EngineStoppedError) for output in ended)
    assert loop.stats().free_slots == 4 and not loop.is_running


class HeldModel:
    """Prefills when told to, and draws nothing in particular."""

    def __init__(self) -> None:
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()

    def prefill(self, slot: int, token_ids: Sequence[int]) -> Logits:
        self.has_begun.set()
        assert self.may_go_on.wait(WAIT_S)
        return np.zeros(SPEECH_HEAD_ROWS, np.float32)

    def decode(self, rows: Sequence[DecodeRow]) -> list[Logits]:
        return [np.zeros(SPEECH_HEAD_ROWS, np.float32) for _ in rows]

    def clear_slot(self, slot: int) -> None:
        pass


def test_requests_that_are_being_prefilled_count_as_waiting() -> None:
    model = HeldModel()
    loop = EngineLoop(SpeechLMEngine(model, LIMITS, RepetitionGuard()), max_queue_size=8, clock=SystemClock())
    loop.start()
    outputs: queue.Queue[GenerationOutput] = queue.Queue()
    for index in range(6):
        loop.submit(make_request(str(index), ignore_eos=True, max_tokens=3), outputs.put)
    assert model.has_begun.wait(WAIT_S)
    assert loop.stats().waiting + loop.stats().running == 6
    model.may_go_on.set()
    ended = 0
    while ended < 6:
        ended += outputs.get(timeout=WAIT_S).is_last
    loop.stop()
    assert (loop.stats().waiting, loop.stats().running) == (0, 0)


def test_a_receiver_that_fails_loses_only_its_own_request(model: SpeechLanguageModel) -> None:
    loop = EngineLoop(make_engine(model), max_queue_size=1, clock=SystemClock())
    loop.start()
    outputs: queue.Queue[GenerationOutput] = queue.Queue()

    def broken(_: GenerationOutput) -> None:
        raise RuntimeError("the caller is gone")

    loop.submit(make_request("broken", ignore_eos=True), broken)
    loop.submit(make_request("good", ignore_eos=True), outputs.put)
    while not outputs.get(timeout=WAIT_S).is_last:
        pass
    stats = loop.stats()
    loop.stop()
    assert (stats.finished, stats.aborted, stats.free_slots) == (1, 1, 4)


def iter_ready(outputs: queue.Queue[GenerationOutput]) -> list[GenerationOutput]:
    return [outputs.get_nowait() for _ in range(outputs.qsize())]
