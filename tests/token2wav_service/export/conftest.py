"""Checkpoints to export: the golden one, and one that is as small as the layout allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.token2wav_service.export.checkpoints import copy_golden_checkpoint, make_tiny_checkpoint
from token2wav_service.export.directory import ExportDirectory, ExportOptions
from token2wav_service.graphs import catalogue as graphs

STREAM_GRAPHS = (graphs.ENCODER_CHUNK, graphs.ESTIMATOR_CHUNK, graphs.F0_PREDICTOR, graphs.VOCODER)


@pytest.fixture(scope="package")
def golden_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint that the golden streams were made with."""
    return copy_golden_checkpoint(tmp_path_factory.mktemp("golden"))


@pytest.fixture(scope="package")
def exported(golden_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that a stream needs of the golden checkpoint, exported in float32."""
    directory = ExportDirectory(
        golden_checkpoint, tmp_path_factory.mktemp("exported"), ExportOptions(graphs=STREAM_GRAPHS)
    )
    for task in directory.plan():
        directory.run(task)
    return directory.out_dir


@pytest.fixture(scope="package")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), seed=0)
