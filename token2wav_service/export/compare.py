"""Compares exported graphs with the plain float32 models over a sweep of sizes.

Two things are compared: the file under ONNX Runtime, and the module it was exported from under PyTorch. ONNX Runtime
does not compute bfloat16 on a CPU; such a file runs under ONNX's own evaluator instead, at the small sizes that it can.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
from onnx.reference import ReferenceEvaluator
from torch import Tensor, nn

from token2wav_service.export.build import Models, module_for
from token2wav_service.export.onnx_models import RUNNABLE, OnnxGraph
from token2wav_service.export.samples import sample_inputs
from token2wav_service.graphs.spec import GraphSpec, Precision

MIN_SNR_DB = {Precision.FLOAT32: 90.0, Precision.FLOAT16: 50.0, Precision.BFLOAT16: 30.0}
"""The least agreement with float32 that every output of a graph must reach."""

NOTHING_IN_COMMON_DB = -1000.0
"""Value where a ratio has no meaning: not numbers, or an error where nothing should be. Finite, so that JSON can hold
it."""


class Executor(str, Enum):
    """The program that computed the compared side."""

    ONNX_RUNTIME = "onnxruntime"
    """ONNX Runtime ran the exported file."""
    ONNX_REFERENCE = "onnx reference"
    """ONNX's slow reference evaluator ran the exported file."""
    PYTORCH = "pytorch"
    """PyTorch ran the module that was exported."""


@dataclass(frozen=True)
class Sweep:
    """Sizes to compare at; every combination is taken that is not too large."""

    streams: tuple[int, ...] = (1, 3, 64)
    frames: tuple[int, ...] = (2, 50, 200)
    """Frames of a chunk, of a whole utterance and of the vocoder's input; even."""
    history: tuple[int, ...] = (1, 120, 1000)
    """Padded history frames, of the prompt and the window together."""
    largest: int = 3200
    """Largest product of streams and frames: beyond it, a CPU takes too long and finds nothing new."""


REFERENCE_SWEEP = Sweep(streams=(1, 3), frames=(2, 10), history=(1, 8))
"""Sizes for ONNX's evaluator, which gathers from at most 32 columns."""


@dataclass(frozen=True)
class Comparison:
    """One graph at one set of sizes: its worst output."""

    graph: str
    precision: Precision
    executor: Executor
    sizes: Mapping[str, int]
    output: str
    max_abs: float
    snr_db: float | None
    """Signal to error ratio in dB; None where nothing differs."""

    @property
    def passed(self) -> bool:
        """True within tolerance."""
        return self.snr_db is None or self.snr_db >= MIN_SNR_DB[self.precision]


@dataclass(frozen=True)
class GraphVerdict:
    """One graph over the whole sweep."""

    graph: str
    precision: Precision
    executor: Executor
    cases: int
    max_abs: float
    snr_db: float | None
    passed: bool


def sweep_sizes(spec: GraphSpec, sweep: Sweep) -> list[dict[str, int]]:
    """Return the sizes of a graph's axes at every point of the sweep."""
    has_history = "history_frames" in spec.axes or "window_frames" in spec.axes
    points = itertools.product(sweep.streams, sweep.frames, sweep.history if has_history else (1,))
    return [
        spec.complete(_axis_sizes(spec, streams, frames, history))
        for streams, frames, history in points
        if streams * frames <= sweep.largest
    ]


def compare_graph(directory: Path | None, spec: GraphSpec, models: Models, sweep: Sweep) -> Iterator[Comparison]:
    """Compare one graph at every point of the sweep, with each executor that can.

    Args:
        directory: holds the exported file; None compares the module alone.
    """
    plain = module_for(spec, models, is_plain=True).eval()
    for executor, graph in _executors(directory, spec, models).items():
        points = sweep_sizes(spec, REFERENCE_SWEEP if executor is Executor.ONNX_REFERENCE else sweep)
        for number, sizes in enumerate(points):
            inputs = sample_inputs(spec, sizes, seed=number)
            wanted = _run(plain, spec, {name: _widened(tensor) for name, tensor in inputs.items()})
            output, max_abs, snr_db = _worst(_run(graph, spec, inputs), wanted)
            yield Comparison(spec.name, spec.precision, executor, sizes, output, max_abs, snr_db)


def verdicts(comparisons: Sequence[Comparison]) -> list[GraphVerdict]:
    """Summarise comparisons by graph, precision and executor, in order of first appearance."""
    groups: dict[tuple[str, Precision, Executor], list[Comparison]] = {}
    for one in comparisons:
        groups.setdefault((one.graph, one.precision, one.executor), []).append(one)
    return [
        GraphVerdict(
            *key,
            cases=len(group),
            max_abs=max(one.max_abs for one in group),
            snr_db=min((one.snr_db for one in group if one.snr_db is not None), default=None),
            passed=all(one.passed for one in group),
        )
        for key, group in groups.items()
    ]


def report_json(comparisons: Sequence[Comparison], sweep: Sweep) -> dict[str, Any]:
    """Return everything that was compared, ready for JSON; errors with 3 digits, ratios with one decimal."""
    samples: dict[str, dict[str, Any]] = {}
    for one in comparisons:
        sizes = " ".join(f"{axis}={size}" for axis, size in one.sizes.items())
        group = samples.setdefault(f"{one.graph} {one.precision.value} {one.executor.value}", {})
        group[sizes] = {"worst_output": one.output, **_rounded(one.max_abs, one.snr_db)}
    figures = [{**dataclasses.asdict(row), **_rounded(row.max_abs, row.snr_db)} for row in verdicts(comparisons)]
    tolerances = {precision.value: least for precision, least in MIN_SNR_DB.items()}
    return {
        "figures": figures,
        "tolerance_min_snr_db": tolerances,
        "sweeps": {"all": dataclasses.asdict(sweep), "onnx reference": dataclasses.asdict(REFERENCE_SWEEP)},
        "samples": samples,
    }


def markdown_table(rows: Sequence[GraphVerdict]) -> str:
    """Return verdicts as a table for the documentation."""
    lines = ["| graph | precision | computed by | sizes | max abs error | SNR, dB |", "|---|---|---|---|---|---|"]
    for row in rows:
        snr = "exact" if row.snr_db is None else f"{row.snr_db:.1f}"
        what = f"| {row.graph} | {row.precision.value} | {row.executor.value} | {row.cases} "
        lines.append(f"{what}| {row.max_abs:.2g} | {snr}{'' if row.passed else ' (out of tolerance)'} |")
    return "\n".join(lines) + "\n"


def _rounded(max_abs: float, snr_db: float | None) -> dict[str, float | None]:
    return {"max_abs": float(f"{max_abs:.3g}"), "snr_db": None if snr_db is None else round(snr_db, 1)}


def _axis_sizes(spec: GraphSpec, streams: int, frames: int, history: int) -> dict[str, int]:
    """Two streams share a voice, a tenth of the history is the window, tokens are half the frames."""
    tokens, window = frames // 2, max(1, history // 10)
    ahead = {axis: -derived.offset for axis, derived in spec.derived.items()}
    sizes = {
        "streams": streams,
        "rows": 2 * streams,
        "prompt_rows": 2 * -(-streams // 2),
        "chunk_frames": frames,
        "whole_frames": frames,
        "mel_frames": frames,
        "whole_tokens": tokens,
        "chunk_tokens": tokens + ahead.get("spoken_tokens", 0),
        "mel_columns": frames + ahead.get("mel_frames", 0),
        "prompt_frames": max(1, history - window),
        "window_frames": window,
        "history_frames": history,
        "history_tokens": -(-history // 2),
    }
    return {axis: sizes[axis] for axis in spec.axes if axis in sizes}


def _executors(
    directory: Path | None, spec: GraphSpec, models: Models
) -> dict[Executor, nn.Module | OnnxGraph | OnnxReference]:
    executors: dict[Executor, nn.Module | OnnxGraph | OnnxReference] = {
        Executor.PYTORCH: module_for(spec, models).eval()
    }
    if directory is None:
        return executors
    if spec.precision in RUNNABLE:
        executors[Executor.ONNX_RUNTIME] = OnnxGraph(directory, spec.name, spec.precision)
    else:
        executors[Executor.ONNX_REFERENCE] = OnnxReference(directory / spec.file_name)
    return executors


def _run(
    graph: nn.Module | OnnxGraph | OnnxReference, spec: GraphSpec, inputs: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    if isinstance(graph, OnnxGraph | OnnxReference):
        return graph.run(inputs)
    with torch.inference_mode():
        made = graph(*inputs.values())
    return dict(zip([t.name for t in spec.outputs], made if isinstance(made, tuple) else (made,), strict=True))


def _widened(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor


def _worst(got: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> tuple[str, float, float | None]:
    """Return the output with the lowest signal to error ratio, its largest error and that ratio."""
    errors = {name: _error(got[name].double(), value.double()) for name, value in wanted.items()}
    name = min(errors, key=lambda output: errors[output][1])
    max_abs, snr_db = errors[name]
    return name, max_abs, None if math.isinf(snr_db) and max_abs == 0 else snr_db


def _error(got: Tensor, wanted: Tensor) -> tuple[float, float]:
    difference = got - wanted
    noise, signal = difference.square().sum().item(), wanted.square().sum().item()
    if noise == 0:
        return 0.0, math.inf
    if signal == 0 or not math.isfinite(noise):
        return difference.abs().max().item(), NOTHING_IN_COMMON_DB
    return difference.abs().max().item(), 10 * math.log10(signal / noise)


class OnnxReference:
    """One exported file; tensors in and out by name."""

    def __init__(self, path: Path) -> None:
        self._evaluator = ReferenceEvaluator(str(path))

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the outputs by name; floating ones as float32."""
        made = self._evaluator.run(None, {name: _to_numpy(tensor) for name, tensor in inputs.items()})
        arrays = (np.asarray(array) for array in made)
        floats = (array if array.dtype.kind in "ib" else array.astype(np.float32) for array in arrays)
        return {name: torch.from_numpy(value) for name, value in zip(self._evaluator.output_names, floats, strict=True)}


def _to_numpy(tensor: Tensor) -> np.ndarray:  # type: ignore[type-arg]
    # torch and numpy share no bfloat16; through float32 nothing is lost.
    if tensor.dtype is torch.bfloat16:
        return tensor.float().numpy().astype(ml_dtypes.bfloat16)
    return np.asarray(tensor.numpy())
