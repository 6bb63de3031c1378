"""A graph of one product, an engine of it, and what building it needs. FAKE TensorRT with the documented interface."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from onnx import TensorProto, helper
from torch import Tensor

from servicekit.file_sums import sha256_of_file
from tests.token2wav_service.tensorrt.fake_tensorrt import FakeTensorRT
from token2wav_service.export.tensorrt.build import EngineRequest
from token2wav_service.export.tensorrt.certify import Case, ReferenceCertifier
from token2wav_service.graphs.spec import ShapeRange
from token2wav_service.runtime.tensorrt.api import TensorRT
from token2wav_service.runtime.tensorrt.manifest import EngineProfile, GpuHost
from token2wav_service.runtime.tensorrt.types import BuildOptions

WIDTH = 4
FACTOR = 3.0
HOST = GpuHost("sm90", "NVIDIA H200", "10.16.1.11")
CPU = torch.device("cpu")


class Steps:
    """Remembers a build's progress."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def start(self, phase: str, parent: str | None, steps: int) -> None:
        self.events.append(f"start {phase} in {parent} of {steps}")

    def step(self, phase: str, index: int) -> None:
        self.events.append(f"step {phase} {index}")

    def finish(self, phase: str) -> None:
        self.events.append(f"finish {phase}")


def write_onnx(path: Path, factor: float = FACTOR) -> Path:
    """Write y = factor * x over [rows, 4]."""
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", WIDTH]) for name in ("x", "y")]
    weight = helper.make_tensor("factor", TensorProto.FLOAT, [1], [factor])
    graph = helper.make_graph([helper.make_node("Mul", ["x", "factor"], ["y"])], "g", ports[:1], ports[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


def profile(name: str, low: int, high: int) -> EngineProfile:
    return EngineProfile(name, {"x": ShapeRange((low, WIDTH), (low, WIDTH), (high, WIDTH))})


def request(onnx: Path, *profiles: EngineProfile, level: int = 3) -> EngineRequest:
    return EngineRequest(
        "product", "float32", onnx, sha256_of_file(onnx), {"flow.pt": "of the weights"},
        profiles or (profile("default", 1, 8),), BuildOptions(level),
    )  # fmt: skip


def tensorrt(fake: FakeTensorRT) -> TensorRT:
    return TensorRT(fake)  # type: ignore[arg-type]


def certifier(factor: float = FACTOR) -> ReferenceCertifier:
    """Compare with factor * x at two sizes."""

    def reference(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"y": factor * inputs["x"]}

    cases = [Case({"rows": rows}, {"x": torch.linspace(-1, 1, rows * WIDTH).view(rows, WIDTH)}) for rows in (1, 5)]
    return ReferenceCertifier(cases, reference, 50.0, CPU)
