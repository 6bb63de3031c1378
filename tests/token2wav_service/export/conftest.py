"""Checkpoints to export, and exports of them, made once: one graph takes as long as all other tests here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.token2wav_service.export.checkpoints import make_stream_checkpoint
from token2wav_service.export.directory import ExportDirectory, ExportOptions


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Step-Audio2 checkpoint whose models have one block each."""
    return make_stream_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def exported(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> ExportDirectory:
    """Both of its graphs, in float32; the nightly run exports those of every family in every precision."""
    directory = ExportDirectory(tiny_checkpoint, tmp_path_factory.mktemp("exported"), ExportOptions())
    for task in directory.plan():
        directory.run(task)
    return directory
