"""Checkpoints to export: the golden one, and one that is as small as the layout allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.token2wav_service.export.checkpoints import (
    copy_golden_checkpoint,
    make_stream_checkpoint,
    make_tiny_checkpoint,
)
from tests.token2wav_service.tensorrt.executors import ModuleExecutor
from tests.workers import is_whole
from token2wav_service.checkpoint import loader
from token2wav_service.checkpoint.family import Family
from token2wav_service.export import onnx_models
from token2wav_service.export.build import Models, module_for
from token2wav_service.export.directory import ExportDirectory, ExportOptions
from token2wav_service.export.onnx_models import OnnxGraph
from token2wav_service.graphs import catalogue as graphs
from token2wav_service.graphs.spec import Precision

STREAM_GRAPHS = (graphs.ENCODER_CHUNK, graphs.ESTIMATOR_CHUNK, graphs.F0_PREDICTOR, graphs.VOCODER)


@pytest.fixture(scope="package")
def stream_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint that the golden streams were made with, or one whose graphs are a third as large."""
    make = copy_golden_checkpoint if is_whole() else make_stream_checkpoint
    return make(tmp_path_factory.mktemp("streams"))


@pytest.fixture(scope="package")
def exported(stream_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that a stream needs of a checkpoint, exported in float32: it takes as long as all other tests here."""
    directory = ExportDirectory(
        stream_checkpoint, tmp_path_factory.mktemp("exported"), ExportOptions(graphs=STREAM_GRAPHS)
    )
    for task in directory.plan():
        directory.run(task)
    return directory.out_dir


@pytest.fixture(scope="package", params=[Family.COSYVOICE2, Family.COSYVOICE3])
def exported_family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A block-masked family's checkpoint, and an export of all that a stream needs; in the short form, of one graph."""
    family: Family = request.param
    checkpoint = make_stream_checkpoint(tmp_path_factory.mktemp(family.value), family)
    wanted = (graphs.ENCODER_CHUNK if family is Family.COSYVOICE2 else graphs.ESTIMATOR_CHUNK,)
    if is_whole():
        wanted = (graphs.ENCODER_CHUNK, graphs.ESTIMATOR_CHUNK, graphs.VOCODER)
    directory = ExportDirectory(checkpoint, tmp_path_factory.mktemp("exported_family"), ExportOptions(graphs=wanted))
    for task in directory.plan():
        directory.run(task)
    return checkpoint, directory.out_dir


@pytest.fixture
def family_files(exported_family: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The same; graphs that were not exported are computed by the modules behind them."""
    checkpoint, _ = exported_family
    models, config = Models(checkpoint), loader.read_config(checkpoint)
    described = graphs.describe_graphs(config.flow, config.hift, Precision.FLOAT32)

    def open_graph(directory: Path, name: str, precision: Precision) -> OnnxGraph | ModuleExecutor:
        if (directory / described[name].file_name).is_file():
            return OnnxGraph(directory, name, precision)
        return ModuleExecutor(described[name], module_for(described[name], models))

    monkeypatch.setattr(onnx_models, "OnnxGraph", open_graph)
    return exported_family


@pytest.fixture(scope="package")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), seed=0)
