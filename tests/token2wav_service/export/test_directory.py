"""A directory of exports: what is done is not done again, what changed is."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx
import pytest

from servicekit.file_sums import sha256_of_file
from tests.token2wav_service.export.checkpoints import make_tiny_checkpoint
from token2wav_service.checkpoint import loader
from token2wav_service.errors import CheckpointError, ExportError
from token2wav_service.export.build import SOURCE_WEIGHTS
from token2wav_service.export.directory import ExportDirectory, ExportOptions, FileHashes
from token2wav_service.export.manifest import manifest_path, read_manifest
from token2wav_service.export.onnx_file import OPSETS
from token2wav_service.graphs import catalogue as graphs
from token2wav_service.graphs.shapes import AxisRange, ShapeSettings
from token2wav_service.graphs.spec import Precision

pytestmark = pytest.mark.slow

OPTIONS = ExportOptions(graphs=(graphs.F0_PREDICTOR, graphs.SPEAKER_ENCODER))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint and its export."""
    checkpoint = make_tiny_checkpoint(tmp_path_factory.mktemp("checkpoint"), seed=0)
    directory = ExportDirectory(checkpoint, tmp_path_factory.mktemp("out"), OPTIONS)
    for task in directory.plan():
        directory.run(task)
    return checkpoint, directory.out_dir


@pytest.fixture
def copied(made: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """The same, to be changed."""
    return shutil.copytree(made[0], tmp_path / "checkpoint"), shutil.copytree(made[1], tmp_path / "out")


def undone(checkpoint: Path, out: Path, options: ExportOptions = OPTIONS) -> set[str]:
    return {task.spec.name for task in ExportDirectory(checkpoint, out, options).plan() if not task.is_done}


@pytest.mark.slow
def test_what_is_there_is_not_made_again(made: tuple[Path, Path]) -> None:
    assert undone(*made) == set()


def test_changed_weights_concern_the_graphs_made_from_them(copied: tuple[Path, Path]) -> None:
    checkpoint, out = copied
    weights = checkpoint / loader.HIFT_WEIGHTS
    weights.write_bytes(weights.read_bytes() + b"\0")
    assert undone(checkpoint, out) == {graphs.F0_PREDICTOR}


def test_other_shapes_are_another_export(made: tuple[Path, Path]) -> None:
    smaller = ExportOptions(graphs=OPTIONS.graphs, shapes=(ShapeSettings(streams=AxisRange(1, 2, 4)),))
    assert undone(*made, smaller) == {graphs.F0_PREDICTOR}


def test_a_file_that_is_not_whole_is_made_again(copied: tuple[Path, Path]) -> None:
    checkpoint, out = copied
    file = out / "f0_predictor.float32.onnx"
    file.write_bytes(file.read_bytes()[:-1])
    assert undone(checkpoint, out) == {graphs.F0_PREDICTOR}


@pytest.mark.parametrize("name", [SOURCE_WEIGHTS, "f0_predictor.float32.onnx.json"])
def test_a_file_that_is_missing_is_made_again(copied: tuple[Path, Path], name: str) -> None:
    checkpoint, out = copied
    (out / name).unlink()
    assert graphs.F0_PREDICTOR in undone(checkpoint, out)


def test_a_file_without_its_source_names_what_is_missing(copied: tuple[Path, Path]) -> None:
    checkpoint, out = copied
    (checkpoint / loader.SPEAKER_ENCODER).unlink()
    with pytest.raises(CheckpointError, match=r"campplus\.onnx is missing; .* leave campplus out"):
        undone(checkpoint, out)


def test_the_manifest_says_what_the_file_is_and_what_it_was_made_from(made: tuple[Path, Path]) -> None:
    checkpoint, out = made
    file = out / "f0_predictor.float32.onnx"
    manifest = read_manifest(file)
    assert manifest.sha256 == sha256_of_file(file)
    assert manifest.size_bytes == file.stat().st_size
    assert manifest.opset == OPSETS[Precision.FLOAT32] == onnx.load(str(file)).opset_import[0].version
    weights = checkpoint / loader.HIFT_WEIGHTS
    assert manifest.sources[weights.name] == sha256_of_file(weights)
    assert manifest.description["inputs"][0]["dims"] == ["streams", 80, "mel_frames"]


def test_a_given_model_is_taken_as_it_is(made: tuple[Path, Path]) -> None:
    checkpoint, out = made
    assert (out / loader.SPEAKER_ENCODER).read_bytes() == (checkpoint / loader.SPEAKER_ENCODER).read_bytes()
    assert manifest_path(out / loader.SPEAKER_ENCODER).is_file()


def test_a_file_that_is_no_model_is_refused_and_the_old_one_stays(copied: tuple[Path, Path]) -> None:
    checkpoint, out = copied
    shutil.copyfile(checkpoint / loader.SPEECH_TOKENIZER, checkpoint / loader.SPEAKER_ENCODER)
    before = (out / loader.SPEAKER_ENCODER).read_bytes()
    directory = ExportDirectory(checkpoint, out, OPTIONS)
    (task,) = (task for task in directory.plan() if not task.is_done)
    with pytest.raises(ExportError, match="campplus has the inputs"):
        directory.run(task)
    assert (out / loader.SPEAKER_ENCODER).read_bytes() == before
    assert not list(out.glob("*.part"))


def test_a_remembered_hash_is_renewed_when_the_file_changes(tmp_path: Path) -> None:
    file, memory = tmp_path / "file", tmp_path / "memory.json"
    file.write_text("one", encoding="utf-8")
    first = FileHashes(memory).sha256(file)
    file.write_text("other", encoding="utf-8")
    assert FileHashes(memory).sha256(file) == sha256_of_file(file) != first
    memory.write_text("not JSON", encoding="utf-8")
    assert FileHashes(memory).sha256(file) == sha256_of_file(file)
