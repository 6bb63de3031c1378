"""The engine: independence of neighbours, bounds, stops, pace, aborts, failures; its thread; its kernels."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llm_service.embedded.answer import WAIT_SHARE
from llm_service.embedded.eager import Logits
from llm_service.embedded.engine import EngineLimits, SpeechLMEngine
from llm_service.embedded.interleaving import InterleavedPrompt
from llm_service.embedded.loop import EngineLoop
from llm_service.embedded.model import DecodeRow, SpeechLanguageModel
from llm_service.embedded.types import FinishReason, GenerationOutput, GenerationRequest
from llm_service.errors import (
    GenerationFailedError,
    LLMStoppedError,
    QueueFullError,
)
from llm_service.gpu.weights import Weights
from llm_service.vocab import COSYVOICE2
from servicekit.clock import SystemClock
from tests.llm_service.embedded.engines import (
    check_integrity,
    engine_on_kernels,
    make_engine,
    make_request,
    run_all,
    run_one,
    tokens_of,
)
from tests.triton_compiler import ARCHITECTURES, compiled_kernels
from tests.triton_interpreter import make_the_interpreter_cheap
from tests.virtual_time import ManualClock

WAIT_S = 30.0
GREEDY = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 25}
BEGUN = (COSYVOICE2.sos_id, 50, 51, 52, *(COSYVOICE2.first_id + token for token in range(40, 47)))
INTERLEAVED = InterleavedPrompt(begin_tokens=1, transcript_tokens=3)


def test_of_allowed_tokens_only_those_come(model: SpeechLanguageModel) -> None:
    allowed = frozenset(range(COSYVOICE2.first_id + 10, COSYVOICE2.first_id + 40))
    only, _ = run_one(make_engine(model), make_request("c", allowed_token_ids=allowed))
    assert set(only) <= allowed and len(set(only)) > 5


@pytest.mark.slow
def test_the_longest_request_fits_and_ends_with_length(model: SpeechLanguageModel) -> None:
    tokens, last = run_one(make_engine(model), make_request("a", max_tokens=293, ignore_eos=True))
    assert (len(tokens), last.finish_reason) == (293, FinishReason.LENGTH)


def test_requests_beyond_the_slots_wait_and_abort_frees_a_slot(model: SpeechLanguageModel) -> None:
    engine = make_engine(model)
    for index in range(6):
        engine.add_request(make_request(str(index), ignore_eos=True, max_tokens=30))
    engine.step()
    assert (engine.stats().running, engine.stats().waiting, engine.stats().free_slots) == (4, 2, 0)
    for name in ("1", "5", "unknown"):
        engine.abort(name)
    assert (engine.stats().running, engine.stats().waiting, engine.stats().free_slots) == (3, 1, 1)
    engine.step()
    assert (engine.stats().running, engine.stats().waiting) == (4, 0)
    assert set(run_all(engine)) == {"0", "2", "3", "4"}
    assert (engine.stats().finished, engine.stats().aborted, engine.stats().free_slots) == (4, 2, 4)


def test_prompts_share_the_token_budget_of_a_step_and_none_is_cut(model: SpeechLanguageModel) -> None:
    engine = make_engine(model, max_step_tokens=100)
    for index in range(3):
        engine.add_request(make_request(str(index), 58, ignore_eos=True, max_tokens=30))
    drew = [{output.request_id for output in engine.step()} for _ in range(2)]
    assert drew == [{"0"}, {"0"}], "of two prompts one fits a step, and prompts take turns with answers"
    long = make_request("long", 250, **GREEDY)
    assert run_one(make_engine(model, max_step_tokens=10), long)[0] == run_one(make_engine(model), long)[0]


def test_admission_is_by_memory(model: SpeechLanguageModel) -> None:
    engine = make_engine(model, pages=6)
    for index in range(3):
        engine.add_request(make_request(str(index), ignore_eos=True, max_tokens=180))  # 3 pages each
    engine.step()
    assert (engine.stats().running, engine.stats().waiting) == (2, 1)
    assert set(run_all(engine)) == {"0", "1", "2"}


@pytest.mark.parametrize(
    ("step_s", "head", "sizes"),
    [(0.0051, 8, [8, 2, 4, 9, 19, 48]), (0.0301, 0, [*40 * [1], *5 * [2]])],
    ids=["eight times as fast as speech", "hardly faster than speech"],
)
def test_outputs_grow_with_the_lead(model: SpeechLanguageModel, step_s: float, head: int, sizes: list[int]) -> None:
    engine = make_engine(model, clock=(clock := ManualClock()), wait_share=WAIT_SHARE)
    engine.add_request(make_request("a", ignore_eos=True, max_tokens=100, head_start_tokens=head))
    for size in sizes:
        while not (outputs := engine.step()):
            clock.seconds += step_s
        clock.seconds += step_s
        assert [len(output.token_ids) for output in outputs] == [size]


def test_a_paced_answer_rests_between_its_tokens_and_is_the_same(model: SpeechLanguageModel) -> None:
    """Head start at once, then a token each 10 ms of virtual time; a step that finds nobody due launches nothing."""
    alone, paced = make_request("a", **GREEDY), make_request("b", **GREEDY, head_start_tokens=5, tokens_per_s=100.0)
    expected, _ = run_one(make_engine(model), alone)
    clock = ManualClock()
    engine = make_engine(model, clock=clock)
    engine.add_request(paced)
    outputs: list[GenerationOutput] = []
    rests: list[float] = []
    while (idle_s := engine.idle_s()) < float("inf"):
        if idle_s > 0:
            steps = engine.stats().steps
            assert engine.step() == [] and engine.stats().steps == steps
            rests.append(idle_s)
            clock.seconds += idle_s
        outputs += engine.step()
    assert tokens_of(outputs) == expected
    assert rests == pytest.approx([0.01] * (len(expected) - 5))


def test_an_answer_that_waits_for_text_holds_nobody_up_and_can_be_aborted(model: SpeechLanguageModel) -> None:
    engine = make_engine(model, EngineLimits(2, 300))
    engine.add_request(make_request("reads", prompt=BEGUN, interleaved=INTERLEAVED))
    engine.add_request(make_request("speaks", max_tokens=5))
    assert set(run_all(engine)) == {"speaks"} and engine.idle_s() == float("inf")
    engine.abort("reads")
    check_integrity(engine)
    assert (engine.stats().running, engine.stats().free_slots) == (0, 2)
    engine.feed("reads", (1,), is_last=True)


def test_an_impossible_request_fails_alone(model: SpeechLanguageModel) -> None:
    engine = make_engine(model)
    engine.add_request(make_request("none", allowed_token_ids=frozenset({COSYVOICE2.end_ids[0]}), min_tokens=3))
    engine.add_request(make_request("good"))
    outputs = run_all(engine)
    assert isinstance(outputs["none"][-1].error, GenerationFailedError)
    assert outputs["good"][-1].finish_reason is not None


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
    engine = make_engine(faulty)
    for request in requests:
        engine.add_request(request)
    outputs = run_all(engine)
    assert isinstance(outputs["1"][-1].error, GenerationFailedError)
    assert {name: tokens_of(outputs[name]) for name in ("0", "2")} == {name: alone[name] for name in ("0", "2")}
    assert (engine.stats().failed, engine.stats().free_slots, faulty.cleared) == (1, 4, [1])


def test_the_loop_bounds_its_queue_and_stopping_fails_what_runs(model: SpeechLanguageModel) -> None:
    loop = EngineLoop(make_engine(model), max_queue_size=1, clock=SystemClock())
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
        return np.zeros(COSYVOICE2.head_rows, np.float32)

    def decode(self, rows: Sequence[DecodeRow]) -> list[Logits]:
        return [np.zeros(COSYVOICE2.head_rows, np.float32) for _ in rows]

    def clear_slot(self, slot: int) -> None:
        pass


def test_requests_that_are_being_prefilled_count_as_waiting() -> None:
    model = HeldModel()
    loop = EngineLoop(make_engine(model), max_queue_size=8, clock=SystemClock())
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


def interleaved_tokens(
    engine: SpeechLMEngine, request: GenerationRequest, pieces: Sequence[Sequence[int]]
) -> list[int]:
    """Bring the text a piece at a time, each when the engine has nothing to do any more; fills count as drawn."""
    engine.add_request(request)
    outputs: list[GenerationOutput] = []
    for piece in (*pieces, ()):
        outputs += run_all(engine).get(request.request_id, [])
        engine.feed(request.request_id, piece, is_last=not piece)
    outputs += run_all(engine)[request.request_id]
    assert outputs[-1].is_last and outputs[-1].error is None
    fill = COSYVOICE2.fill_id
    return [token for output in outputs for token in (*output.token_ids, *(fill for _ in output.fills))]


@pytest.fixture(scope="module")
def kernels(weights: Weights) -> SpeechLMEngine:
    """An engine on kernels, whose programs take long to run for the first time."""
    make_the_interpreter_cheap()
    return engine_on_kernels(weights)


@pytest.mark.slow
def test_the_kernels_give_the_answers_of_plain_torch(model: SpeechLanguageModel, kernels: SpeechLMEngine) -> None:
    """Long prompts come in pieces there; text may come while it is spoken."""
    plain = make_request("a", 140, **{**GREEDY, "max_tokens": 6}, repetition_penalty=1.1)
    fills = frozenset({COSYVOICE2.fill_id, *COSYVOICE2.end_ids, COSYVOICE2.first_id + 7})
    written = make_request("b", prompt=BEGUN, interleaved=INTERLEAVED, temperature=0.0, max_tokens=26, min_tokens=24)
    pieces = (range(1, 4), range(4, 9))
    assert run_one(kernels, plain)[0] == run_one(make_engine(model), plain)[0]
    for request in (written, replace(written, params=replace(written.params, allowed_token_ids=fills))):
        expected = interleaved_tokens(make_engine(model), request, pieces)
        assert interleaved_tokens(kernels, request, pieces) == expected


@pytest.mark.slow
def test_a_lost_answer_goes_on_with_the_very_tokens_on_the_kernels(kernels: SpeechLMEngine) -> None:
    whole, _ = run_one(kernels, make_request("whole", ignore_eos=True, max_tokens=12))
    prompt = (COSYVOICE2.sos_id, *range(5), COSYVOICE2.task_id, *whole[:5])
    rest = make_request("rest", prompt=prompt, continued_tokens=5, ignore_eos=True, max_tokens=7)
    assert run_one(kernels, rest)[0] == whole[5:]


@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_kernel_compiles_for_a_gpu(architecture: str, llm_dir: Path, tmp_path: Path) -> None:
    module = "tests.llm_service.embedded.compile_gpu_kernels"
    compiled = compiled_kernels(module, str(llm_dir), architecture, cache=tmp_path)
    assert {"product_kernel", "attention_kernel", "write_cache_kernel", "sample_kernel", "add_norm_kernel"} <= compiled
