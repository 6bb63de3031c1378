"""Measures a new engine against the checkpoint's own modules in float32, on inputs drawn for every profile."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from token2wav_service.checkpoint import loader
from token2wav_service.errors import ExportError
from token2wav_service.export.build import Models, module_for
from token2wav_service.export.manifest import read_manifest
from token2wav_service.export.samples import sample_inputs
from token2wav_service.export.tensorrt.build import read_spec
from token2wav_service.graphs.catalogue import describe_graphs
from token2wav_service.graphs.spec import GraphSpec
from token2wav_service.runtime.tensorrt.api import TensorRTEngine
from token2wav_service.runtime.tensorrt.contexts import run_once
from token2wav_service.runtime.tensorrt.manifest import CertifiedCase, EngineCertificate, OutputError

MIN_SNR_DB: Mapping[str, float] = {"float32": 55.0, "float16": 45.0, "bfloat16": 30.0}
"""Least signal to error ratio of an engine, by precision. Products have 11 (TF32 in float32 engines, float16) or 8 bits
(bfloat16); an overflow or a wrong mask leaves less than 20 dB."""
MAX_SNR_DB = 300.0
"""Ratio that stands for no error at all."""

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Case:
    """Inputs to measure at."""

    sizes: Mapping[str, int]
    """Sizes of the graph's axes."""
    inputs: Tensors
    """Inputs by name, in the engine's own types."""


class ReferenceCertifier:
    """Runs an engine and a float32 reference on the same inputs."""

    def __init__(
        self,
        cases: Sequence[Case],
        reference: Callable[[Tensors], Tensors],
        min_snr_db: float,
        device: torch.device,
    ) -> None:
        """Keep what to compare.

        Args:
            cases: at least one for each of the engine's profiles.
            reference: computes the outputs in float32 from inputs on `device`; floating inputs come as float32.
            min_snr_db: what every output has to reach.
        """
        self._cases, self._reference, self._min_snr_db, self._device = cases, reference, min_snr_db, device

    @torch.inference_mode()
    def __call__(self, engine: TensorRTEngine) -> EngineCertificate:
        """Measure every case."""
        return EngineCertificate(self._min_snr_db, tuple(self._measure(engine, case) for case in self._cases))

    def _measure(self, engine: TensorRTEngine, case: Case) -> CertifiedCase:
        inputs = {name: value.to(self._device) for name, value in case.inputs.items()}
        got = run_once(engine, inputs, self._device)
        expected = self._reference({name: _widened(value) for name, value in inputs.items()})
        errors = tuple(_error(name, got[name].float(), expected[name].float()) for name in got)
        return CertifiedCase(dict(case.sizes), errors)


def _widened(value: Tensor) -> Tensor:
    return value.float() if value.is_floating_point() else value


def _error(name: str, got: Tensor, expected: Tensor) -> OutputError:
    difference = (got.double() - expected.double()).flatten()
    power, noise = expected.double().square().sum().item(), difference.square().sum().item()
    worst = difference.abs().max().item()
    if not math.isfinite(noise):
        return OutputError(name, -MAX_SNR_DB, worst if math.isfinite(worst) else float(torch.finfo(torch.float32).max))
    snr_db = MAX_SNR_DB if noise == 0 else 10 * math.log10(max(power, 1e-30) / noise)
    return OutputError(name, max(-MAX_SNR_DB, min(MAX_SNR_DB, snr_db)), worst)


SEEDS = (0, 1)
"""Seeds of the inputs at each size."""


def make_certifier(model_dir: Path, onnx: Path, device: torch.device) -> ReferenceCertifier:
    """Return what measures the engine of an exported graph.

    Args:
        model_dir: the checkpoint that the graph was exported from.
        onnx: the exported file, its manifest beside it.

    Raises:
        ExportError: the manifest can't be read.
        CheckpointError: the models can't be loaded.
    """
    exported = read_spec(read_manifest(onnx))
    config = loader.read_config(model_dir)
    described = describe_graphs(config.flow, config.hift, exported.precision, vocoder=exported.precision)
    if exported.name not in described:
        raise ExportError(
            f"{onnx} is the graph {exported.name}, family {config.family.value} has {' '.join(described)}; export again"
        )
    spec = replace(described[exported.name], profiles=exported.profiles)
    module = module_for(spec, Models(model_dir), is_plain=True).to(device)
    cases = [Case(sizes, sample_inputs(spec, sizes, seed)) for sizes in sizes_to_measure(spec) for seed in SEEDS]
    return ReferenceCertifier(cases, _Reference(spec, module), MIN_SNR_DB[spec.precision.value], device)


def sizes_to_measure(spec: GraphSpec) -> list[dict[str, int]]:
    """Return the smallest and the expected sizes of every profile."""
    measured: list[dict[str, int]] = []
    for profile in spec.profiles:
        for end in ("min", "opt"):
            sizes = spec.complete({axis: getattr(profile[axis], end) for axis in spec.axes})
            if sizes not in measured:
                measured.append(sizes)
    return measured


class _Reference:
    """A module behind names."""

    def __init__(self, spec: GraphSpec, module: nn.Module) -> None:
        self._spec, self._module = spec, module

    def __call__(self, inputs: Tensors) -> Tensors:
        with _exact_products():
            made = self._module(*(inputs[tensor.name] for tensor in self._spec.inputs))
        outputs = made if isinstance(made, tuple) else (made,)
        return {tensor.name: value for tensor, value in zip(self._spec.outputs, outputs, strict=True)}


@contextmanager
def _exact_products() -> Iterator[None]:
    """Keep TF32, which convolutions take by default, out of the reference."""
    with torch.backends.cudnn.flags(allow_tf32=False):
        yield
