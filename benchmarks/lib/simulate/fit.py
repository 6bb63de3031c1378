"""Finds the cost model's parameters from measurements.

The step of token2wav is a line through what `benchmarks.engine_gpu` measured alone on the GPU. What can't be measured
apart (the LLM's steps, the processes around, what the services cost each other on one GPU) is fitted by simulating
some runs of `benchmarks.end_to_end` until their figures come out; other runs are left out and tell how good it is.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.lib.metrics import percentile, playback_underrun
from benchmarks.lib.simulate.costs import CostModel, GatewayCost, LLMCost, StepCost, Token2WavCost
from benchmarks.lib.simulate.gpu import Slowdown
from benchmarks.lib.sweep import FinishedRun
from benchmarks.lib.types import RequestRecord
from token2wav_service.contract import LOOKAHEAD_TOKENS
from token2wav_service.runtime.step_shapes import StepShapes

Figures = Mapping[str, float]
Simulate = Callable[[CostModel], Mapping[str, Figures]]
"""The figures of every run, by its name."""
FloatArray = npt.NDArray[np.float64]

PARAMETERS = (
    "llm.request_s",
    "llm.message_s",
    "llm.step_fixed_s",
    "llm.step_per_request_s",
    "llm.prompt_step_s",
    "llm.eager_step_s",
    "token2wav.around_s",
    "token2wav.stream_s",
    "token2wav.answer_s",
    "gateway.request_s",
    "gateway.message_s",
    "gateway.chunk_s",
    "gateway.latency_s",
    "llm_slowdown.fixed",
    "llm_slowdown.by_load",
)
"""Fitted end to end; all are positive and searched by their logarithms. What token2wav loses beside the LLM is the same
on every host, because the GPU is: it was read off a log of token2wav's steps."""
HEARD_S = (1.0, 3.0)
"""Seconds of audio whose coming is compared, beside the first."""
WEIGHTS = {"ttfa_p50": 2.0, "ttfa_p95": 2.0, "audio_s_per_s": 2.0, "total_p95": 0.5}
"""Of the figures that a simulation is for; the others count once."""
PRIOR_WEIGHT = 0.1
"""Of a parameter that is e times off its first guess, beside a figure that is off by its whole: keeps those in bounds
that the runs hardly tell."""
UNDERRUN_RATIO = "underrun_ratio"
_FIRST_STRIDE = 0.15
"""Standard deviation of a change, in logarithms."""
_SHARE_CHANGED = 0.4
"""Of the parameters, in one change."""
_LONGER, _SHORTER = 1.4, 0.94
"""Steady where one change in seven is for the better."""


@dataclass(frozen=True)
class Fit:
    """What a search found."""

    model: CostModel
    loss: float
    """Sum of squares, priors included."""
    simulations: int


def step_points(engine_raw: Mapping[str, Any]) -> list[tuple[int, int, float]]:
    """Return (streams, spoken tokens, seconds) of every program that was measured in one step alone."""
    shapes, points = StepShapes(), []
    for streams, seconds in engine_raw["first_chunk_s"].items():
        points.append((int(streams), shapes.token_buckets[0], statistics.median(seconds)))
    for row in engine_raw["batches"]:
        tokens = shapes.token_bucket(row["tokens"] - LOOKAHEAD_TOKENS)
        steps = math.ceil(row["streams"] / shapes.most_streams(tokens))
        points.append((row["streams"] // steps, tokens, statistics.median(row["seconds"]) / steps))
    return points


def fit_step(points: Sequence[tuple[int, int, float]]) -> StepCost:
    """Fit the line that is least off, each point relative to itself."""
    rows = np.array([[1.0, streams, streams * tokens] for streams, tokens, _ in points])
    seconds = np.array([point[2] for point in points])
    found, *_ = np.linalg.lstsq(rows / seconds[:, None], np.ones(len(points)), rcond=None)
    return StepCost(*(float(value) for value in found))


def first_guess(gpu: str, step: StepCost) -> CostModel:
    """Return where the search begins: what the processes' own logs of steps and messages said on an H200's host."""
    return CostModel(
        gpu,
        LLMCost(
            request_s=0.0012,
            message_s=0.00006,
            step_fixed_s=0.0021,
            step_per_request_s=0.000017,
            prompt_step_s=0.002,
            eager_step_s=0.0095,
            prefill_per_token_s=0.000005,
        ),
        Token2WavCost(step, open_s=0.003, push_s=0.001, answer_s=0.00027, around_s=0.0018, stream_s=0.00016),
        GatewayCost(request_s=0.0035, message_s=0.00013, chunk_s=0.0009, latency_s=0.012),
        llm_slowdown=Slowdown(0.05, 0.05),
        token2wav_slowdown=Slowdown(0.2, 0.01),
    )


def figures_of(run: FinishedRun, first: int | None = None) -> dict[str, float]:
    """Return the figures of a run that a fit compares: seconds, and seconds of audio a second.

    Args:
        run: measured or simulated.
        first: look at so many requests only, and not at what depends on those after them.
    """
    records = sorted(run.result.records, key=lambda record: record.sent_s)[:first]
    good = [record for record in records if record.is_ok]
    begun = [record.arrivals[0].at_s for record in good]
    dry = sum(playback_underrun(record.arrivals, 0.0).gaps > 0 for record in good) / len(good)
    figures = {"ttfa_p50": percentile(begun, 50), "ttfa_p95": percentile(begun, 95), UNDERRUN_RATIO: dry}
    for audio_s in HEARD_S:
        figures[f"heard_{audio_s:g}s_p50"] = percentile([_heard_at_s(record, audio_s) for record in good], 50)
    if first is None:
        total = [record.total_s for record in good]
        figures |= {"total_p50": percentile(total, 50), "total_p95": percentile(total, 95)}
        figures["audio_s_per_s"] = sum(record.audio_s for record in good) / run.result.wall_s
    return figures


@dataclass(frozen=True)
class _Loss:
    """How far off a simulation with these logarithms of the parameters comes out. Travels to other processes."""

    guess: CostModel
    simulate: Simulate
    targets: Mapping[str, Figures]
    parameters: tuple[str, ...]

    @property
    def begin(self) -> FloatArray:
        logs: FloatArray = np.log(np.array([self.guess.parameter(path) for path in self.parameters]))
        return logs

    @property
    def parts(self) -> npt.NDArray[np.int64]:
        """Number of the part of the model that each parameter belongs to."""
        names = [path.split(".")[0] for path in self.parameters]
        return np.array([names.index(name) for name in names])

    def model(self, logs: FloatArray) -> CostModel:
        values = [float(value) for value in np.exp(logs)]
        return self.guess.with_parameters(dict(zip(self.parameters, values, strict=True)))

    def __call__(self, logs: FloatArray) -> float:
        made = self.simulate(self.model(logs))
        off = [_off(name, made[run][name], value) for run, each in self.targets.items() for name, value in each.items()]
        return sum(each * each for each in off) + PRIOR_WEIGHT**2 * float(np.sum((logs - self.begin) ** 2))


def fit(
    guess: CostModel,
    simulate: Simulate,
    targets: Mapping[str, Figures],
    parameters: Sequence[str] = PARAMETERS,
    simulations: int = 120,
    note: Callable[[int, float], None] = lambda simulation, loss: None,
    processes: int = 1,
) -> Fit:
    """Search the parameters with which a simulation's figures come out as measured.

    Batches jump with every change of a parameter, so that slopes mislead: the search tries a random change of the best
    so far, keeps it if it is better, and goes in larger steps when that happens often. Several processes try as many
    changes at once, of which the best counts. The same call finds the same.

    Args:
        guess: where to begin; what is not searched stays.
        simulate: makes the runs that `targets` names; to be pickled if there are several processes.
        targets: the figures to come to, by run.
        parameters: paths of what is searched.
        simulations: how many to make.
        note: told the loss of every simulation.
        processes: how many simulate at the same time.
    """
    loss = _Loss(guess, simulate, targets, tuple(parameters))
    draw = np.random.default_rng(0)
    with ExitStack() as stack:
        run_all = stack.enter_context(ProcessPoolExecutor(processes)).map if processes > 1 else map
        best, least, stride, made = loss.begin, loss(loss.begin), _FIRST_STRIDE, 1
        note(made, least)
        while made < simulations:
            tried = [_changed(best, loss.parts, stride, draw) for _ in range(min(processes, simulations - made))]
            losses = list(run_all(loss, tried))
            for each in losses:
                made += 1
                note(made, each)
            better = sum(each < least for each in losses)
            stride *= _LONGER**better * _SHORTER ** (len(losses) - better)
            if better:
                least = min(losses)
                best = tried[losses.index(least)]
    return Fit(loss.model(best), least, simulations)


def _changed(logs: FloatArray, parts: npt.NDArray[np.int64], stride: float, draw: np.random.Generator) -> FloatArray:
    """Change some parameters, each by itself, and all of some parts alike: a slower host is slower in all it does."""
    chosen = draw.random(len(logs)) < _SHARE_CHANGED
    count = int(parts.max()) + 1
    alike = (draw.random(count) < _SHARE_CHANGED) * draw.standard_normal(count)
    change: FloatArray = stride * (chosen * draw.standard_normal(len(logs)) + alike[parts])
    return logs + change


def _off(name: str, made: float, target: float) -> float:
    """Return how far a figure is off: a share by itself, all else by its logarithm."""
    if name == UNDERRUN_RATIO:
        return made - target
    return WEIGHTS.get(name, 1.0) * math.log(made / target)


def _heard_at_s(record: RequestRecord, audio_s: float) -> float:
    """Return when so much audio had come."""
    heard_s = 0.0
    for arrival in record.arrivals:
        heard_s += arrival.audio_s
        if heard_s >= audio_s:
            return arrival.at_s
    return record.total_s
