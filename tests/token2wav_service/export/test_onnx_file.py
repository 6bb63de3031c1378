"""Exported files: repeatable, free of paths, refused when they are not what was described, near float32."""

from __future__ import annotations

import dataclasses
import logging
import re
from pathlib import Path

import onnx
import pytest
import torch

from token2wav_service.errors import ExportError
from token2wav_service.export import onnx_file
from token2wav_service.export.compare import compare_graph
from token2wav_service.export.directory import ExportDirectory
from token2wav_service.export.modules import Models
from token2wav_service.export.onnx_file import check_interface
from token2wav_service.graphs import ESTIMATOR_CHUNK, VOCODER, GraphSpec, TensorSpec

pytestmark = pytest.mark.slow


class Doubled(torch.nn.Module):
    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(2 * inputs[0])


@pytest.fixture
def spec(exported: ExportDirectory) -> GraphSpec:
    """A graph of one input and one output."""
    vocoder = exported.plan()[1].spec
    outputs = (dataclasses.replace(vocoder.inputs[0], name="out"),)
    return dataclasses.replace(vocoder, inputs=vocoder.inputs[:1], outputs=outputs, derived={})


def test_every_file_equals_the_plain_model_at_its_sizes(exported: ExportDirectory) -> None:
    for task in exported.plan():
        assert compare_graph(exported.out_dir, task.spec, exported.models).failures() == []


def test_a_changed_weight_is_out_of_tolerance(exported: ExportDirectory) -> None:
    models = Models(exported.model_dir)
    with torch.no_grad():
        models.hift.conv_post.weight.mul_(1.001)
    assert compare_graph(exported.out_dir, exported.plan()[1].spec, models).failures()


def test_equal_inputs_give_equal_bytes_without_any_path(spec: GraphSpec, tmp_path: Path) -> None:
    level = logging.getLogger("torch.onnx").level
    for name in ("first.onnx", "second.onnx"):
        onnx_file.write_graph(Doubled(), spec, tmp_path / name)
    first, second = ((tmp_path / name).read_bytes() for name in ("first.onnx", "second.onnx"))
    assert first == second
    assert b".py" not in first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.onnx", "second.onnx"]
    assert logging.getLogger("torch.onnx").level == level, "the exporter's remarks are held back for its time only"


def test_the_file_holds_what_its_nodes_need_and_nothing_else(exported: ExportDirectory) -> None:
    model = onnx.load(str(exported.out_dir / f"{ESTIMATOR_CHUNK}.float32.onnx"))
    used = {name for node in model.graph.node for name in node.input}
    assert {tensor.name for tensor in model.graph.initializer} <= used


def test_a_graph_that_is_not_as_described_leaves_no_file(spec: GraphSpec, tmp_path: Path) -> None:
    halved = dataclasses.replace(spec.outputs[0], dtype="float16")
    with pytest.raises(ExportError, match=r"outputs .* FLOAT\[.*, expected .* FLOAT16\["):
        onnx_file.write_graph(Doubled(), dataclasses.replace(spec, outputs=(halved,)), tmp_path / "wrong.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("dims", "expected"),
    [
        pytest.param(("streams", 80), "mel FLOAT[0, 80];", id="rank"),
        pytest.param(("streams", 81, "mel_frames"), "mel FLOAT[0, 81, 0];", id="fixed size"),
        pytest.param(("streams", "mels", "mel_frames"), "mel FLOAT[0, 0, 0];", id="open size"),
    ],
)
def test_a_file_of_another_interface_is_refused(
    exported: ExportDirectory, dims: tuple[str | int, ...], expected: str
) -> None:
    spec = exported.plan()[1].spec
    model = onnx.load(str(exported.out_dir / f"{VOCODER}.float32.onnx"))
    wrong = TensorSpec("mel", "float32", dims, "")
    with pytest.raises(ExportError, match=re.escape(f"expected {expected}")):
        check_interface(model, dataclasses.replace(spec, inputs=(wrong, *spec.inputs[1:])))
