"""Finds the cost model's parameters from measurements.

The step of token2wav is a line through what `benchmarks.engine_gpu` measured alone on the GPU. What can't be measured
apart (the LLM's steps, the processes around, what the services cost each other on one GPU) is fitted by simulating
some runs of `benchmarks.end_to_end` until their figures come out; other runs are left out and tell how good it is.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.lib.sweep import FinishedRun
from cosydit.bench.metrics import percentile, playback_underrun
from cosydit.bench.types import RequestRecord
from lab.simulate.compare import mapping
from lab.simulate.compute import Slowdown
from lab.simulate.costs import CostModel, GatewayCost, LLMCost, StepCost, Token2WavCost
from token2wav_service.contract import LOOKAHEAD_TOKENS
from token2wav_service.runtime.slots.step_shapes import StepShapes

Figures = Mapping[str, float]
Simulate = Callable[[CostModel, int], Mapping[str, Figures]]
"""Returns the figures of every run, by its name; the number is the seed of its draws."""
FloatArray = npt.NDArray[np.float64]

PARAMETERS = (
    "llm.request_s",
    "llm.message_s",
    "llm.step_fixed_s",
    "llm.step_per_request_s",
    "llm.prompt_step_s",
    "llm.eager_step_s",
    "token2wav.answer_s",
    "gateway.request_s",
    "gateway.message_s",
    "gateway.chunk_s",
    "gateway.latency_s",
    "llm_slowdown.fixed",
    "llm_slowdown.by_load",
)
"""Parameters fitted end to end; all are positive and searched by their logarithms. Of the work around token2wav's steps
only the handing back of a chunk (`answer_s`) is fitted. The rest, and the slowdown of these steps beside the LLM, was
read off a log: the GPU is the same on every host, and a fit of them would make up for what is slow elsewhere and
misplace the load at which token2wav falls behind."""
HEARD_S = (1.0, 3.0, 6.0)
"""Seconds of audio whose arrival is compared, beside the first."""
WEIGHTS = {"ttfa_p50": 2.0, "audio_s_per_s": 2.0, "total_p50": 2.0, "total_p95": 0.5}
"""Weights of the figures that a simulation is for and that chance changes little; the others have weight 1."""
PRIOR_WEIGHT = 0.1
"""Weight of a parameter that differs from its first guess by a factor of e, beside a figure that is off by its whole:
bounds parameters that the runs hardly determine."""
UNDERRUN_RATIO = "underrun_ratio"
FINALISTS, FINAL_SEEDS = 8, (1, 2)
"""Number of the best of a search that are compared again, and the seeds for that: the search's own draws favoured
them."""
ROUND = 16
"""Simulations between two looks at them."""
_RADIUS, _NEARER, _LEAST_RADIUS = 0.2, 0.75, 0.08
"""Standard deviation of a change, in logarithms: in the first round, its factor from round to round, its least."""
_NEAR = 3.0
"""Radii from the centre, in one parameter, beyond which a simulation counts little for the plane."""
_NOISE, _SLOPE = 0.07, 0.5
"""Share of a miss that chance may add, and that a parameter e times as large may."""
_LONGEST = 0.5
"""Longest way between two rounds, in logarithms of each parameter."""


@dataclass(frozen=True)
class Fit:
    """What a search found."""

    model: CostModel
    loss: float
    """Sum of squares, priors included; the mean over FINAL_SEEDS."""
    simulations: int


def step_points(engine_raw: Mapping[str, Any]) -> list[tuple[int, int, float]]:
    """Return (streams, spoken tokens, seconds) of every program that was measured in one step alone."""
    shapes, points = StepShapes(), []
    for streams, seconds in engine_raw["first_chunk_s"].items():
        points.append((int(streams), shapes.token_buckets[0], statistics.median(seconds)))
    for row in engine_raw["batches"]:
        tokens = shapes.token_bucket(row["tokens"] - LOOKAHEAD_TOKENS)
        steps = math.ceil(row["streams"] / shapes.most_streams(tokens, is_crowded=False))
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
            request_s=0.004,
            message_s=0.00008,
            step_fixed_s=0.0021,
            step_per_request_s=0.000035,
            prompt_step_s=0.0045,
            eager_step_s=0.012,
            prefill_per_token_s=0.000005,
        ),
        Token2WavCost(step, open_s=0.003, push_s=0.001, answer_s=0.0003, around_s=0.0014, stream_s=0.00017),
        GatewayCost(request_s=0.004, message_s=0.00026, chunk_s=0.0006, latency_s=0.009),
        llm_slowdown=Slowdown(0.03, 0.85),
        token2wav_slowdown=Slowdown(0.345, 0.0, relief=0.7, light_load=0.015, light=0.245),
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
class _Misses:
    """How far off a simulation with these logarithms of the parameters comes out. Travels to other processes."""

    guess: CostModel
    simulate: Simulate
    targets: Mapping[str, Figures]
    parameters: tuple[str, ...]

    @property
    def begin(self) -> FloatArray:
        logs: FloatArray = np.log(np.array([self.guess.parameter(path) for path in self.parameters]))
        return logs

    def model(self, logs: FloatArray) -> CostModel:
        values = [float(value) for value in np.exp(logs)]
        return self.guess.with_parameters(dict(zip(self.parameters, values, strict=True)))

    def loss(self, logs: FloatArray, misses: FloatArray) -> float:
        """Return the sum of squares, priors included."""
        return float(np.sum(misses**2) + PRIOR_WEIGHT**2 * np.sum((logs - self.begin) ** 2))

    def __call__(self, logs: FloatArray, seed: int = 0) -> FloatArray:
        made = self.simulate(self.model(logs), seed)
        off = [_off(name, made[run][name], value) for run, each in self.targets.items() for name, value in each.items()]
        return np.array(off)


def fit(
    guess: CostModel,
    simulate: Simulate,
    targets: Mapping[str, Figures],
    parameters: Sequence[str] = PARAMETERS,
    simulations: int = 64,
    note: Callable[[int, float], None] = lambda simulation, loss: None,
    processes: int = 1,
) -> Fit:
    """Search the parameters with which a simulation's figures come out as measured.

    Batches jump with every change of a parameter, so that a slope between two simulations misleads. The search tries
    ROUND changes at random around the best guess, lays a plane through the misses of all it tried, goes where the plane
    and what it leaves uncertain say that the loss is least, and tries around there, nearer each time. In the end the
    FINALISTS are simulated again. The same call finds the same, whatever the processes.

    Args:
        guess: where to begin; what is not searched stays.
        simulate: makes the runs that `targets` names; to be pickled if there are several processes.
        targets: the figures to come to, by run.
        parameters: paths of what is searched.
        simulations: how many to make in the search, in rounds of ROUND.
        note: told the loss of every simulation.
        processes: how many simulate at the same time.
    """
    miss = _Misses(guess, simulate, targets, tuple(parameters))
    draw = np.random.default_rng(0)
    centre = miss.begin
    tried: list[FloatArray] = []
    misses: list[FloatArray] = []
    losses: list[float] = []
    with mapping(processes) as run_all:
        while len(tried) < simulations:
            radius = max(_LEAST_RADIUS, _RADIUS * _NEARER ** (len(tried) // ROUND))
            around = radius * draw.standard_normal((min(ROUND, simulations - len(tried)) - 1, len(centre)))
            batch = [centre, *(centre + around)]
            for logs, off in zip(batch, run_all(miss, batch), strict=True):
                tried.append(logs)
                misses.append(off)
                losses.append(miss.loss(logs, off))
                note(len(tried), losses[-1])
            centre = _least_expected(np.array(tried), np.array(misses), miss.begin, centre, radius)
        finalists = [centre, *(tried[number] for number in np.argsort(losses)[: FINALISTS - 1])]
        again = [(logs, seed) for logs in finalists for seed in FINAL_SEEDS]
        drawn = list(run_all(miss, *zip(*again, strict=True)))
    of_each = [miss.loss(logs, off) for (logs, _), off in zip(again, drawn, strict=True)]
    means = np.array(of_each).reshape(len(finalists), len(FINAL_SEEDS)).mean(axis=1)
    best = int(np.argmin(means))
    return Fit(miss.model(finalists[best]), float(means[best]), len(tried) + len(drawn))


def _least_expected(
    tried: FloatArray, misses: FloatArray, begin: FloatArray, centre: FloatArray, radius: float
) -> FloatArray:
    """Return where the loss is expected to be least.

    A ridge regression of the misses on the parameters, of which those near the centre count most, gives a plane and
    its uncertainty. What a plane leaves uncertain grows with the way from where it was laid, so that long ways have to
    promise much.
    """
    away = tried - centre
    size = len(begin)
    near = np.exp(-np.sum(away**2, axis=1) / (2 * size * (_NEAR * radius) ** 2))
    rows = np.hstack([np.ones((len(away), 1)), away])
    ridge = np.diag([0.0, *[(_NOISE / _SLOPE) ** 2] * size])
    covariance = np.linalg.inv(rows.T @ (near[:, None] * rows) + ridge)
    plane = covariance @ rows.T @ (near[:, None] * misses)
    unsure = misses.shape[1] * _NOISE**2 * covariance
    height, slopes = plane[0], plane[1:]
    curvature = slopes @ slopes.T + unsure[1:, 1:] + PRIOR_WEIGHT**2 * np.eye(size)
    pull = slopes @ height + unsure[1:, 0] + PRIOR_WEIGHT**2 * (centre - begin)
    found: FloatArray = centre - np.clip(np.linalg.solve(curvature, pull), -_LONGEST, _LONGEST)
    return found


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
