"""Reading lists of texts: what is taken, and how what can't be used is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cosydit.bench.inputs import find_voice, read_jsonl, read_manifest, read_samples, require_all_good
from cosydit.bench.types import BadRow, BenchmarkError, SpeechInput


@pytest.fixture
def prompt(tmp_path: Path) -> Path:
    path = tmp_path / "voice.wav"
    path.write_bytes(b"RIFF")
    return path


def _manifest(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "manifest.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_manifest_rows_find_their_prompts_beside_the_manifest(tmp_path: Path, prompt: Path) -> None:
    rows = read_manifest(_manifest(tmp_path, "a|what it says|voice.wav|hello", "", "b|||no voice of its own"))
    assert rows == [
        SpeechInput("a", "hello", "what it says", prompt),
        SpeechInput("b", "no voice of its own", None, None),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        pytest.param("a|b|c", "got 3 fields", id="too few fields"),
        pytest.param("a|b|c|d|e", "got 5 fields", id="too many fields"),
        pytest.param("a|says|voice.wav| ", "the text is empty", id="empty text"),
        pytest.param("a|says|gone.wav|hello", "does not exist", id="missing prompt"),
        pytest.param("a||voice.wav|hello", "no transcript", id="missing transcript"),
        pytest.param("|||hello", "no utterance name", id="missing name"),
        pytest.param("good|||again", "stands in the list twice", id="repeated name"),
    ],
)
@pytest.mark.usefixtures("prompt")
def test_a_bad_manifest_row_is_named_and_leaves_the_others(tmp_path: Path, line: str, reason: str) -> None:
    good, bad, last = read_manifest(_manifest(tmp_path, "good|||hello", line, "last|||bye"))
    assert isinstance(good, SpeechInput) and isinstance(last, SpeechInput)
    assert isinstance(bad, BadRow) and reason in bad.reason
    assert "twice" in bad.reason or "manifest.txt:2" in bad.reason


def test_a_benchmark_refuses_bad_rows_all_at_once(tmp_path: Path) -> None:
    rows = read_manifest(_manifest(tmp_path, "a|b", "c|||fine", "d|||"))
    with pytest.raises(BenchmarkError, match=r"(?s)manifest.txt:1.*manifest.txt:3"):
        require_all_good(rows)
    with pytest.raises(BenchmarkError, match="empty"):
        require_all_good([])


def test_a_manifest_that_can_not_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match="nowhere"):
        read_manifest(tmp_path / "nowhere.txt")
    (tmp_path / "latin.txt").write_bytes(b"a|||caf\xe9")
    with pytest.raises(BenchmarkError, match="latin"):
        read_manifest(tmp_path / "latin.txt")


def test_jsonl_takes_both_spellings_of_its_fields(tmp_path: Path, prompt: Path) -> None:
    path = tmp_path / "list.jsonl"
    rows = [
        {"id": 7, "target_text": "hi", "prompt_audio": "voice.wav", "prompt_text": "says"},
        {"utt": "b", "text": "yo"},
    ]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert read_jsonl(path) == [SpeechInput("7", "hi", "says", prompt), SpeechInput("b", "yo", None, None)]


@pytest.mark.parametrize(
    ("line", "reason"), [("{", "not JSON"), ("[1]", "got list"), ('{"utt": "a", "txt": "b"}', r"\['txt'\]")]
)
def test_a_bad_jsonl_row_is_named(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "list.jsonl"
    path.write_text(line, encoding="utf-8")
    with pytest.raises(BenchmarkError, match=rf"list.jsonl:1: .*{reason}"):
        require_all_good(read_jsonl(path))


def test_the_bundled_samples_are_ten_different_sentences() -> None:
    samples = require_all_good(read_samples())
    assert len({sample.text for sample in samples}) == len({sample.utt for sample in samples}) == 10


def test_a_voice_needs_audio_and_transcript(tmp_path: Path, prompt: Path) -> None:
    with pytest.raises(BenchmarkError, match=r"voice.txt"):
        find_voice(tmp_path, "voice")
    (tmp_path / "voice.txt").write_text("it says\n", encoding="utf-8")
    assert find_voice(tmp_path, "voice") == (prompt, "it says")
