"""The solver around a TensorRT estimator. The engine is a stand-in: it runs our own modules on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.token2wav_service.streaming.flow_factory import make_flow, make_hift
from tests.token2wav_service.tensorrt.module_engine import ModuleEngine
from token2wav_service.errors import EngineUnfitError
from token2wav_service.export.modules import estimator_module
from token2wav_service.graphs.catalogue import ESTIMATOR_CHUNK, describe_graphs
from token2wav_service.graphs.spec import AxisRange, GraphSpec, Precision, ShapeSettings
from token2wav_service.models.flow.cfm import SolverHistory
from token2wav_service.models.flow.flow import Flow
from token2wav_service.runtime.kernels.attention_ops import KeyPlaces
from token2wav_service.runtime.slots.chunk_solver import SolverBatch, SolverPool
from token2wav_service.runtime.slots.dit_solver import DiTSolver
from token2wav_service.runtime.tensorrt.planned import EstimatorSizes, PlannedEngine
from token2wav_service.runtime.tensorrt.solver import PromptSizes, TensorRTSolver

pytestmark = pytest.mark.slow

STEPS, WINDOW, PROMPT, FRAMES, STREAMS = 2, 10, 12, 6, 3
CPU = torch.device("cpu")
SHAPES = (
    ShapeSettings("short", chunk_frames=AxisRange(1, 6, 6), prompt_frames=AxisRange(1, 12, 12)),
    ShapeSettings("long", chunk_frames=AxisRange(1, 6, 8), prompt_frames=AxisRange(1, 12, 40)),
)
SIZES = EstimatorSizes(STREAMS, FRAMES, PROMPT, WINDOW)


class NoReadback(TorchDispatchMode):
    """Fails on every operation that would make the host wait for a GPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket.__name__ not in ("_local_scalar_dense", "nonzero", "masked_select"), func
        return func(*args, **(kwargs or {}))


def describe(flow: Flow) -> GraphSpec:
    return describe_graphs(flow.config, make_hift().config, Precision.FLOAT32, SHAPES)[ESTIMATOR_CHUNK]


@pytest.fixture(scope="module")
def flow() -> Flow:
    return make_flow()


@pytest.fixture
def engine(flow: Flow) -> ModuleEngine:
    spec = describe(flow)
    return ModuleEngine(spec, estimator_module(flow, Precision.FLOAT32, spec.limit("chunk_frames")))


class Batch:
    """Three streams, two of one voice; the rings are partly written and hold NaN where they are not."""

    def __init__(self, flow: Flow) -> None:
        c = flow.config.estimator
        kv = (STEPS, c.depth, 2, c.num_heads)
        self.voice_of = (1, 0, 1)
        self.voices = [_normal(*kv, length, 2 * c.head_dim, seed=length) for length in (7, 12)]
        generated = torch.tensor([0, 4, 25])
        window = _normal(5, *kv, WINDOW, 2 * c.head_dim, seed=1)
        slots = torch.tensor([2, 0, 4])
        for slot, count in zip(slots, generated, strict=True):
            window[slot, ..., min(int(count), WINDOW) :, :] = float("nan")
        self.pool = SolverPool(window, _normal(5, STEPS, c.depth, 2, 2, 2, c.hidden_size, seed=2))
        addresses = torch.tensor([self.voices[index].data_ptr() for index in self.voice_of])
        lengths = torch.tensor([12, 7, 12])
        counts = torch.tensor([6, 1, 3])
        self.places = KeyPlaces(slots, addresses, lengths, generated, counts)
        self.solving = SolverBatch(self.places, lengths + generated, counts, prompt_size=PROMPT)
        mel = (STREAMS, FRAMES, 80)
        self.noise, self.mu, self.cond = (_normal(*mel, seed=seed) for seed in (3, 4, 5))
        self.speaker = _normal(STREAMS, 80, seed=6)


def _normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Recorder(DiTSolver):
    """The fused kernels, whose calls are counted and compute nothing."""

    calls = 0

    def solve(self, noise: Tensor, *_: Any) -> Tensor:
        self.calls += 1
        return noise


def make_solver(flow: Flow, engine: ModuleEngine, planned: Sequence[EstimatorSizes] = (SIZES,)) -> TensorRTSolver:
    return solver_of(flow, PlannedEngine(engine, describe(flow), planned, CPU))


def solver_of(
    flow: Flow,
    estimator: PlannedEngine[EstimatorSizes],
    others: Recorder | None = None,
    prompts: Sequence[int] = (PROMPT, 40),
) -> TensorRTSolver:
    others = others or Recorder(flow.decoder, STEPS, torch.float32)
    return TensorRTSolver(estimator, others, STEPS, flow.decoder.guidance, PromptSizes(prompts, 40))


def solve(solver: TensorRTSolver, batch: Batch, cond: Tensor | None, prompt_size: int = PROMPT) -> Tensor:
    solving = replace(batch.solving, prompt_size=prompt_size)
    return solver.solve(batch.noise, batch.mu, batch.speaker, cond, solving, batch.pool)


def test_it_equals_the_plain_solver_for_every_row(flow: Flow, engine: ModuleEngine) -> None:
    """Mixed histories and lengths, a shared voice, places of the rings never written."""
    batch = Batch(flow)
    expected = list(plain_rows(flow, batch))
    got = solve(make_solver(flow, engine), batch, batch.cond)
    for row, (mel, update) in enumerate(expected):
        frames, slot = mel.shape[0], int(batch.places.slots[row])
        places = (int(batch.places.generated[row]) + torch.arange(frames)) % WINDOW
        torch.testing.assert_close(got[row, :frames], mel, atol=1e-4, rtol=0)
        kept = batch.pool.window[slot][..., places, :]
        torch.testing.assert_close(kept, update.kv[:, :, :, 0], atol=1e-4, rtol=0)
        torch.testing.assert_close(model_tails(batch.pool.tails[slot]), update.tail[:, :, :, 0], atol=1e-4, rtol=0)


def test_a_size_is_bound_once_and_its_runs_are_independent(flow: Flow, engine: ModuleEngine) -> None:
    batch, solver = Batch(flow), make_solver(flow, engine)
    before = replace(batch.pool, window=batch.pool.window.clone(), tails=batch.pool.tails.clone())
    first = solve(solver, batch, None)
    addresses = engine.journal.addresses
    batch.pool = replace(before, window=before.window.nan_to_num(7.0))
    with NoReadback():
        second = solve(solver, batch, None)
    torch.testing.assert_close(second, first)
    assert addresses == len(engine.tensors), "every tensor is given once"
    assert (engine.journal.addresses, engine.journal.contexts) == (addresses, 1)
    assert engine.journal.runs == 2 * STEPS


def plain_rows(flow: Flow, batch: Batch) -> Iterator[tuple[Tensor, SolverHistory]]:
    """Solve every row alone in the plain modules: mel [T, 80] and what it adds."""
    for row, slot in enumerate(batch.places.slots):
        frames, generated = int(batch.places.lengths[row]), int(batch.places.generated[row])
        ring = batch.pool.window[slot][..., : min(generated, WINDOW), :]
        kv = torch.cat([batch.voices[batch.voice_of[row]], ring], 4).unsqueeze(3)
        mask = torch.ones(1, 1, 1, kv.shape[5] + frames, dtype=torch.bool)
        noise, mu, cond = (mel[row : row + 1, :frames].transpose(1, 2) for mel in (batch.noise, batch.mu, batch.cond))
        history = SolverHistory(kv, model_tails(batch.pool.tails[slot]).unsqueeze(3))
        lengths = torch.tensor([frames])
        mel, update = flow.decoder(noise, mu, batch.speaker[row : row + 1], cond, mask, lengths, STEPS, history)
        yield mel[0].T, update


def model_tails(tails: Tensor) -> Tensor:
    """[n, L, convolution, cfg, column, C] as the modules have it: [n, L, cfg, 2C, column]."""
    return tails.permute(0, 1, 3, 2, 5, 4).flatten(3, 4)


@pytest.mark.parametrize("prompt_size", [11, 40], ids=["not planned", "planned, no profile"])
def test_other_sizes_are_solved_by_the_fused_kernels(flow: Flow, engine: ModuleEngine, prompt_size: int) -> None:
    too_long = replace(SIZES, chunk_frames=9, prompt_frames=40)
    estimator = PlannedEngine(engine, describe(flow), (SIZES, too_long), CPU)
    others = Recorder(flow.decoder, STEPS, torch.float32)
    solver = solver_of(flow, estimator, others)
    batch = Batch(flow)
    batch.noise = torch.zeros(STREAMS, 9, 80)
    solve(solver, batch, None, prompt_size)
    assert (others.calls, engine.journal.runs) == (1, 0)


def test_prompts_are_padded_to_the_next_prepared_size_and_longer_ones_not_at_all(
    flow: Flow, engine: ModuleEngine
) -> None:
    solver = make_solver(flow, engine)
    assert [solver.prompt_size(frames, end=99_999) for frames in (1, 12, 13, 40, 41)] == [12, 12, 40, 40, 0]
    assert solver.prompt_sizes == (12, 40)
    estimator = PlannedEngine(engine, describe(flow), (SIZES,), CPU)
    shorter = solver_of(flow, estimator, prompts=(PROMPT,))
    assert shorter.prompt_sizes == (12, 0), "prompts up to 40 frames need programs too"


def test_a_size_takes_the_smallest_profile_that_holds_it(flow: Flow, engine: ModuleEngine) -> None:
    planned = (SIZES, replace(SIZES, prompt_frames=40))
    estimator = PlannedEngine(engine, describe(flow), planned, CPU)
    for sizes in planned:
        estimator.bind(sizes)
    names = [profile.name for profile in describe(flow).profiles]
    assert [names[index] for index in engine.journal.profiles] == ["short", "long"]


def test_sizes_share_memory_and_keep_their_contexts(flow: Flow, engine: ModuleEngine) -> None:
    smaller = replace(SIZES, streams=1, chunk_frames=2)
    estimator = PlannedEngine(engine, describe(flow), (SIZES, smaller), CPU)
    large = estimator.bind(SIZES)
    assert estimator.bind(smaller).tensors["x"].data_ptr() == large.tensors["x"].data_ptr()
    assert estimator.bind(SIZES) is large


def test_an_engine_of_another_graph_or_without_fitting_profiles_is_refused(flow: Flow, engine: ModuleEngine) -> None:
    spec = describe(flow)
    with pytest.raises(EngineUnfitError, match="export and build it again"):
        PlannedEngine(engine, replace(spec, outputs=spec.outputs[:1]), (SIZES,), CPU)
    with pytest.raises(EngineUnfitError, match="hold none of the planned sizes"):
        PlannedEngine(engine, spec, (replace(SIZES, chunk_frames=99),), CPU)
