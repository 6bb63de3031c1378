"""The GPU engine without a GPU: the same code on plain torch, held against the float32 reference engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from llm_service.embedded.interleaving import InterleavedPrompt
from llm_service.embedded.model import SpeechLanguageModel
from llm_service.embedded.sampling import RepetitionGuard
from llm_service.embedded.types import GenerationOutput, GenerationRequest
from llm_service.errors import DeadlineExceededError, GenerationFailedError, InvalidGenerationError
from llm_service.gpu.answer import EventPacking
from llm_service.gpu.build import GpuEngineOptions, engine_of
from llm_service.gpu.engine import GpuEngine
from llm_service.gpu.weights import Weights, load_weights
from llm_service.vocab import (
    COSYVOICE2,
    END_IDS,
    SOS_ID,
    SPEECH_TOKEN_OFFSET,
    TASK_ID,
    format_speech_tokens,
)
from tests.gateway.fakes import ManualClock
from tests.llm_service.embedded.engines import (
    NO_GUARD,
    SINGLE,
    Engine,
    EngineMaker,
    gpu_engine,
    make_request,
    reference_engine,
    run_all,
    run_one,
    tokens_of,
)
from tests.triton_compiler import ARCHITECTURES, compiled_kernels

pytestmark = pytest.mark.slow

GREEDY = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 25}


@pytest.fixture
def make_engine(weights: Weights) -> Iterator[EngineMaker]:
    """Makes engines on virtual time; every slot and page must be free in the end."""
    made: list[GpuEngine] = []

    def make(**options: object) -> GpuEngine:
        made.append(gpu_engine(weights, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for engine in made:
        run_all(engine)
        assert engine.stats().free_slots == engine.stats().slots


def reference_tokens(model: SpeechLanguageModel, request: GenerationRequest, guard: RepetitionGuard) -> list[int]:
    return run_one(reference_engine(model, guard=guard), request)[0]


@pytest.mark.parametrize("penalty", [1.0, 1.1])
@pytest.mark.parametrize("guard", [NO_GUARD, RepetitionGuard()], ids=["unguarded", "guarded"])
def test_greedy_answers_equal_the_reference(
    make_engine: EngineMaker, model: SpeechLanguageModel, penalty: float, guard: RepetitionGuard
) -> None:
    request = make_request("a", 40, **GREEDY, repetition_penalty=penalty)
    assert run_one(make_engine(guard=guard), request)[0] == reference_tokens(model, request, guard)


def test_a_lost_answer_goes_on_with_the_very_same_tokens(make_engine: EngineMaker) -> None:
    whole, _ = run_one(make_engine(), make_request("whole", ignore_eos=True))
    for spoken in (1, 11, 29):
        prompt = (SOS_ID, *range(5), TASK_ID, *whole[:spoken])
        asked = {"prompt": prompt, "continued_tokens": spoken, "ignore_eos": True, "max_tokens": 30 - spoken}
        assert run_one(make_engine(), make_request("rest", **asked))[0] == whole[spoken:]


def test_a_long_prompt_runs_in_pieces_and_gives_the_same_answer(
    make_engine: EngineMaker, model: SpeechLanguageModel
) -> None:
    request = make_request("a", 250, **GREEDY)
    assert run_one(make_engine(), request)[0] == reference_tokens(model, request, RepetitionGuard())


def test_text_is_the_tokens_as_text_and_outputs_are_packed(make_engine: EngineMaker) -> None:
    engine = make_engine(packing=EventPacking(single_tokens=3, most_tokens=8, longest_wait_s=1e9))
    engine.add_request(make_request("a", ignore_eos=True))
    outputs = run_all(engine)["a"]
    assert [len(output.token_ids) for output in outputs] == [1, 1, 1, 8, 8, 8, 3]
    engine.add_request(make_request("b", ignore_eos=True, head_start_tokens=12))
    assert [len(output.token_ids) for output in run_all(engine)["b"]] == [12, 8, 8, 2], "a head start is one output"
    for output in outputs:
        assert output.text == format_speech_tokens(token - SPEECH_TOKEN_OFFSET for token in output.token_ids)


def test_abort_and_deadline_free_slot_and_pages(make_engine: EngineMaker) -> None:
    engine = make_engine(slots=2)
    for name in "abcd":
        late = {"deadline_s": 5.0} if name in "bd" else {}
        engine.add_request(make_request(name, ignore_eos=True, max_tokens=100, **late))
    for _ in range(5):
        engine.step()
    assert (engine.stats().running, engine.stats().waiting) == (2, 2)
    engine.abort("a")
    engine.abort("unknown")
    clock: ManualClock = engine._clock  # type: ignore[assignment]
    clock.seconds = 6.0
    outputs = engine.step()
    assert {output.request_id for output in outputs if isinstance(output.error, DeadlineExceededError)} == {"b", "d"}
    engine.check_integrity()
    assert set(run_all(engine)) == {"c"}
    assert (engine.stats().aborted, engine.stats().failed, engine.stats().finished) == (1, 2, 1)


def test_more_continued_tokens_than_the_prompt_has_are_refused(make_engine: EngineMaker) -> None:
    with pytest.raises(InvalidGenerationError, match="continued_tokens is 7"):
        make_engine().add_request(make_request("a", continued_tokens=7))


def test_an_impossible_request_fails_alone(make_engine: EngineMaker) -> None:
    engine = make_engine()
    engine.add_request(make_request("none", allowed_token_ids=frozenset({END_IDS[0]}), min_tokens=3))
    engine.add_request(make_request("good"))
    outputs = run_all(engine)
    assert isinstance(outputs["none"][-1].error, GenerationFailedError)
    assert outputs["good"][-1].finish_reason is not None


def test_admission_is_by_memory(make_engine: EngineMaker, weights: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    engine._pages._free = engine._pages._free[:6]
    engine._pages._pages = 6
    for index in range(3):
        engine.add_request(make_request(str(index), ignore_eos=True, max_tokens=180))  # 3 pages each
    engine.step()
    assert (engine.stats().running, engine.stats().waiting) == (2, 1)
    assert set(run_all(engine)) == {"0", "1", "2"}


def test_other_ids_and_a_head_without_bias_come_from_the_checkpoint(llm_dir: Path, tmp_path: Path) -> None:
    directory = relabelled_checkpoint(llm_dir, tmp_path)
    other = load_weights(directory, torch.device("cpu"), torch.float32)
    assert (other.ids.first_id, other.ids.rows, other.ids.end_rows) == (1000, 300, (298,))
    assert not other.head_bias.any()
    options = GpuEngineOptions(torch.device("cpu"), torch.float32, 2, 200, 0.5, RepetitionGuard(), packing=SINGLE)
    engine = engine_of(other, options, ManualClock())
    request = make_request("a", prompt=(5, 6, 1007), max_tokens=40, ignore_eos=True)
    tokens, _ = run_one(engine, request)
    assert len(tokens) == 40 and all(1000 <= token < 1298 for token in tokens)


def relabelled_checkpoint(llm_dir: Path, directory: Path) -> Path:
    """Write the random decoder under another numbering: 300 head rows from id 1000 on, no bias, one end id."""
    import json

    from safetensors.torch import load_file, save_file

    tensors = load_file(llm_dir / "model.safetensors")
    generator = torch.Generator().manual_seed(1)
    hidden = tensors["model.norm.weight"].shape[0]
    tensors["model.embed_tokens.weight"] = torch.randn(1400, hidden, generator=generator)
    tensors["lm_head.weight"] = torch.randn(300, hidden, generator=generator)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors")
    config = json.loads((llm_dir / "config.json").read_text())
    config |= {"vocab_size": 1400, "speech_head_first_id": 1000, "speech_head_rows": 300, "eos_token_id": 1298}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def distribution(engine_maker: EngineMaker, **params: object) -> set[int]:
    """Draw the first token for many seeds."""
    engine = engine_maker(slots=8, guard=NO_GUARD)
    for seed in range(64):
        engine.add_request(make_request(str(seed), seed=seed, max_tokens=1, ignore_eos=True, **params))
    return {token for outputs in run_all(engine).values() for token in tokens_of(outputs)}


@pytest.mark.parametrize(
    "narrow",
    [
        pytest.param({"temperature": 0.0}, id="greedy"),
        pytest.param({"top_k": 1}, id="top_k"),
        pytest.param({"top_p": 1e-6}, id="top_p"),
        pytest.param({"min_p": 1.0}, id="min_p"),
        pytest.param({"temperature": 1e-4}, id="cold"),
    ],
)
def test_each_way_to_narrow_the_draw_leaves_the_likeliest_token(
    make_engine: EngineMaker, narrow: dict[str, float]
) -> None:
    wide = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}
    assert len(distribution(make_engine, **wide)) > 30
    assert distribution(make_engine, **wide | narrow) == distribution(make_engine, **wide | {"temperature": 0.0})


def test_top_k_keeps_so_many(make_engine: EngineMaker) -> None:
    wide = {"temperature": 1.0, "top_p": 1.0}
    assert 1 < len(distribution(make_engine, **wide, top_k=3)) <= 3


def test_the_repetition_penalty_changes_a_greedy_answer(make_engine: EngineMaker) -> None:
    few = frozenset(range(SPEECH_TOKEN_OFFSET, SPEECH_TOKEN_OFFSET + 15))
    asked = {**GREEDY, "allowed_token_ids": few}
    plain, strict = (
        run_one(make_engine(guard=NO_GUARD), make_request("a", **asked, repetition_penalty=penalty))[0]
        for penalty in (1.0, 5.0)
    )
    assert plain != strict
    assert len(set(strict)) > len(set(plain))


def test_banned_and_allowed_tokens(make_engine: EngineMaker) -> None:
    tokens, _ = run_one(make_engine(), make_request("a", ignore_eos=True))
    banned, _ = run_one(make_engine(), make_request("b", ignore_eos=True, banned_token_ids=frozenset(tokens)))
    assert not set(banned) & set(tokens)
    allowed = frozenset(range(SPEECH_TOKEN_OFFSET + 10, SPEECH_TOKEN_OFFSET + 40))
    only, _ = run_one(make_engine(), make_request("c", allowed_token_ids=allowed))
    assert set(only) <= allowed and len(set(only)) > 5


def test_the_guard_keeps_an_answer_from_repeating_itself(make_engine: EngineMaker) -> None:
    few = frozenset(range(SPEECH_TOKEN_OFFSET, SPEECH_TOKEN_OFFSET + 15))
    asked = {"allowed_token_ids": few, "temperature": 0.0, "max_tokens": 60, "repetition_penalty": 1.0}
    free, _ = run_one(make_engine(guard=NO_GUARD), make_request("a", **asked))
    guarded, _ = run_one(make_engine(guard=RepetitionGuard(10, 0.2)), make_request("a", **asked))
    assert most_in_a_window(guarded) <= 3 < most_in_a_window(free)


def most_in_a_window(tokens: list[int]) -> int:
    return max(np.unique(tokens[begin : begin + 10], return_counts=True)[1].max() for begin in range(len(tokens) - 9))


def test_a_paced_answer_rests_between_its_tokens_and_is_the_same(make_engine: EngineMaker) -> None:
    """Head start at once, then a token each 10 ms of virtual time; a step that finds nobody due launches nothing."""
    alone, paced = make_request("a", **GREEDY), make_request("b", **GREEDY, head_start_tokens=5, tokens_per_s=100.0)
    expected, _ = run_one(make_engine(), alone)
    clock = ManualClock()
    engine = make_engine(clock=clock)
    engine.add_request(paced)
    outputs: list[GenerationOutput] = []
    rests: list[float] = []
    while engine.has_work:
        if (idle_s := engine.idle_s()) > 0:
            steps = engine.stats().steps
            assert engine.step() == [] and engine.stats().steps == steps
            rests.append(idle_s)
            clock.seconds += idle_s
        outputs += engine.step()
    assert tokens_of(outputs) == expected
    assert rests == pytest.approx([0.01] * (len(expected) - 5))
    assert engine.idle_s() == float("inf")


def test_a_resting_answer_ends_at_its_deadline(make_engine: EngineMaker) -> None:
    clock = ManualClock()
    engine = make_engine(clock=clock)
    engine.add_request(
        make_request("a", **GREEDY, head_start_tokens=1, tokens_per_s=1.0, deadline_s=clock.now() + 0.25)
    )
    while engine.idle_s() == 0:
        engine.step()
    assert engine.idle_s() == pytest.approx(0.25)
    clock.seconds += 0.25
    (last,) = engine.step()
    assert isinstance(last.error, DeadlineExceededError) and not engine.has_work


INTERLEAVED = InterleavedPrompt(begin_tokens=1, transcript_tokens=3)
BEGUN = (SOS_ID, 50, 51, 52, *(SPEECH_TOKEN_OFFSET + token for token in range(40, 47)))
WRITTEN = (range(1, 4), range(4, 9), range(9, 30), ())
"""Text in pieces: too little for a block of speech, then for one, then for several; the last ends it."""


def interleaved_tokens(engine: Engine, request: GenerationRequest) -> list[int]:
    """Bring the text a piece at a time, each when the engine has nothing to do any more."""
    engine.add_request(request)
    outputs: list[GenerationOutput] = []
    for piece in WRITTEN:
        outputs += until_idle(engine)
        engine.feed(request.request_id, piece, is_last=not piece)
    outputs += until_idle(engine)
    assert outputs[-1].is_last and outputs[-1].error is None
    return tokens_of(outputs)


def drawn_of(outputs: Sequence[GenerationOutput]) -> list[int]:
    """All that was drawn, the fills among them."""
    return [
        token
        for output in outputs
        for token in (*output.token_ids, *(COSYVOICE2.fill_id for _ in output.fills))  # one or the other
    ]


def until_idle(engine: Engine) -> list[GenerationOutput]:
    outputs: list[GenerationOutput] = []
    while engine.idle_s() == 0:
        outputs += engine.step()
        engine.check_integrity()
    return outputs


@pytest.mark.parametrize(
    "params",
    [
        pytest.param({}, id="plain"),
        pytest.param({"min_tokens": 60, "repetition_penalty": 1.2}, id="penalty"),
        pytest.param({"stop_token_ids": frozenset({SPEECH_TOKEN_OFFSET + 5})}, id="stop id"),
        pytest.param(
            {"allowed_token_ids": frozenset({COSYVOICE2.fill_id, *END_IDS, SPEECH_TOKEN_OFFSET + 7})}, id="fills"
        ),
        pytest.param({"max_tokens": 33}, id="short"),
    ],
)
@pytest.mark.parametrize("guard", [NO_GUARD, RepetitionGuard()], ids=["unguarded", "guarded"])
def test_text_that_comes_while_it_is_spoken_gives_the_reference_s_answer(
    make_engine: EngineMaker, model: SpeechLanguageModel, guard: RepetitionGuard, params: dict[str, object]
) -> None:
    asked = {"temperature": 0.0, "max_tokens": 120, "prompt": BEGUN, **params}
    request = replace(make_request("a", **asked), interleaved=INTERLEAVED)
    expected = interleaved_tokens(reference_engine(model, guard=guard), request)
    assert interleaved_tokens(make_engine(guard=guard), request) == expected


FILLING = frozenset({COSYVOICE2.fill_id, *(SPEECH_TOKEN_OFFSET + token for token in range(12))})


def interleaved_rest(engine: Engine, request: GenerationRequest, drawn: list[int]) -> list[int]:
    """Begin behind what was drawn; the text comes in other pieces than before, most of it at once."""
    going_on = {"prompt_ids": (*BEGUN, *drawn), "continued_tokens": len(drawn)}
    engine.add_request(replace(request, **going_on))  # type: ignore[arg-type]
    engine.step()
    for text, is_last in ((range(1, 9), False), (range(9, 30), True)):
        engine.feed(request.request_id, text, is_last)
    return drawn_of(until_idle(engine))


@pytest.mark.parametrize("allowed", [None, FILLING], ids=["no fills", "fills"])
def test_an_interleaved_answer_goes_on_behind_what_another_engine_drew(
    make_engine: EngineMaker, allowed: frozenset[int] | None
) -> None:
    asked = {"prompt": BEGUN, "max_tokens": 60, "allowed_token_ids": allowed, "seed": 5}
    asked["temperature"] = 0.8 if allowed is None else 9.0
    request = replace(make_request("a", **asked), interleaved=INTERLEAVED)
    engine = make_engine()
    engine.add_request(request)
    engine.feed("a", range(1, 30), is_last=True)
    whole = drawn_of(until_idle(engine))
    fills = [index for index, token in enumerate(whole) if token == COSYVOICE2.fill_id]
    assert fills or allowed is None
    for count in (fills[0], fills[0] + 1, 40) if fills else (1, 8, 24):
        rest = interleaved_rest(make_engine(), request, whole[:count])
        assert rest[: len(whole) - count] == whole[count:], f"behind {count} draws"


def test_the_reference_goes_on_too_where_nothing_is_random(model: SpeechLanguageModel) -> None:
    asked = {"prompt": BEGUN, "max_tokens": 60, "temperature": 0.0, "repetition_penalty": 1.5}
    request = replace(make_request("a", **asked), interleaved=INTERLEAVED)

    whole = interleaved_rest(reference_engine(model, guard=NO_GUARD), request, [])
    for count in (1, 8, 24, 40):
        rest = interleaved_rest(reference_engine(model, guard=NO_GUARD), request, whole[:count])
        assert rest[: len(whole) - count] == whole[count:], f"behind {count} draws"


def test_interleaved_answers_and_whole_ones_do_not_touch_each_other(make_engine: EngineMaker) -> None:
    interleaved = [
        replace(make_request(name, prompt=BEGUN, max_tokens=40, seed=seed), interleaved=INTERLEAVED)
        for seed, name in enumerate("ab")
    ]
    whole = [make_request(name, 9, max_tokens=40, seed=seed, ignore_eos=True) for seed, name in enumerate("cde")]
    alone = {request.request_id: interleaved_tokens(make_engine(), request) for request in interleaved}
    alone |= {request.request_id: run_one(make_engine(), request)[0] for request in whole}
    engine = make_engine(slots=5)
    together: dict[str, list[int]] = {name: [] for name in "abcde"}
    for request in (*whole, *interleaved):
        engine.add_request(request)
    for piece in WRITTEN:
        for name in "ab":
            engine.feed(name, piece, is_last=not piece)
            for output in (output for _ in range(7) for output in engine.step()):
                together[output.request_id] += output.token_ids
    for name, outputs in run_all(engine).items():
        together[name] += tokens_of(outputs)
    assert together == alone


def test_an_answer_that_waits_for_text_can_be_aborted_and_passes_its_deadline(make_engine: EngineMaker) -> None:
    clock = ManualClock()
    engine = make_engine(clock=clock)
    for name, deadline_s in (("a", None), ("b", 5.0)):
        request = make_request(name, prompt=BEGUN, deadline_s=deadline_s)
        engine.add_request(replace(request, interleaved=INTERLEAVED))
    assert until_idle(engine) == [] and engine.stats().running == 2
    assert engine.idle_s() == 5.0
    engine.abort("a")
    clock.seconds = 6.0
    (late,) = engine.step()
    assert late.request_id == "b" and isinstance(late.error, DeadlineExceededError)
    assert not engine.has_work
    engine.feed("b", (1,), is_last=True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param([(SOS_ID,)], "out of range", id="no text"),
        pytest.param([range(400)], "400 more text tokens came, and there is room for", id="too long"),
        pytest.param([(1, 2), (3,)], "text came behind the last", id="after the end"),
    ],
)
def test_text_that_can_not_be_taken_is_refused(make_engine: EngineMaker, text: list[Sequence[int]], said: str) -> None:
    engine = make_engine()
    engine.add_request(replace(make_request("a", prompt=BEGUN), interleaved=INTERLEAVED))
    engine.add_request(make_request("b"))
    for piece in text[:-1]:
        engine.feed("a", piece, is_last=True)
    with pytest.raises(InvalidGenerationError, match=said):
        engine.feed("a", text[-1], is_last=False)
    with pytest.raises(InvalidGenerationError, match="was whole when it began"):
        engine.feed("b", (1,), is_last=False)
    with pytest.raises(InvalidGenerationError, match="expected at least 1, and speech tokens behind both"):
        engine.add_request(replace(make_request("c"), interleaved=INTERLEAVED))
    engine.abort("a")


@pytest.mark.servers
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_kernel_compiles_for_a_gpu(architecture: str, llm_dir: Path, tmp_path: Path) -> None:
    module = "tests.llm_service.embedded.compile_gpu_kernels"
    compiled = compiled_kernels(module, str(llm_dir), architecture, cache=tmp_path)
    assert {"product_kernel", "attention_kernel", "write_cache_kernel", "sample_kernel", "add_norm_kernel"} <= compiled
