"""A converted directory appears whole or not at all, and is made again only when something changed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from llm_service.errors import CheckpointError
from llm_service.export.convert import Recipe, is_up_to_date, new_directory, recipe_of


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """One small file."""
    path = tmp_path / "source.bin"
    path.write_bytes(b"weights")
    return path


@pytest.fixture
def recipe(source: Path) -> Recipe:
    """What a directory is made of: one small file."""
    return recipe_of([source], "float32")


def make(directory: Path, recipe: Recipe, text: str = "made") -> None:
    with new_directory(directory, recipe) as partial:
        (partial / "result").write_text(text)


def test_a_made_directory_is_up_to_date_and_records_its_sources(tmp_path: Path, recipe: Recipe) -> None:
    made = tmp_path / "made"
    assert not is_up_to_date(made, recipe)
    make(made, recipe)
    assert is_up_to_date(made, recipe)
    recorded = json.loads((made / "manifest.json").read_text())
    assert recorded["options"] == {"dtype": "float32"}
    assert recorded["sources"][0]["name"] == "source.bin"
    assert recorded["files"] == {"result": 4}


def test_another_source_time_or_type_makes_it_out_of_date(tmp_path: Path, source: Path, recipe: Recipe) -> None:
    make(tmp_path / "made", recipe)
    assert not is_up_to_date(tmp_path / "made", recipe_of([], "float32"))
    assert not is_up_to_date(tmp_path / "made", recipe_of([source], "float16"))
    os.utime(source, ns=(1, 1))
    assert not is_up_to_date(tmp_path / "made", recipe_of([source], "float32"))


@pytest.mark.parametrize("lost", ["result", "manifest.json"])
def test_a_lost_file_makes_it_out_of_date(tmp_path: Path, recipe: Recipe, lost: str) -> None:
    make(tmp_path / "made", recipe)
    (tmp_path / "made" / lost).unlink()
    assert not is_up_to_date(tmp_path / "made", recipe)


def test_a_failure_leaves_the_old_directory_and_no_other(tmp_path: Path, recipe: Recipe) -> None:
    made = tmp_path / "made"
    make(made, recipe, "old")
    with pytest.raises(ZeroDivisionError), new_directory(made, recipe) as partial:
        (partial / "result").write_text("half")
        raise ZeroDivisionError
    assert (made / "result").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["made"]
    make(made, recipe, "new!")
    assert (made / "result").read_text() == "new!"


def test_what_a_killed_run_left_behind_goes(tmp_path: Path, recipe: Recipe) -> None:
    (tmp_path / ".made.partial").mkdir()
    (tmp_path / ".made.partial" / "half").write_text("half")
    make(tmp_path / "made", recipe)
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == ["manifest.json", "result"]
    assert not (tmp_path / ".made.partial").exists()


def test_two_converters_keep_apart(tmp_path: Path, recipe: Recipe) -> None:
    with new_directory(tmp_path / "made", recipe):
        with pytest.raises(CheckpointError, match="another converter"):
            make(tmp_path / "made", recipe)


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path, recipe: Recipe) -> None:
    other = tmp_path / "made"
    other.mkdir()
    (other / "precious").write_text("mine")
    with pytest.raises(CheckpointError, match="not empty"):
        make(other, recipe)
    assert (other / "precious").read_text() == "mine"
