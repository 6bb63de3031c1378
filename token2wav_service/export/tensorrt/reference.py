"""What a new engine is compared with: the checkpoint's own modules in float32, on inputs drawn for every profile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from token2wav_service.checkpoint import loader
from token2wav_service.export.build import Models, module_for
from token2wav_service.export.manifest import read_manifest
from token2wav_service.export.samples import sample_inputs
from token2wav_service.export.tensorrt.certify import MIN_SNR_DB, Case, ReferenceCertifier, Tensors
from token2wav_service.export.tensorrt.requests import read_spec
from token2wav_service.graphs.catalogue import describe_graphs
from token2wav_service.graphs.spec import GraphSpec

SEEDS = (0, 1)
"""Of the inputs at each size."""


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
    flow, hift = loader.read_flow_config(model_dir / loader.FLOW_YAML), loader.read_hift_config(model_dir)
    described = describe_graphs(flow, hift, exported.precision)[exported.name]
    spec = replace(described, profiles=exported.profiles)
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
