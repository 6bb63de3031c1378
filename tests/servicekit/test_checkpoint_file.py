"""What a checkpoint declares, and what is taken for granted where it says nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from cosydit.cli.main import main
from servicekit.checkpoint_file import (
    CheckpointDeclaration,
    CheckpointFileError,
    find_declaration,
    read_declaration,
    write_declaration,
)
from tests.workers import demo_checkpoint, random_checkpoint

COSYVOICE2 = ("zh", "en", "ja", "ko")


def test_a_declaration_is_read_as_it_was_written(tmp_path: Path) -> None:
    declared = CheckpointDeclaration(name="mine", family="cosyvoice2", languages=("de",), tags=("[breath]", "<strong>"))
    assert read_declaration(write_declaration(tmp_path, declared)) == declared
    assert '"schema": 1' in (tmp_path / "checkpoint.json").read_text("utf-8")


@pytest.mark.parametrize("part", ["", "llm", "token2wav"])
def test_it_is_found_from_the_root_and_from_its_parts(tmp_path: Path, part: str) -> None:
    (tmp_path / part).mkdir(exist_ok=True)
    write_declaration(tmp_path, CheckpointDeclaration(languages=("fr",)))
    assert find_declaration(tmp_path / part).languages == ("fr",)


@pytest.mark.parametrize(
    ("description", "family", "languages"),
    [
        ("flow.yaml", "step_audio2", COSYVOICE2),
        ("cosyvoice2.yaml", "cosyvoice2", COSYVOICE2),
        ("cosyvoice3.yaml", "cosyvoice3", (*COSYVOICE2, "de", "es", "fr", "it", "ru")),
    ],
)
@pytest.mark.parametrize("part", ["", "llm", "token2wav"])
def test_an_official_directory_needs_none(
    tmp_path: Path, part: str, description: str, family: str, languages: tuple[str, ...]
) -> None:
    for name in ("llm", "token2wav"):
        (tmp_path / name).mkdir()
    (tmp_path / "token2wav" / description).touch()
    found = find_declaration(tmp_path / part)
    assert (found.family, found.languages, found.tags) == (family, languages, None)
    assert found.instruct == "endofprompt", "the LLM of all three takes instructions"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        pytest.param("{", "JSON", id="no JSON"),
        pytest.param('{"schema": 2}', "schema", id="a later schema"),
        pytest.param('{"language": ["en"]}', "language", id="an unknown field"),
        pytest.param('{"family": "gpt"}', "family", id="an unknown family"),
        pytest.param('{"languages": ["en-US"]}', "en-US", id="a region"),
        pytest.param('{"languages": []}', "empty list", id="no language at all"),
        pytest.param('{"tags": ["breath"]}', "breath", id="no form of a tag"),
        pytest.param('{"instruct": "prose"}', "endofprompt", id="no form of an instruction"),
    ],
)
def test_what_can_not_be_read_is_named(tmp_path: Path, text: str, word: str) -> None:
    (tmp_path / "checkpoint.json").write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointFileError, match=word):
        find_declaration(tmp_path)


def test_the_demo_voice_and_random_checkpoints_declare_themselves(tmp_path_factory: pytest.TempPathFactory) -> None:
    demo = find_declaration(demo_checkpoint(tmp_path_factory) / "llm")
    assert (demo.name, demo.languages, demo.tags, demo.instruct) == ("demo-voice", ("en",), (), None)
    made = read_declaration(random_checkpoint(tmp_path_factory) / "checkpoint.json")
    assert (made.family, made.languages) == ("step_audio2", None)


def test_the_command_declares_and_keeps_what_it_is_not_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "declare", str(tmp_path), "--languages", "en,zh", "--name", "mine"]) == 0
    assert main(["checkpoint", "declare", str(tmp_path), "--tags", "[breath],[sigh]", "--instruct", "none"]) == 0
    found = read_declaration(tmp_path / "checkpoint.json")
    assert (found.name, found.languages, found.tags) == ("mine", ("en", "zh"), ("[breath]", "[sigh]"))
    assert found.instruct is None
    assert main(["checkpoint", "declare", str(tmp_path), "--languages", "any", "--tags", "none"]) == 0
    found = read_declaration(tmp_path / "checkpoint.json")
    assert (found.languages, found.tags) == (None, ())
    assert "languages not declared, tags none" in capsys.readouterr().out
    assert main(["checkpoint", "declare", str(tmp_path), "--languages", "English"]) == 1
    assert read_declaration(tmp_path / "checkpoint.json") == found


def test_verify_shows_it_and_finds_a_wrong_family(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token2wav").symlink_to(random_checkpoint(tmp_path_factory) / "token2wav")
    write_declaration(tmp_path, CheckpointDeclaration(name="mine", family="cosyvoice2", languages=("en",)))
    assert main(["checkpoint", "verify", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "declares: mine, family cosyvoice2, languages en" in shown
    assert "FAIL  checkpoint.json: " in shown and "flow.yaml of step_audio2" in shown
