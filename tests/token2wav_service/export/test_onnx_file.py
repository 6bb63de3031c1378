"""One exported file: repeatable, free of paths, refused when it is not what was described."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tests.token2wav_service.export.checkpoints import TINY_FLOW, TINY_HIFT
from token2wav_service.errors import ExportError
from token2wav_service.export.build import Models, module_for
from token2wav_service.export.compare import REFERENCE_SWEEP, Executor, Sweep, compare_graph
from token2wav_service.export.onnx_file import check_interface, check_operators, write_graph
from token2wav_service.graphs import catalogue as graphs
from token2wav_service.graphs.spec import DType, GraphSpec, Precision


@pytest.fixture(scope="module")
def models(tiny_checkpoint: Path) -> Models:
    return Models(tiny_checkpoint)


@pytest.fixture(scope="module")
def spec() -> GraphSpec:
    return graphs.describe_graphs(TINY_FLOW, TINY_HIFT, Precision.FLOAT32)[graphs.F0_PREDICTOR]


@pytest.mark.slow
def test_equal_inputs_give_equal_bytes_without_any_path(models: Models, spec: GraphSpec, tmp_path: Path) -> None:
    for name in ("first.onnx", "second.onnx"):
        write_graph(module_for(spec, models), spec, tmp_path / name)
    first, second = ((tmp_path / name).read_bytes() for name in ("first.onnx", "second.onnx"))
    assert first == second
    assert b".py" not in first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.onnx", "second.onnx"]


@pytest.mark.slow
def test_node_names_say_which_module_they_belong_to(exported: Path) -> None:
    model = onnx.load(str(exported / "estimator_chunk.float32.onnx"))
    assert any(node.name.startswith("estimator.blocks.0.mlp.fc1/") for node in model.graph.node)


@pytest.mark.slow
def test_only_what_a_graph_needs_is_in_its_file(exported: Path) -> None:
    model = onnx.load(str(exported / "encoder_chunk.float32.onnx"))
    used = {name for node in model.graph.node for name in node.input}
    assert {tensor.name for tensor in model.graph.initializer} <= used


@pytest.mark.slow
def test_a_graph_that_is_not_as_described_leaves_no_file(models: Models, spec: GraphSpec, tmp_path: Path) -> None:
    halved = dataclasses.replace(spec.outputs[0], dtype=DType.FLOAT16)
    wrong = dataclasses.replace(spec, outputs=(halved,))
    with pytest.raises(ExportError, match="got FLOAT, expected float16"):
        write_graph(module_for(spec, models), wrong, tmp_path / "wrong.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_bfloat16_file_computes_what_the_plain_model_does(models: Models, tmp_path: Path) -> None:
    spec = graphs.describe_graphs(TINY_FLOW, TINY_HIFT, Precision.BFLOAT16)[graphs.ESTIMATOR_WHOLE]
    write_graph(module_for(spec, models), spec, tmp_path / spec.file_name)
    compared = list(compare_graph(tmp_path, spec, models, Sweep(streams=(1,), frames=(2,))))
    by_file = [one for one in compared if one.executor is Executor.ONNX_REFERENCE]
    assert len(by_file) == len(REFERENCE_SWEEP.streams) * len(REFERENCE_SWEEP.frames)
    assert all(one.passed for one in compared), compared


def identity(operator: str, kind: int, dims: list[int | str]) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(name, kind, dims) for name in ("input", "output")]
    node = helper.make_node(operator, ["input"], ["output"], name="the_node")
    return helper.make_model(helper.make_graph([node], "g", values[:1], values[1:]))


@pytest.mark.parametrize(
    ("operator", "kind"),
    [
        pytest.param("Mish", TensorProto.BFLOAT16, id="type that TensorRT has not"),
        pytest.param("Unique", TensorProto.FLOAT, id="operator that TensorRT has not"),
    ],
)
def test_nodes_that_tensorrt_does_not_take_are_named(operator: str, kind: int) -> None:
    with pytest.raises(ExportError, match=f"the_node: operator .*{operator}"):
        check_operators(identity(operator, kind, [2]))


@pytest.mark.parametrize(
    ("dims", "complaint"),
    [
        pytest.param(["a", "b"], "got 2 axes", id="rank"),
        pytest.param(["a", "b", 81], "got size 81", id="fixed size"),
    ],
)
def test_a_given_model_of_another_interface_is_refused(dims: list[int | str], complaint: str) -> None:
    expected = graphs.describe_given(TINY_FLOW)[graphs.SPEAKER_ENCODER]
    with pytest.raises(ExportError, match=complaint):
        check_interface(identity("Abs", TensorProto.FLOAT, dims), expected, by_position=True)
