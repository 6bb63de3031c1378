"""CosyVoice2's and CosyVoice3's flows on pools against the plain modules, kernels run by Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.token2wav_service.engine.factory import MODEL_VERSION, ManualClock, make_prompt, run_step
from tests.token2wav_service.engine.test_families import (
    SPEAKER_DIMENSIONS,
    MelVocoder,
    WideExtractor,
    open_stream,
    push,
    run,
    tokens_of,
)
from tests.token2wav_service.streaming.family_factory import COSYVOICE, make_block_flow, make_causal_hift
from tests.token2wav_service.streaming.flow_factory import make_hift
from tests.workers import is_whole
from token2wav_service.checkpoint.family import Family
from token2wav_service.config import HistoryPolicy, NoiseSource, Parity, SynthesisPolicy, Token2WavConfig
from token2wav_service.engine.engine import Token2WavEngine
from token2wav_service.engine.voices import VoiceModel, VoiceStore
from token2wav_service.errors import CapacityError, InvalidPromptError, ProgramCaptureError
from token2wav_service.models.flow.block_flow import BlockFlow
from token2wav_service.models.flow.block_stream import BlockStreamFlow
from token2wav_service.models.noise import NoiseDomain, counter_normal, counter_uniform
from token2wav_service.models.vocoder.causal_hift import CausalHiFT
from token2wav_service.models.vocoder.causal_vocoder_stream import CausalStreamVocoder
from token2wav_service.models.vocoder.hift import HiFT, fold_weight_norm
from token2wav_service.models.vocoder.vocoder_stream import StreamVocoder
from token2wav_service.replay.vectors import WAVE_SNR_DB, snr_db
from token2wav_service.runtime.kernels import ops
from token2wav_service.runtime.slots import causal_slot_vocoder, slot_vocoder
from token2wav_service.runtime.slots.block_pool import BlockBatch, BlockPoolSizes
from token2wav_service.runtime.slots.block_slot_runner import BlockSlotRunner, block_buckets
from token2wav_service.runtime.slots.bucket_program import BucketProgram
from token2wav_service.runtime.slots.pool import pool_tensors
from token2wav_service.runtime.slots.slot_vocoder import VocoderProgress
from token2wav_service.runtime.torch_runner import ModelRunner
from token2wav_service.types import FloatArray, StreamOptions, TokenChunk

BLOCK = 4
"""Tokens; few, as the interpreter takes 10 ms for every frame of every layer."""
RECENT = 2 * BLOCK
SAMPLES = 480
"""Of a mel frame."""
POLICY = SynthesisPolicy(history=HistoryPolicy.PROMPT_AND_RECENT, ode_steps=1, estimator_recent_frames=RECENT)
SIZES = BlockPoolSizes(streams=4, recent_frames=RECENT, max_prompt_frames=64)


@cache
def _models(family: Family) -> tuple[BlockFlow, HiFT | CausalHiFT]:
    vocoder = make_causal_hift() if family is Family.COSYVOICE3 else make_hift()
    return make_block_flow(family, block_tokens=BLOCK, is_least=True), fold_weight_norm(vocoder)


def _engine(runner: object) -> Token2WavEngine:
    config = replace(Token2WavConfig(Path("unused"), synthesis=POLICY), max_batch_size=4)
    model = VoiceModel(lambda: MODEL_VERSION, speaker_dimensions=SPEAKER_DIMENSIONS)
    voices = VoiceStore(WideExtractor(), runner, config.voice_cache_bytes, model)  # type: ignore[arg-type]
    return Token2WavEngine(config, voices, runner, ManualClock())  # type: ignore[arg-type]


class MelSlotVocoder:
    """Gives out the mel's mean: HiFT's kernels take the interpreter longer than the flow's."""

    def run(self, mel: Tensor, frames: Tensor, batch: BlockBatch) -> Tensor:
        return mel.mean(2).repeat_interleave(SAMPLES, 1)

    def deliver(self, progress: VocoderProgress, frames: int, speech: FloatArray, *, is_last: bool) -> FloatArray:
        return speech[: frames * SAMPLES].copy()


def _plain(family: Family, vocoder: object = None) -> Token2WavEngine:
    if vocoder is not None:
        return _engine(ModelRunner(BlockStreamFlow(_models(family)[0], POLICY), vocoder))  # type: ignore[arg-type]
    flow, vocoder = _models(family)
    plain = CausalStreamVocoder(vocoder, POLICY) if isinstance(vocoder, CausalHiFT) else StreamVocoder(vocoder, POLICY)
    return _engine(ModelRunner(BlockStreamFlow(flow, POLICY), plain))


def _fused(family: Family, vocoder: MelSlotVocoder | None = None) -> Token2WavEngine:
    runner = BlockSlotRunner(*_models(family), POLICY, SIZES, (1, 3), (BLOCK,))
    if vocoder is not None:
        runner.vocoder = runner._programs.vocoder = vocoder
    return _engine(runner)


@pytest.fixture
def plain_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the noise without its kernel, which test_kernels.py holds against the same functions."""

    def normal(seeds: Tensor, starts: Tensor, positions: int, width: int, domain: int) -> Tensor:
        return counter_normal(seeds, starts, positions, width, NoiseDomain(domain))

    def uniform(seeds: Tensor, starts: Tensor, positions: int, width: int, domain: int) -> Tensor:
        return counter_uniform(seeds, starts, positions, width, NoiseDomain(domain))

    for module in (ops, slot_vocoder):
        monkeypatch.setattr(module, "counter_noise", normal)
    monkeypatch.setattr(causal_slot_vocoder, "counter_uniform", uniform)


def _speak_all(engine: Token2WavEngine, plans: dict[int, tuple[int, int, list[int]]]) -> list[np.ndarray]:  # type: ignore[type-arg]
    """Speak streams of (prompt tokens, tokens, hops) by seed, in the same batches."""
    streams = [open_stream(engine, seed, prompt) for seed, (prompt, _, _) in plans.items()]
    for stream, (seed, (_, tokens, hops)) in zip(streams, plans.items(), strict=True):
        push(engine, stream, tokens_of(tokens, seed), hops)
    heard = run(engine)
    return [np.concatenate(heard[stream]) for stream in streams]


@pytest.mark.slow
@pytest.mark.usefixtures("plain_noise")
@pytest.mark.parametrize("family", COSYVOICE)
def test_mixed_streams_equal_the_plain_modules(family: Family) -> None:
    """Prompts and hops mixed, ends inside blocks and at them.

    The first stream's ring of one block overflows; the second's later chunks complete none. One row is nobody's.
    """
    plans = {1: (7, 12, [1, BLOCK, BLOCK]), 2: (8, 5, [1, 1])}
    vocoders = (None, None) if family is Family.COSYVOICE3 else (MelSlotVocoder(), MelVocoder())
    fused, plain = _fused(family, vocoders[0]), _plain(family, vocoders[1])
    for got, expected in zip(_speak_all(fused, plans), _speak_all(plain, plans), strict=True):
        assert got.shape == expected.shape
        assert snr_db(torch.from_numpy(got), torch.from_numpy(expected)) >= WAVE_SNR_DB


@pytest.mark.slow
@pytest.mark.usefixtures("plain_noise")
@pytest.mark.parametrize("family", COSYVOICE if is_whole() else COSYVOICE[1:])
def test_chunks_of_several_buckets_share_a_program_and_equal_each_alone(family: Family) -> None:
    """Each stream's chunk is once the smaller one; the first's step of two blocks follows one that was padded."""
    runner = BlockSlotRunner(*_models(family), POLICY, SIZES, (1, 2), (BLOCK, 2 * BLOCK))
    if family is Family.COSYVOICE2:
        runner.vocoder = runner._programs.vocoder = MelSlotVocoder()
    voice = runner.prepare_voice(WideExtractor().extract(make_prompt(1, 7)))
    counts = [(False, (4, 8)), (True, (8, 4))]
    steps = [[(tokens_of(count, count), is_last) for count in row] for is_last, row in counts]
    made: list[tuple[int, int]] = []

    def program(streams: int, tokens: int, prompt_size: int = 0) -> BucketProgram:
        made.append((streams, tokens))
        return runner._programs.get(streams, tokens)

    runner.program = program  # type: ignore[method-assign]
    together = [runner.open(voice) for _ in range(2)]
    mixed = [run_step(runner, chunks, together) for chunks in steps]
    assert made == [(2, 2 * BLOCK)] * 2
    for place in range(2):
        alone = runner.open(voice)
        expected = [run_step(runner, [chunks[place]], [alone], seed=place)[0] for chunks in steps]
        got = torch.from_numpy(np.concatenate([samples[place] for samples in mixed]))
        assert snr_db(got, torch.from_numpy(np.concatenate(expected))) >= WAVE_SNR_DB


@pytest.mark.slow
@pytest.mark.usefixtures("plain_noise")
@pytest.mark.parametrize("family", COSYVOICE)
def test_a_used_slot_leaves_nothing_and_every_exit_frees_it(family: Family) -> None:
    engine, plans = _fused(family), {1: (7, 1, [])}
    runner = engine._runner
    for tensor in pool_tensors(runner.pool):
        tensor.fill_(float("nan"))
    aborted = open_stream(engine, 2, 7)
    if family is Family.COSYVOICE3:
        engine.add_chunk(TokenChunk(aborted, 0, tokens_of(4), False))
    (got,) = _speak_all(engine, plans)
    (expected,) = _speak_all(_plain(family), plans)
    assert snr_db(torch.from_numpy(got), torch.from_numpy(expected)) >= WAVE_SNR_DB
    engine.abort(aborted)
    assert runner.slots.num_free == SIZES.streams
    runner.slots.check_integrity()
    engine.check_integrity()


@pytest.mark.slow
def test_a_full_pool_refuses_and_a_stream_costs_its_slot() -> None:
    engine = _fused(Family.COSYVOICE3)
    streams = [open_stream(engine, seed) for seed in range(SIZES.streams)]
    assert engine.stats().state_bytes == SIZES.streams * engine._runner.pool.bytes_per_stream > 0
    with pytest.raises(CapacityError, match="slots are in use"):
        open_stream(engine, 9)
    engine.abort(streams[0])
    engine.abort(open_stream(engine, 9))
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
    engine = _engine(BlockSlotRunner(flow, _models(Family.COSYVOICE3)[1], POLICY, SIZES, (1,), (10, 20)))
    voice = engine.voices.register(make_prompt(1, prompt))
    stream = engine.open_stream(voice.voice_id, StreamOptions(seed=1))
    tokens = hop if is_last else hop + 3
    state = engine._streams[stream].state
    assert engine._runner.bucket(TokenChunk(stream, 0, tokens_of(tokens), is_last), state) == computed


def test_what_the_runner_does_not_have_is_refused() -> None:
    upstream = ({"history": HistoryPolicy.UPSTREAM}, {"noise": NoiseSource.UPSTREAM}, {"parity": Parity.UPSTREAM})
    for policy in (replace(POLICY, **change) for change in upstream):  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="use runner=torch"):
            BlockSlotRunner(*_models(Family.COSYVOICE3), policy, SIZES)
    with pytest.raises(ValueError, match="estimator_recent_frames 0"):
        BlockSlotRunner(*_models(Family.COSYVOICE3), POLICY, replace(SIZES, recent_frames=0))
    with pytest.raises(InvalidPromptError, match="80 mel frames, this server takes 64"):
        open_stream(_fused(Family.COSYVOICE3), 1, 40)


def test_a_step_that_no_graph_holds_is_named_with_its_cause() -> None:
    runner = _fused(Family.COSYVOICE3).runner
    assert isinstance(runner, BlockSlotRunner)
    with pytest.raises(ProgramCaptureError, match=r"2 streams and 8 tokens.*CUDA graph: .*runner=torch"):
        BucketProgram(runner.flow, runner.vocoder, runner.device, streams=2, tokens=5, prompt_size=0, is_captured=True)


def test_programs_are_planned_for_whole_blocks_and_for_last_chunks() -> None:
    assert block_buckets(make_block_flow(Family.COSYVOICE3)) == (10, 13, 20, 43, 53)
