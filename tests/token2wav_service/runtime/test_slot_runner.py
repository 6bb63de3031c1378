"""Every family's flow on pools against the plain modules, kernels run by Triton's interpreter on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.token2wav_service.engine.factory import (
    MODEL_VERSION,
    ManualClock,
    SeededExtractor,
    make_prompt,
    push,
    run_step,
    tokens_of,
)
from tests.token2wav_service.engine.test_families import MelVocoder, WideExtractor, open_stream, run
from tests.token2wav_service.runtime.plain_convolution import convolve
from tests.token2wav_service.streaming.family_factory import COSYVOICE, make_block_flow, make_causal_hift
from tests.token2wav_service.streaming.flow_factory import make_flow, make_hift
from tests.workers import is_whole
from token2wav_service.checkpoint.family import Family
from token2wav_service.config import HistoryPolicy, SynthesisPolicy, Token2WavConfig
from token2wav_service.engine.engine import Token2WavEngine
from token2wav_service.engine.voices import VoiceModel, VoiceStore
from token2wav_service.errors import CapacityError, InvalidPromptError, ProgramCaptureError
from token2wav_service.models.flow.flow_stream import StreamFlow
from token2wav_service.models.noise import NoiseDomain, counter_normal, counter_uniform
from token2wav_service.models.vocoder.causal_vocoder_stream import CausalStreamVocoder
from token2wav_service.models.vocoder.hift import fold_weight_norm
from token2wav_service.models.vocoder.vocoder_stream import StreamVocoder
from token2wav_service.replay.vectors import WAVE_SNR_DB, snr_db
from token2wav_service.runtime.kernels import ops, product_ops, vocoder_ops
from token2wav_service.runtime.slots import slot_vocoder
from token2wav_service.runtime.slots.bucket_program import BucketProgram
from token2wav_service.runtime.slots.pool import PoolSizes, SlotBatch, pool_tensors
from token2wav_service.runtime.slots.slot_runner import SlotRunner
from token2wav_service.runtime.slots.slot_vocoder import VocoderProgress
from token2wav_service.runtime.slots.step_shapes import StepShapes
from token2wav_service.runtime.torch_runner import ModelRunner
from token2wav_service.types import FloatArray, StreamOptions, TokenChunk

FAMILIES = (Family.STEP_AUDIO2, *COSYVOICE)
BLOCK = 4
"""Tokens; few, as the interpreter takes 10 ms for every frame of every layer."""
RECENT = 2 * BLOCK
SAMPLES = 480
"""Of a mel frame."""
POLICY = SynthesisPolicy(
    history=HistoryPolicy.PROMPT_AND_RECENT, ode_steps=1, estimator_recent_frames=RECENT, conformer_recent_frames=12
)
SIZES = PoolSizes(streams=4, estimator_recent=RECENT, conformer_recent=12, max_prompt_frames=64)


@cache
def models_of(family: Family) -> tuple[Any, Any]:
    vocoder = make_causal_hift() if family is Family.COSYVOICE3 else make_hift()
    is_plain = family is Family.STEP_AUDIO2
    flow = make_flow() if is_plain else make_block_flow(family, block_tokens=BLOCK, is_least=True)
    return flow, fold_weight_norm(vocoder)


def engine_of(family: Family, runner: object) -> Token2WavEngine:
    config = replace(Token2WavConfig(Path("unused"), synthesis=POLICY), max_batch_size=4)
    extractor = SeededExtractor() if family is Family.STEP_AUDIO2 else WideExtractor()
    model = VoiceModel(lambda: MODEL_VERSION, speaker_dimensions=models_of(family)[0].config.spk_embed_dim)
    voices = VoiceStore(extractor, runner, config.voice_cache_bytes, model)  # type: ignore[arg-type]
    return Token2WavEngine(config, voices, runner, ManualClock())  # type: ignore[arg-type]


class MelSlotVocoder:
    """Gives out the mel's mean: HiFT's kernels take the interpreter longer than the flow's."""

    def run(self, mel: Tensor, frames: Tensor, batch: SlotBatch) -> Tensor:
        return mel.mean(2).repeat_interleave(SAMPLES, 1)

    def deliver(self, progress: VocoderProgress, frames: int, speech: FloatArray, *, is_last: bool) -> FloatArray:
        return speech[: frames * SAMPLES].copy()


def plain_engine(family: Family, vocoder: Any = None) -> Token2WavEngine:
    flow, own = models_of(family)
    if vocoder is None:
        vocoder = (CausalStreamVocoder if family is Family.COSYVOICE3 else StreamVocoder)(own, POLICY)
    return engine_of(family, ModelRunner(StreamFlow(flow, POLICY), vocoder))


def slot_runner(
    family: Family, vocoder: object = None, streams: Sequence[int] = (1, 3), tokens: Sequence[int] = (BLOCK,)
) -> SlotRunner:
    runner = SlotRunner(*models_of(family), POLICY, SIZES, streams, tokens)
    if vocoder is not None:
        runner.vocoder = runner._programs.vocoder = runner._programs_beside.vocoder = vocoder  # type: ignore[assignment]
    return runner


@pytest.fixture
def plain_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw noise and convolve without the kernels, which their own tests hold against the same functions."""

    def normal(seeds: Tensor, starts: Tensor, positions: int, width: int, domain: int) -> Tensor:
        return counter_normal(seeds, starts, positions, width, NoiseDomain(domain))

    def uniform(seeds: Tensor, starts: Tensor, positions: int, width: int, domain: int) -> Tensor:
        return counter_uniform(seeds, starts, positions, width, NoiseDomain(domain))

    for module in (ops, slot_vocoder):
        monkeypatch.setattr(module, "counter_noise", normal)
        monkeypatch.setattr(module, "counter_uniform", uniform)
    monkeypatch.setattr(vocoder_ops, "convolve", convolve)


def speak_all(engine: Token2WavEngine, plans: dict[int, tuple[int, int, list[int]]]) -> list[np.ndarray]:  # type: ignore[type-arg]
    """Speak streams of (prompt tokens, tokens, hops) by seed, in the same batches."""
    streams = [open_stream(engine, seed, prompt) for seed, (prompt, _, _) in plans.items()]
    for stream, (seed, (_, tokens, hops)) in zip(streams, plans.items(), strict=True):
        push(engine, stream, tokens_of(tokens, seed), hops)
    heard = run(engine)
    return [np.concatenate(heard[stream]) for stream in streams]


def assert_equal_speech(got: Sequence[Any], expected: Sequence[Any]) -> None:
    for mine, other in zip(got, expected, strict=True):
        assert mine.shape == other.shape
        assert snr_db(torch.from_numpy(mine), torch.from_numpy(other)) >= WAVE_SNR_DB


@pytest.mark.slow
@pytest.mark.usefixtures("plain_operations")
@pytest.mark.parametrize(
    ("family", "is_few"),
    [*((family, family is not Family.COSYVOICE3) for family in FAMILIES), (Family.COSYVOICE2, False)],
)
def test_mixed_streams_equal_the_plain_modules(family: Family, is_few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts and hops mixed, ends inside blocks and at them.

    The first stream's ring overflows; the second's later chunks complete no block. One row is nobody's.
    """
    monkeypatch.setattr(product_ops, "suits", lambda *_: is_few)
    assert (slot_runner(family).flow.solver.few_rows > 0) is is_few
    plans = {1: (7, 12, [1, BLOCK, BLOCK]), 2: (8, 5, [1, 1])}
    is_mel = family is Family.COSYVOICE2
    fused = engine_of(family, slot_runner(family, MelSlotVocoder() if is_mel else None))
    plain = plain_engine(family, MelVocoder() if is_mel else None)
    assert_equal_speech(speak_all(fused, plans), speak_all(plain, plans))


@pytest.mark.slow
@pytest.mark.usefixtures("plain_operations")
@pytest.mark.parametrize("family", FAMILIES if is_whole() else FAMILIES[2:])
def test_chunks_of_several_buckets_share_a_program_and_equal_each_alone(family: Family) -> None:
    """Each stream's chunk is once the smaller one; the first's step of two blocks follows one that was padded.

    Alone they run as beside another step.
    """
    is_mel = family is Family.COSYVOICE2
    runner = slot_runner(family, MelSlotVocoder() if is_mel else None, (1, 2), (BLOCK, 2 * BLOCK))
    extractor = SeededExtractor() if family is Family.STEP_AUDIO2 else WideExtractor()
    voice = runner.prepare_voice(extractor.extract(make_prompt(1, 7)))
    counts = [(False, (4, 8)), (True, (8, 4))]
    steps = [[(tokens_of(count, count), is_last) for count in row] for is_last, row in counts]
    made: list[tuple[int, int]] = []

    def program(streams: int, tokens: int, prompt_size: int = 0, *, beside: bool = False) -> BucketProgram:
        if not beside:
            made.append((streams, tokens))
        return get_program(streams, tokens, prompt_size, beside=beside)

    get_program = runner.program
    runner.program = program  # type: ignore[method-assign]
    together = [runner.open(voice) for _ in range(2)]
    mixed = [run_step(runner, chunks, together) for chunks in steps]
    assert made == [(2, 2 * BLOCK)] * 2
    for place in range(2):
        alone = runner.open(voice)
        expected = [run_step(runner, [chunks[place]], [alone], seed=place, beside=True)[0] for chunks in steps]
        got = np.concatenate([samples[place] for samples in mixed])
        assert_equal_speech([got], [np.concatenate(expected)])


@pytest.mark.slow
@pytest.mark.usefixtures("plain_operations")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_used_slot_leaves_nothing_and_every_exit_frees_it(family: Family) -> None:
    runner, plans = slot_runner(family), {1: (7, 1, [])}
    engine = engine_of(family, runner)
    for tensor in pool_tensors(runner.pool):
        tensor.fill_(float("nan"))
    aborted = open_stream(engine, 2, 7)
    if family is Family.COSYVOICE3:
        engine.add_chunk(TokenChunk(aborted, 0, tokens_of(4), False))
    assert_equal_speech(speak_all(engine, plans), speak_all(plain_engine(family), plans))
    engine.abort(aborted)
    assert len({runner.slots.allocate() for _ in range(SIZES.streams)}) == SIZES.streams
    engine.check_integrity()


@pytest.mark.parametrize("family", [Family.STEP_AUDIO2, pytest.param(Family.COSYVOICE3, marks=pytest.mark.slow)])
def test_a_full_pool_refuses_and_a_stream_costs_its_slot_and_shares_its_voice(family: Family) -> None:
    runner = slot_runner(family)
    engine = engine_of(family, runner)
    streams = [open_stream(engine, 1)]
    voice_bytes = engine.stats().voice_bytes
    streams += [open_stream(engine, 1) for _ in range(SIZES.streams - 1)]
    stats = engine.stats()
    assert stats.voice_bytes == voice_bytes > 0
    assert stats.state_bytes == SIZES.streams * runner.pool.bytes_per_stream > 0
    with pytest.raises(CapacityError, match="slots are in use"):
        open_stream(engine, 1)
    engine.abort(streams[0])
    engine.abort(open_stream(engine, 1))
    engine.check_integrity()


@pytest.mark.parametrize(
    ("prompt", "hop", "is_last", "computed"),
    [
        pytest.param(27, 7, False, 10, id="the prompt's rest and the hop are one block"),
        pytest.param(27, 10, False, 20, id="the prompt's last block lacks its look-ahead"),
        pytest.param(27, 2, True, 10, id="a last chunk"),
        pytest.param(6, 4, False, 10, id="a prompt shorter than a block"),
    ],
)
def test_a_chunk_takes_the_program_of_what_is_computed(prompt: int, hop: int, is_last: bool, computed: int) -> None:
    flow = make_block_flow(Family.COSYVOICE3)
    runner = SlotRunner(flow, models_of(Family.COSYVOICE3)[1], POLICY, SIZES, (1,), (10, 20))
    engine = engine_of(Family.COSYVOICE3, runner)
    voice = engine.voices.register(make_prompt(1, prompt))
    stream = engine.open_stream(voice.voice_id, StreamOptions(seed=1))
    tokens = hop if is_last else hop + 3
    state: Any = engine._streams[stream].state
    assert runner.bucket(TokenChunk(stream, 0, tokens_of(tokens), is_last), state) == computed


@pytest.mark.parametrize("family", [Family.STEP_AUDIO2, Family.COSYVOICE3])
def test_what_the_runner_does_not_have_is_refused(family: Family) -> None:
    with pytest.raises(ValueError, match="use runner=torch"):
        SlotRunner(*models_of(family), replace(POLICY, is_reference=True), SIZES)
    with pytest.raises(ValueError, match="estimator_recent_frames 0"):
        SlotRunner(*models_of(family), POLICY, replace(SIZES, estimator_recent=0))
    with pytest.raises(InvalidPromptError, match="80 mel frames, this server takes 64"):
        open_stream(engine_of(family, slot_runner(family)), 1, 40)


@torch.inference_mode()
@pytest.mark.parametrize("family", list(Family))
def test_while_kernels_compile_a_chunk_takes_one_solver_step_and_all_of_them_later(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = slot_runner(family)
    solver: Any = runner.flow.solver
    taken: list[int] = []

    def advance(step: int, x: Tensor, velocity: Tensor) -> tuple[Tensor, Tensor]:
        taken.append(step)
        return x, x.to(solver.dtype)

    monkeypatch.setattr(solver, "advance", advance)
    program = runner.program(1, BLOCK)
    with solver.only_first_step():
        program._compute()
    program._compute()
    assert taken == [0, *range(solver.steps)]


def test_a_step_that_no_graph_holds_is_named_with_its_cause() -> None:
    runner = slot_runner(Family.COSYVOICE3)
    with pytest.raises(ProgramCaptureError, match=r"2 streams and 8 tokens.*CUDA graph: .*runner=torch"):
        BucketProgram(runner.flow, runner.vocoder, runner.device, streams=2, tokens=5, prompt_size=0).capture()


@pytest.mark.parametrize(("bucket", "ready", "taken", "in_a_crowd"), [
    (15, 1, 1, 1), (15, 3, 3, 3), (15, 5, 4, 4), (15, 13, 13, 13), (15, 40, 32, 32), (15, 48, 48, 48),
    (15, 99, 64, 64), (25, 99, 32, 64), (50, 99, 16, 32), (100, 64, 8, 16), (103, 99, 8, 16),
])  # fmt: skip
def test_a_step_is_short_unless_many_wait(bucket: int, ready: int, taken: int, in_a_crowd: int) -> None:
    assert [StepShapes().step_size(bucket, ready, is_crowded) for is_crowded in (False, True)] == [taken, in_a_crowd]


@pytest.mark.parametrize(
    ("tokens", "groups"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([100, 9], [([0, 1], 103)], id="the largest chunk's program has room for all"),
        pytest.param([15, 103, *[15] * 14], [(list(range(16)), 103)], id="as many as it holds"),
        pytest.param([15, 103, *[15] * 15], [([0, *range(2, 17)], 15), ([1], 103)], id="one more than it holds"),
        pytest.param([103] * 17, [(list(range(16)), 103), ([16], 103)], id="more of one bucket than one program holds"),
    ],
)
def test_chunks_share_the_largest_ones_program_or_run_by_bucket(
    tokens: list[int], groups: list[tuple[list[int], int]]
) -> None:
    assert StepShapes().groups(tokens) == groups
