"""Engines in the block-masked families' runner. The engines are stand-ins: they run our own modules on the CPU."""

from __future__ import annotations

import pytest
import torch

from tests.token2wav_service.engine.test_families import MelVocoder
from tests.token2wav_service.runtime.test_slot_runner import (
    BLOCK,
    POLICY,
    RECENT,
    SIZES,
    MelSlotVocoder,
    assert_equal_speech,
    engine_of,
    models_of,
    plain_engine,
    plain_operations,
    speak_all,
)
from tests.token2wav_service.streaming.family_factory import COSYVOICE
from tests.token2wav_service.tensorrt.module_engine import ModuleEngine
from token2wav_service.checkpoint.family import Family
from token2wav_service.export.modules import VocoderStack, estimator_module
from token2wav_service.graphs.catalogue import ESTIMATOR_CHUNK, ROTARY_FRAMES, VOCODER, describe_graphs
from token2wav_service.graphs.spec import AxisRange, Precision, ShapeSettings
from token2wav_service.models.vocoder.causal_hift import CausalHiFT
from token2wav_service.runtime.slots.slot_flow import make_solver
from token2wav_service.runtime.slots.slot_runner import SlotRunner
from token2wav_service.runtime.tensorrt.load import TensorRTSpectra
from token2wav_service.runtime.tensorrt.planned import EstimatorSizes, PlannedEngine, VocoderSizes
from token2wav_service.runtime.tensorrt.solver import UNPADDED, PromptSizes, TensorRTSolver

__all__ = ["plain_operations"]

CPU = torch.device("cpu")
STRIDE, PADDED = 2, 20
STREAMS = (1, 3)
SHAPES = (ShapeSettings(prompt_frames=AxisRange(1, 12, 64)),)


def make_engines(family: Family) -> tuple[TensorRTSolver, TensorRTSpectra | None, list[ModuleEngine]]:
    """Return what takes the fused kernels' places, and the engines behind it."""
    flow, vocoder = models_of(family)
    described = describe_graphs(flow.config, vocoder.config, Precision.FLOAT32, SHAPES)
    spec = described[ESTIMATOR_CHUNK]
    engines = [ModuleEngine(spec, estimator_module(flow, Precision.FLOAT32, spec.limit("chunk_frames")))]
    planned = [EstimatorSizes(streams, STRIDE * BLOCK, PADDED, RECENT) for streams in STREAMS]
    estimator = PlannedEngine(engines[0], spec, planned, CPU)  # type: ignore[arg-type]
    steps = POLICY.ode_steps
    solver = TensorRTSolver(
        estimator,
        make_solver(flow, steps),
        steps,
        flow.decoder.guidance,
        PromptSizes((PADDED,), SIZES.max_prompt_frames),
    )
    if not isinstance(vocoder, CausalHiFT):
        return solver, None, engines
    engines.append(ModuleEngine(described[VOCODER], VocoderStack(vocoder, Precision.FLOAT32)))
    columns = [VocoderSizes(streams, STRIDE * BLOCK + 2 * vocoder.lookahead) for streams in STREAMS]
    opened = PlannedEngine(engines[1], described[VOCODER], columns, CPU)  # type: ignore[arg-type]
    return solver, TensorRTSpectra(vocoder, opened), engines


@pytest.mark.slow
@pytest.mark.usefixtures("plain_operations")
@pytest.mark.parametrize("family", COSYVOICE)
def test_mixed_streams_through_engines_equal_the_plain_modules(family: Family) -> None:
    """Shared and own prompts, a ring that overflows, chunks that complete no block, the scratch row."""
    plans = {1: (7, 12, [1, BLOCK, BLOCK]), 2: (8, 5, [1, 1])}
    solver, convolutions, engines = make_engines(family)
    runner = SlotRunner(*models_of(family), POLICY, SIZES, STREAMS, (BLOCK,), solver, convolutions)
    is_mel = family is Family.COSYVOICE2
    if is_mel:
        runner.vocoder = runner._programs.vocoder = MelSlotVocoder()
    got = speak_all(engine_of(family, runner), plans)
    assert_equal_speech(got, speak_all(plain_engine(family, MelVocoder() if is_mel else None), plans))
    assert all(engine.journal.runs > 0 for engine in engines)


@pytest.mark.parametrize("family", COSYVOICE)
def test_prompts_are_padded_but_where_the_graph_knows_no_positions(family: Family) -> None:
    solver, _, _ = make_engines(family)
    assert solver.prompt_sizes == (PADDED, UNPADDED)
    assert [solver.prompt_size(frames, end=99) for frames in (0, 20, 21)] == [PADDED, PADDED, UNPADDED]
    beyond = UNPADDED if family is Family.COSYVOICE3 else PADDED
    assert solver.prompt_size(8, ROTARY_FRAMES) == PADDED
    assert solver.prompt_size(8, ROTARY_FRAMES + 1) == beyond
