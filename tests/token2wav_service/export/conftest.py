"""Checkpoints to export: the golden one, and one that is as small as the layout allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.token2wav_service.export.checkpoints import (
    copy_golden_checkpoint,
    make_stream_checkpoint,
    make_tiny_checkpoint,
)
from tests.workers import is_whole
from token2wav_service.export.directory import ExportDirectory, ExportOptions
from token2wav_service.graphs import catalogue as graphs

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


@pytest.fixture(scope="package")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), seed=0)
