"""Engines in the runner of every family. The engines are stand-ins: they run our own modules on the CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.token2wav_service.engine.test_families import MelVocoder
from tests.token2wav_service.runtime.test_slot_runner import (
    BLOCK,
    FAMILIES,
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
from tests.token2wav_service.tensorrt.module_engine import ModuleEngine
from token2wav_service.checkpoint.family import Family
from token2wav_service.errors import EngineUnfitError
from token2wav_service.export.modules import VocoderStack, estimator_module
from token2wav_service.graphs import (
    ESTIMATOR_CHUNK,
    ROTARY_FRAMES,
    VOCODER,
    AxisRange,
    GraphSpec,
    Precision,
    describe_graph,
)
from token2wav_service.models.vocoder.causal_hift import CausalHiFT
from token2wav_service.runtime.kernels import ops
from token2wav_service.runtime.kernels.attention_ops import KeyPlaces
from token2wav_service.runtime.slots.chunk_solver import SolverBatch
from token2wav_service.runtime.slots.pool import pool_tensors
from token2wav_service.runtime.slots.slot_flow import make_solver
from token2wav_service.runtime.slots.slot_runner import SlotRunner
from token2wav_service.runtime.tensorrt.load import TensorRTNetwork, TensorRTSpectra
from token2wav_service.runtime.tensorrt.planned import Axes, PlannedEngine, estimator_axes, vocoder_axes
from token2wav_service.runtime.tensorrt.solver import UNPADDED, TensorRTSolver

__all__ = ["plain_operations"]

CPU = torch.device("cpu")
STRIDE, PADDED = 2, 20
STREAMS = (1, 3)
RANGES = {"chunk_frames": AxisRange(1, 6, 8), "prompt_frames": AxisRange(1, 12, 64)}
LARGE = estimator_axes(3, STRIDE * BLOCK, PADDED, RECENT)


class NoReadback(TorchDispatchMode):
    """Fails on every operation that would make the host wait for a GPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket.__name__ not in ("_local_scalar_dense", "nonzero", "masked_select"), func
        return func(*args, **(kwargs or {}))


class Engines:
    """What takes the fused kernels' places, and the engines behind it."""

    def __init__(self, family: Family) -> None:
        flow, vocoder = models_of(family)
        configs = (flow.config, vocoder.config, Precision.FLOAT32)
        spec, vocoded = (describe_graph(name, *configs) for name in (ESTIMATOR_CHUNK, VOCODER))
        self.spec: GraphSpec = replace(spec, ranges={**spec.ranges, **RANGES})
        module = estimator_module(flow, Precision.FLOAT32, RANGES["chunk_frames"].max)
        self.estimator = ModuleEngine(self.spec, module)
        sizes = [estimator_axes(streams, STRIDE * BLOCK, PADDED, RECENT) for streams in STREAMS]
        fused = make_solver(flow, POLICY.ode_steps)
        self.solver = TensorRTSolver(self.plan(*sizes), fused)
        self.solver.prompt_sizes = (PADDED, SIZES.max_prompt_frames)
        self.vocoder = ModuleEngine(vocoded, VocoderStack(vocoder, Precision.FLOAT32))
        beside = 2 * vocoder.lookahead if isinstance(vocoder, CausalHiFT) else 8
        columns = [vocoder_axes(streams, STRIDE * BLOCK + beside) for streams in STREAMS]
        opened: Any = PlannedEngine(self.vocoder, vocoded, columns, CPU)  # type: ignore[arg-type]
        self.convolutions = (
            TensorRTSpectra(vocoder, opened)
            if isinstance(vocoder, CausalHiFT)
            else TensorRTNetwork(vocoder, torch.float32, opened)
        )

    def plan(self, *sizes: Axes) -> PlannedEngine:
        return PlannedEngine(self.estimator, self.spec, sizes, CPU)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.usefixtures("plain_operations")
@pytest.mark.parametrize("family", FAMILIES)
def test_mixed_streams_through_engines_equal_the_plain_modules(family: Family) -> None:
    """Shared and own prompts, a ring that overflows, places never written, chunks of no block, the scratch row."""
    plans = {1: (7, 12, [1, BLOCK, BLOCK]), 2: (8, 5, [1, 1])}
    engines = Engines(family)
    runner = SlotRunner(*models_of(family), POLICY, SIZES, STREAMS, (BLOCK,), engines.solver, engines.convolutions)
    for tensor in pool_tensors(runner.pool.solver):
        tensor.fill_(float("nan"))
    is_mel = family is not Family.COSYVOICE3
    if is_mel:
        runner.vocoder = runner._programs.vocoder = MelSlotVocoder()  # type: ignore[assignment]
    got = speak_all(engine_of(family, runner), plans)
    assert_equal_speech(got, speak_all(plain_engine(family, MelVocoder() if is_mel else None), plans))
    assert engines.estimator.journal.runs > 0 and (is_mel or engines.vocoder.journal.runs > 0)


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_are_padded_but_where_the_graph_knows_no_positions(family: Family) -> None:
    solver = Engines(family).solver
    assert [solver.prompt_size(frames, end=99) for frames in (0, 20, 21, 64)] == [PADDED, PADDED, 64, 64]
    beyond = UNPADDED if family is Family.COSYVOICE3 else PADDED
    assert solver.prompt_size(8, ROTARY_FRAMES) == PADDED
    assert solver.prompt_size(8, ROTARY_FRAMES + 1) == beyond


def solve(engines: Engines, streams: int, prompt_size: int) -> Tensor:
    """Solve a chunk of streams that have no history."""
    nothing = torch.zeros(streams, dtype=torch.int64)
    frames = nothing + STRIDE * BLOCK
    batch = SolverBatch(KeyPlaces(nothing, nothing, nothing, nothing, frames), nothing, frames, prompt_size=prompt_size)
    mel = torch.ones(streams, STRIDE * BLOCK, 80)
    pool = engines.solver.allocate(1, RECENT)
    return engines.solver.solve(mel, mel, mel[:, 0], None, batch, pool)


def test_a_size_is_bound_once_and_its_runs_wait_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for kernel in ("gather_history", "commit_window"):
        monkeypatch.setattr(ops, kernel, lambda *_: None)  # the interpreter itself reads back
    engines = Engines(Family.STEP_AUDIO2)
    journal = engines.estimator.journal
    first = solve(engines, 1, PADDED)
    assert (journal.addresses, journal.contexts) == (len(engines.estimator.tensors), 1), "every tensor is given once"
    with NoReadback():
        second = solve(engines, 1, PADDED)
    torch.testing.assert_close(second, first)
    assert (journal.addresses, journal.contexts, journal.runs) == (len(engines.estimator.tensors), 1, 2)


@pytest.mark.parametrize(("streams", "prompt_size"), [(2, PADDED), (1, UNPADDED)], ids=["not planned", "not held"])
def test_other_sizes_are_solved_by_the_fused_kernels(
    streams: int, prompt_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = Engines(Family.STEP_AUDIO2)
    calls: list[int] = []

    def fused(noise: Tensor, *_: Any) -> Tensor:
        calls.append(len(noise))
        return noise

    monkeypatch.setattr(engines.solver._fused, "solve", fused)
    solve(engines, streams, prompt_size)
    assert (calls, engines.estimator.journal.runs) == ([streams], 0)


def test_all_sizes_share_memory_and_each_is_bound_once() -> None:
    smaller = estimator_axes(1, 2, PADDED, RECENT)
    estimator = Engines(Family.STEP_AUDIO2).plan(LARGE, smaller)
    large = estimator.bind(LARGE)
    assert estimator.bind(smaller).tensors["x"].data_ptr() == large.tensors["x"].data_ptr()
    assert estimator.bind(LARGE) is large


def test_an_engine_of_another_graph_or_of_other_sizes_is_refused() -> None:
    engines = Engines(Family.STEP_AUDIO2)
    other: Any = replace(engines.spec, outputs=engines.spec.outputs[:1])
    with pytest.raises(EngineUnfitError, match="export and build it again"):
        PlannedEngine(engines.estimator, other, (LARGE,), CPU)  # type: ignore[arg-type]
    with pytest.raises(EngineUnfitError, match="holds none of the planned sizes"):
        engines.plan(estimator_axes(3, 99, PADDED, RECENT))
