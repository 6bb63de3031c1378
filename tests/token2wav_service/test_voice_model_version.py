"""A checkpoint's version follows the content of what makes and uses voices, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from token2wav_service.checkpoint.family import Family, voice_model_version
from token2wav_service.errors import CheckpointError


def checkpoint(folder: Path) -> Path:
    folder.mkdir()
    for name in (*Family.STEP_AUDIO2.files.voice_models, "hift.pt"):
        (folder / name).write_bytes(name.encode())
    return folder


def test_the_same_files_elsewhere_have_the_same_version(tmp_path: Path) -> None:
    assert voice_model_version(checkpoint(tmp_path / "a")) == voice_model_version(checkpoint(tmp_path / "b"))


@pytest.mark.parametrize("name", Family.STEP_AUDIO2.files.voice_models)
def test_every_file_that_voices_depend_on_changes_the_version(tmp_path: Path, name: str) -> None:
    folder = checkpoint(tmp_path / "a")
    before = voice_model_version(folder)
    (folder / name).write_bytes(b"other weights")
    assert voice_model_version(folder) != before


def test_the_vocoder_does_not_change_the_version(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "a")
    before = voice_model_version(folder)
    (folder / "hift.pt").write_bytes(b"other weights")
    assert voice_model_version(folder) == before


def test_an_incomplete_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"flow\.yaml"):
        voice_model_version(tmp_path)
