"""The continuous-batching engine: independence of neighbours, bounds, stops, aborts, failures, and its thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from llm_service.embedded.engine import EngineLimits, Logits, SpeechLMEngine
from llm_service.embedded.loop import EngineLoop
from llm_service.embedded.model import DecodeRow, SpeechLanguageModel
from llm_service.embedded.sampling import RepetitionGuard
from llm_service.embedded.types import FinishReason, GenerationOutput, GenerationRequest
from llm_service.errors import (
    GenerationFailedError,
    InvalidGenerationError,
    LLMStoppedError,
    QueueFullError,
)
from llm_service.gpu.engine import GpuEngine
from llm_service.gpu.weights import Weights
from llm_service.vocab import SPEECH_HEAD_ROWS, is_speech_llm_id
from servicekit.clock import SystemClock
from tests.llm_service.embedded.engines import (
    LIMITS,
    EngineMaker,
    gpu_engine,
    make_request,
    reference_engine,
    run_all,
    run_one,
    tokens_of,
)

WAIT_S = 30.0


@pytest.fixture(params=["eager", "graphs"])
def make_engine(
    request: pytest.FixtureRequest, model: SpeechLanguageModel, weights: Weights
) -> Callable[[], SpeechLMEngine | GpuEngine]:
    """Makes engines of one kind."""
    if request.param == "eager":
        return lambda: reference_engine(model)
    return lambda: gpu_engine(weights)


@pytest.mark.slow
def test_equal_seeds_give_equal_tokens_whatever_runs_beside(make_engine: EngineMaker) -> None:
    requests = [make_request(str(index), 3 + 9 * index, seed=index) for index in range(7)]
    alone = {request.request_id: run_one(make_engine(), request)[0] for request in requests}
    engine = make_engine()
    for request in reversed(requests):
        engine.add_request(request)
    assert {name: tokens_of(outputs) for name, outputs in run_all(engine).items()} == alone
    assert max(engine.stats().steps_by_rows) > 1
    assert len({tuple(tokens) for tokens in alone.values()}) == len(alone)


@pytest.mark.slow
def test_only_speech_tokens_come_out_and_answers_end_by_themselves_not_before_min_tokens(
    make_engine: EngineMaker,
) -> None:
    engine = make_engine()
    for seed in range(12):
        engine.add_request(make_request(str(seed), seed=seed, min_tokens=30, max_tokens=200))
    answers = run_all(engine).values()
    tokens = [token for outputs in answers for token in tokens_of(outputs)]
    assert all(is_speech_llm_id(token) for token in tokens) and len(set(tokens)) > 50
    assert FinishReason.STOP in {outputs[-1].finish_reason for outputs in answers}
    assert min(len(tokens_of(outputs)) for outputs in answers) >= 30


def test_a_stop_token_ends_the_answer_and_is_not_handed_out(make_engine: EngineMaker) -> None:
    tokens, _ = run_one(make_engine(), make_request("a", ignore_eos=True))
    asked = make_request("b", ignore_eos=True, stop_token_ids=frozenset({tokens[8]}))
    stopped, last = run_one(make_engine(), asked)
    assert stopped == tokens[: tokens.index(tokens[8])]
    assert (last.finish_reason, last.stop_reason) == (FinishReason.STOP, tokens[8])


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        pytest.param(make_request("a", 400), "prompt has 402 tokens", id="long prompt"),
        pytest.param(make_request("a", max_tokens=294), "room for 293", id="no room"),
        pytest.param(make_request("a", prompt=()), "0 tokens", id="empty"),
        pytest.param(make_request("a", prompt=(158336,)), "out of range", id="id"),
    ],
)
def test_requests_that_can_never_run_are_refused(
    make_engine: EngineMaker, request_: GenerationRequest, message: str
) -> None:
    engine = make_engine()
    with pytest.raises(InvalidGenerationError, match=message):
        engine.add_request(request_)
    assert not engine.has_work


def test_max_tokens_ends_with_length(model: SpeechLanguageModel) -> None:
    tokens, last = run_one(reference_engine(model), make_request("a", max_tokens=17, ignore_eos=True))
    assert (len(tokens), last.finish_reason) == (17, FinishReason.LENGTH)


@pytest.mark.slow
def test_the_longest_request_fits(model: SpeechLanguageModel) -> None:
    tokens, _ = run_one(reference_engine(model), make_request("a", max_tokens=293, ignore_eos=True))
    assert len(tokens) == 293


def test_requests_beyond_the_slots_wait_and_abort_frees_a_slot(model: SpeechLanguageModel) -> None:
    engine = reference_engine(model)
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
    engine = reference_engine(model, EngineLimits(slots=4, max_sequence_tokens=300, max_step_tokens=100))
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
    alone = {request.request_id: run_one(reference_engine(model), request)[0] for request in requests}
    reference_engine(model)
    faulty = FaultyModel(model, bad_slot=1, gives_nan=gives_nan)
    engine = SpeechLMEngine(faulty, LIMITS, RepetitionGuard())
    for request in requests:
        engine.add_request(request)
    outputs = run_all(engine)
    assert isinstance(outputs["1"][-1].error, GenerationFailedError)
    assert {name: tokens_of(outputs[name]) for name in ("0", "2")} == {name: alone[name] for name in ("0", "2")}
    assert (engine.stats().failed, engine.stats().free_slots, faulty.cleared) == (1, 4, [1])


def test_the_loop_bounds_its_queue_and_stopping_fails_what_runs(model: SpeechLanguageModel) -> None:
    loop = EngineLoop(reference_engine(model), max_queue_size=1, clock=SystemClock())
    outputs: queue.Queue[GenerationOutput] = queue.Queue()
    with pytest.raises(LLMStoppedError):
        loop.submit(make_request("early"), outputs.put)
    loop.start()
    for index in range(5):
        loop.submit(make_request(str(index), ignore_eos=True, max_tokens=290), outputs.put)
    with pytest.raises(QueueFullError, match="try again in"):
        loop.submit(make_request("5"), outputs.put)
    loop.stop()
    ended = [output for output in iter_ready(outputs) if output.is_last]
    assert len(ended) == 5 and all(isinstance(output.error, LLMStoppedError) for output in ended)
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
    loop = EngineLoop(reference_engine(model), max_queue_size=1, clock=SystemClock())
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
