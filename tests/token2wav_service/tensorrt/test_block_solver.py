"""Engines in the block-masked families' runner. The engines are stand-ins: they run our own modules on the CPU."""

from __future__ import annotations

import pytest
import torch

from tests.token2wav_service.engine.test_families import MelVocoder
from tests.token2wav_service.runtime.test_block_slot_runner import (
    BLOCK,
    POLICY,
    RECENT,
    SIZES,
    MelSlotVocoder,
    _engine,
    _models,
    _plain,
    _speak_all,
    plain_noise,
)
from tests.token2wav_service.streaming.family_factory import COSYVOICE
from tests.token2wav_service.tensorrt.module_engine import ModuleEngine
from token2wav_service.checkpoint.family import Family
from token2wav_service.export.modules import VocoderStack, estimator_module
from token2wav_service.graphs.catalogue import ESTIMATOR_CHUNK, ROTARY_FRAMES, VOCODER, describe_graphs
from token2wav_service.graphs.shapes import AxisRange, ShapeSettings
from token2wav_service.graphs.spec import Precision
from token2wav_service.models.vocoder.causal_hift import CausalHiFT
from token2wav_service.replay.vectors import WAVE_SNR_DB, snr_db
from token2wav_service.runtime.slots.block_slot_flow import make_solver
from token2wav_service.runtime.slots.block_slot_runner import BlockSlotRunner
from token2wav_service.runtime.tensorrt.planned import EstimatorSizes, PlannedEngine, VocoderSizes
from token2wav_service.runtime.tensorrt.solver import UNPADDED, PromptSizes, TensorRTBlockSolver
from token2wav_service.runtime.tensorrt.vocoder import TensorRTSpectra

__all__ = ["plain_noise"]

CPU = torch.device("cpu")
STRIDE, PADDED = 2, 20
STREAMS = (1, 3)
SHAPES = (ShapeSettings(prompt_frames=AxisRange(1, 12, 64)),)


def make_engines(family: Family) -> tuple[TensorRTBlockSolver, TensorRTSpectra | None, list[ModuleEngine]]:
    """Return what takes the fused kernels' places, and the engines behind it."""
    flow, vocoder = _models(family)
    described = describe_graphs(flow.config, vocoder.config, Precision.FLOAT32, SHAPES)
    spec = described[ESTIMATOR_CHUNK]
    engines = [ModuleEngine(spec, estimator_module(flow, Precision.FLOAT32, spec.limit("chunk_frames")))]
    planned = [EstimatorSizes(streams, STRIDE * BLOCK, PADDED, RECENT) for streams in STREAMS]
    estimator = PlannedEngine(engines[0], spec, planned, CPU)  # type: ignore[arg-type]
    has_positions, steps = family is Family.COSYVOICE3, POLICY.ode_steps
    solver = TensorRTBlockSolver(
        estimator,
        make_solver(flow, steps),
        steps,
        flow.decoder.guidance,
        PromptSizes((PADDED,), SIZES.max_prompt_frames),
        has_positions=has_positions,
    )
    if not isinstance(vocoder, CausalHiFT):
        return solver, None, engines
    engines.append(ModuleEngine(described[VOCODER], VocoderStack(vocoder, Precision.FLOAT32)))
    columns = [VocoderSizes(streams, STRIDE * BLOCK + 2 * vocoder.lookahead) for streams in STREAMS]
    opened = PlannedEngine(engines[1], described[VOCODER], columns, CPU)  # type: ignore[arg-type]
    return solver, TensorRTSpectra(vocoder, opened), engines


@pytest.mark.slow
@pytest.mark.usefixtures("plain_noise")
@pytest.mark.parametrize("family", COSYVOICE)
def test_mixed_streams_through_engines_equal_the_plain_modules(family: Family) -> None:
    """Shared and own prompts, a ring that overflows, chunks that complete no block, the scratch row."""
    plans = {1: (7, 12, [1, BLOCK, BLOCK]), 2: (8, 5, [1, 1])}
    solver, convolutions, engines = make_engines(family)
    runner = BlockSlotRunner(*_models(family), POLICY, SIZES, STREAMS, (BLOCK,), solver, convolutions)
    is_mel = family is Family.COSYVOICE2
    if is_mel:
        runner.vocoder = runner._programs.vocoder = MelSlotVocoder()
    got = _speak_all(_engine(runner), plans)
    for mine, expected in zip(got, _speak_all(_plain(family, MelVocoder() if is_mel else None), plans), strict=True):
        assert mine.shape == expected.shape
        assert snr_db(torch.from_numpy(mine), torch.from_numpy(expected)) >= WAVE_SNR_DB
    assert all(engine.journal.runs > 0 for engine in engines)


@pytest.mark.parametrize("family", COSYVOICE)
def test_prompts_are_padded_but_where_the_graph_knows_no_positions(family: Family) -> None:
    solver, _, _ = make_engines(family)
    assert solver.prompt_sizes == (PADDED, UNPADDED)
    assert [solver.prompt_size(frames, end=99) for frames in (0, 20, 21)] == [PADDED, PADDED, UNPADDED]
    beyond = UNPADDED if family is Family.COSYVOICE3 else PADDED
    assert solver.prompt_size(8, ROTARY_FRAMES) == PADDED
    assert solver.prompt_size(8, ROTARY_FRAMES + 1) == beyond
