"""Measures a graph against the checkpoint's own modules in float32: a file, a module or an engine, on drawn inputs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from token2wav_service.errors import ExportError
from token2wav_service.export.directory import manifest_path
from token2wav_service.export.modules import Models, module_for
from token2wav_service.export.onnx_file import sample_inputs
from token2wav_service.features.prompt_models import open_session
from token2wav_service.graphs.spec import GraphSpec, Precision
from token2wav_service.runtime.tensorrt.api import TensorRTEngine
from token2wav_service.runtime.tensorrt.manifest import CertifiedCase, EngineCertificate, OutputError
from token2wav_service.runtime.tensorrt.planned import run_once

MIN_SNR_DB = {Precision.FLOAT32: 90.0, Precision.FLOAT16: 50.0}
"""The least agreement with float32 that every output of an exported file must reach."""
ENGINE_MIN_SNR_DB = {Precision.FLOAT32: 55.0, Precision.FLOAT16: 45.0}
"""The same of an engine: products have 11 bits, those of float32 engines too (TF32). An overflow or a wrong mask leaves
less than 20 dB."""
MAX_SNR_DB = 300.0
"""Ratio that stands for no error at all; with a minus, for nothing in common. Finite, so that JSON can hold it."""
SEEDS = (0, 1)
"""Seeds of the inputs that an engine is measured with, at each size."""

Tensors = Mapping[str, Tensor]
Run = Callable[[Tensors], Tensors]
"""Computes a graph's outputs of its inputs, by name."""


@dataclass(frozen=True)
class Sweep:
    """Sizes to compare at; every combination is taken that is not too large."""

    streams: tuple[int, ...] = (1, 3, 64)
    frames: tuple[int, ...] = (2, 50, 200)
    """Frames of a chunk and of the vocoder's input."""
    history: tuple[int, ...] = (1, 120, 1000)
    """Padded history frames, of the prompt and the window together."""
    largest: int = 3200
    """Largest product of streams and frames: beyond it, a CPU takes too long and finds nothing new."""

    def sizes(self, spec: GraphSpec) -> list[dict[str, int]]:
        """Return the sizes of a graph's axes at every point."""
        history = self.history if "window_frames" in spec.axes else (1,)
        points = itertools.product(self.streams, self.frames, history)
        return [_axis_sizes(spec, *point) for point in points if point[0] * point[1] <= self.largest]


def compare_graph(directory: Path | None, spec: GraphSpec, models: Models, sweep: Sweep) -> EngineCertificate:
    """Compare one graph at every point of a sweep, as ONNX Runtime computes the exported file.

    Args:
        directory: holds the file; None compares the module that is exported, as PyTorch computes it.
    """
    run = _of_module(spec, module_for(spec, models)) if directory is None else open_graph(directory, spec)
    cases = [(sizes, number) for number, sizes in enumerate(sweep.sizes(spec))]
    return _certificate(spec, models, run, cases, MIN_SNR_DB[spec.precision])


def certify_engine(spec: GraphSpec, models: Models, engine: TensorRTEngine, device: torch.device) -> EngineCertificate:
    """Run an engine at the smallest and the expected sizes of its profiles."""
    sizes = [
        spec.complete({axis: getattr(profile[axis], end) for axis in spec.axes})
        for profile in spec.profiles
        for end in ("min", "opt")
    ]
    cases = [(at, seed) for at in sizes for seed in SEEDS]
    least = ENGINE_MIN_SNR_DB[spec.precision]
    return _certificate(spec, models, lambda inputs: run_once(engine, inputs, device), cases, least, device)


def open_graph(directory: Path, spec: GraphSpec) -> Run:
    """Return an exported file, as ONNX Runtime runs it on the CPU.

    Raises:
        ExportError: the file is missing.
        CheckpointError: ONNX Runtime can't load it.
    """
    path = directory / spec.file_name
    if not (path.is_file() and manifest_path(path).is_file()):
        raise ExportError(f"{path} or its manifest is missing; run `cosydit export` on the checkpoint")
    session = open_session(path, threads=1)
    names = [output.name for output in session.get_outputs()]

    def run(inputs: Tensors) -> Tensors:
        made = session.run(names, {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in inputs.items()})
        return {name: torch.from_numpy(value) for name, value in zip(names, made, strict=True)}

    return run


@torch.inference_mode()
def _certificate(
    spec: GraphSpec,
    models: Models,
    run: Run,
    cases: Sequence[tuple[Mapping[str, int], int]],
    min_snr_db: float,
    device: torch.device | str = "cpu",
) -> EngineCertificate:
    """Measure at every (sizes, seed)."""
    plain = _of_module(spec, module_for(spec, models, is_plain=True).to(device))
    measured = []
    for sizes, seed in cases:
        inputs = {name: value.to(device) for name, value in sample_inputs(spec, sizes, seed).items()}
        got = run(inputs)
        with _exact_products():
            wanted = plain({name: _widened(value) for name, value in inputs.items()})
        errors = tuple(output_error(name, got[name], value) for name, value in wanted.items())
        measured.append(CertifiedCase(dict(sizes), errors))
    return EngineCertificate(min_snr_db, tuple(measured))


def _of_module(spec: GraphSpec, module: nn.Module) -> Run:
    def run(inputs: Tensors) -> Tensors:
        made = module(*(inputs[tensor.name] for tensor in spec.inputs))
        outputs = made if isinstance(made, tuple) else (made,)
        return {tensor.name: value for tensor, value in zip(spec.outputs, outputs, strict=True)}

    return run


def output_error(name: str, got: Tensor, wanted: Tensor) -> OutputError:
    """Return how far one output is from what it should be."""
    difference = got.double() - wanted.double()
    noise, signal = difference.square().sum().item(), wanted.double().square().sum().item()
    worst = difference.abs().max().item()
    if not math.isfinite(noise):
        return OutputError(name, -MAX_SNR_DB, worst if math.isfinite(worst) else float(torch.finfo(torch.float32).max))
    snr_db = MAX_SNR_DB if noise == 0 else 10 * math.log10(max(signal, 1e-30) / noise)
    return OutputError(name, max(-MAX_SNR_DB, min(MAX_SNR_DB, snr_db)), worst)


def _axis_sizes(spec: GraphSpec, streams: int, frames: int, history: int) -> dict[str, int]:
    """Two streams share a voice, a tenth of the history is the window."""
    window = max(1, history // 10)
    sizes = {
        "streams": streams,
        "rows": 2 * streams,
        "prompt_rows": 2 * -(-streams // 2),
        "chunk_frames": frames,
        "mel_frames": frames,
        "mel_columns": frames - spec.derived["mel_frames"].offset if "mel_frames" in spec.derived else frames,
        "prompt_frames": max(1, history - window),
        "window_frames": window,
    }
    return spec.complete({axis: sizes[axis] for axis in spec.axes if axis in sizes})


def _widened(value: Tensor) -> Tensor:
    return value.float() if value.is_floating_point() else value


@contextmanager
def _exact_products() -> Iterator[None]:
    """Keep TF32, which convolutions take by default, out of the reference."""
    with torch.backends.cudnn.flags(allow_tf32=False):
        yield
