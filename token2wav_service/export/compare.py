"""Measures a graph against the checkpoint's own modules in float32: a file, a module or an engine, on drawn inputs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from token2wav_service.errors import ExportError
from token2wav_service.export.directory import manifest_path
from token2wav_service.export.modules import Models, module_for
from token2wav_service.export.onnx_file import sample_inputs
from token2wav_service.features.prompt_models import open_session
from token2wav_service.graphs import GraphSpec, Precision
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
"""Seeds of the inputs at each size."""

Tensors = Mapping[str, Tensor]
Run = Callable[[Tensors], Tensors]
"""Computes a graph's outputs of its inputs, by name."""


def compare_graph(directory: Path | None, spec: GraphSpec, models: Models) -> EngineCertificate:
    """Compare one graph, as ONNX Runtime computes the exported file.

    Args:
        directory: holds the file; None compares the module that is exported, as PyTorch computes it.
    """
    run = _of_module(spec, module_for(spec, models)) if directory is None else open_graph(directory, spec)
    return _certificate(spec, models, run, MIN_SNR_DB[spec.precision])


def certify_engine(spec: GraphSpec, models: Models, engine: TensorRTEngine, device: torch.device) -> EngineCertificate:
    """Compare an engine on its GPU."""
    least = ENGINE_MIN_SNR_DB[spec.precision]
    return _certificate(spec, models, lambda inputs: run_once(engine, inputs, device), least, device)


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
    min_snr_db: float,
    device: torch.device | str = "cpu",
) -> EngineCertificate:
    """Measure at the smallest and the expected sizes of the graph's axes."""
    plain = _of_module(spec, module_for(spec, models, is_plain=True).to(device))
    measured = []
    for sizes, seed in itertools.product((spec.sizes("min"), spec.sizes("opt")), SEEDS):
        inputs = {name: value.to(device) for name, value in sample_inputs(spec, sizes, seed).items()}
        got = run(inputs)
        # Without TF32, which convolutions take by default.
        with torch.backends.cudnn.flags(allow_tf32=False):
            wanted = plain(
                {name: value.float() if value.is_floating_point() else value for name, value in inputs.items()}
            )
        errors = tuple(output_error(name, got[name], value) for name, value in wanted.items())
        measured.append(CertifiedCase(sizes, errors))
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
