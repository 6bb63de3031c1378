"""Checkpoints to export, and exports of them, made once: one graph takes as long as all other tests here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.token2wav_service.export.checkpoints import make_stream_checkpoint
from token2wav_service.checkpoint.family import Family
from token2wav_service.export.directory import ExportDirectory, ExportOptions
from token2wav_service.graphs.catalogue import ESTIMATOR_CHUNK
from token2wav_service.graphs.spec import Precision


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Step-Audio2 checkpoint whose models have one block each."""
    return make_stream_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def exported(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> ExportDirectory:
    """Both of its graphs, in float32."""
    return _export(tiny_checkpoint, tmp_path_factory.mktemp("exported"), ExportOptions())


@pytest.fixture(scope="session")
def exported_halves(tmp_path_factory: pytest.TempPathFactory) -> ExportDirectory:
    """The estimator of CosyVoice3, which has all that the others have and tables, in float16."""
    checkpoint = make_stream_checkpoint(tmp_path_factory.mktemp("cosyvoice3"), Family.COSYVOICE3)
    options = ExportOptions(precisions=(Precision.FLOAT16,), graphs=(ESTIMATOR_CHUNK,))
    return _export(checkpoint, tmp_path_factory.mktemp("exported_halves"), options)


def _export(checkpoint: Path, out: Path, options: ExportOptions) -> ExportDirectory:
    directory = ExportDirectory(checkpoint, out, options)
    for task in directory.plan():
        directory.run(task)
    return directory
