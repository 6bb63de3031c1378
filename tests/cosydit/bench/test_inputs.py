"""Reading lists of texts, Hugging Face datasets too: what is taken, and how what can't be used is named."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from cosydit.bench.inputs import (
    MANIFEST,
    find_voice,
    read_dataset,
    read_list,
    read_samples,
    require_all_good,
    with_voices,
)
from cosydit.bench.types import BadRow, BenchmarkError, InputRow, SpeechInput


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
    rows = read_list(_manifest(tmp_path, "a|what it says|voice.wav|hello", "", "b|||no voice of its own"), MANIFEST)
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
    good, bad, last = read_list(_manifest(tmp_path, "good|||hello", line, "last|||bye"), MANIFEST)
    assert isinstance(good, SpeechInput) and isinstance(last, SpeechInput)
    assert isinstance(bad, BadRow) and reason in bad.reason
    assert "twice" in bad.reason or "manifest.txt:2" in bad.reason


def test_a_benchmark_refuses_bad_rows_all_at_once(tmp_path: Path) -> None:
    rows = read_list(_manifest(tmp_path, "a|b", "c|||fine", "d|||"), MANIFEST)
    with pytest.raises(BenchmarkError, match=r"(?s)manifest.txt:1.*manifest.txt:3"):
        require_all_good(rows)
    with pytest.raises(BenchmarkError, match="empty"):
        require_all_good([])


def test_a_manifest_that_can_not_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match="nowhere"):
        read_list(tmp_path / "nowhere.txt", MANIFEST)
    (tmp_path / "latin.txt").write_bytes(b"a|||caf\xe9")
    with pytest.raises(BenchmarkError, match="latin"):
        read_list(tmp_path / "latin.txt", MANIFEST)


def test_jsonl_takes_both_spellings_of_its_fields(tmp_path: Path, prompt: Path) -> None:
    path = tmp_path / "list.jsonl"
    rows = [
        {"id": 7, "target_text": "hi", "prompt_audio": "voice.wav", "prompt_text": "says"},
        {"utt": "b", "text": "yo"},
    ]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert read_list(path) == [SpeechInput("7", "hi", "says", prompt), SpeechInput("b", "yo", None, None)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ("[1]", "got list"),
        ('{"utt": "a", "txt": "b"}', r"\['txt'\]"),
        ('{"utt": 1, "text": 5}', "got 5 for text"),
    ],
)
def test_a_bad_jsonl_row_is_named(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "list.jsonl"
    path.write_text(line, encoding="utf-8")
    with pytest.raises(BenchmarkError, match=rf"list.jsonl:1: .*{reason}"):
        require_all_good(read_list(path))


def test_the_bundled_samples_are_ten_different_sentences() -> None:
    samples = read_samples()
    assert len({sample.text for sample in samples}) == len({sample.utt for sample in samples}) == 10


def test_a_voice_needs_audio_and_transcript(tmp_path: Path, prompt: Path) -> None:
    with pytest.raises(BenchmarkError, match=r"voice.txt"):
        find_voice(tmp_path, "voice")
    (tmp_path / "voice.txt").write_text("it says\n", encoding="utf-8")
    assert find_voice(tmp_path, "voice") == (prompt, "it says")


def test_a_list_of_plain_lines_is_numbered_by_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("Hello | there.\n\n  你好。 \n", encoding="utf-8")
    assert read_list(path) == [SpeechInput("0001", "Hello | there."), SpeechInput("0003", "你好。")]


def test_a_list_of_standard_input_is_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("One.\nTwo.\n"))
    assert read_list(Path("-")) == [SpeechInput("0001", "One."), SpeechInput("0002", "Two.")]


def test_a_list_of_manifest_lines_is_a_manifest(tmp_path: Path, prompt: Path) -> None:
    assert read_list(_manifest(tmp_path, "a|it says|voice.wav|hello")) == [SpeechInput("a", "hello", "it says", prompt)]


@pytest.mark.parametrize(("suffix", "comma"), [(".csv", ","), (".tsv", "\t"), (".CSV", ",")])
def test_a_table_names_its_columns(tmp_path: Path, prompt: Path, suffix: str, comma: str) -> None:
    path = tmp_path / f"list{suffix}"
    rows = [
        ["id", "text", "voice", "prompt_wav", "prompt_text"],
        ["a", '"One, two,\nthree."', "slt", "", ""],
        ["", "Four.", "", "voice.wav", "it says"],
    ]
    path.write_text("\ufeff" + "\r\n".join(comma.join(row) for row in rows), encoding="utf-8")
    assert read_list(path) == [
        SpeechInput("a", "One, two,\nthree.", voice="slt"),
        SpeechInput("0002", "Four.", "it says", prompt),
    ]


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        pytest.param("utt,txt\na,b\n", r"columns \['utt', 'txt'\]; expected text", id="no text"),
        pytest.param("text,colour\na,b\n", "expected text", id="a column that means nothing"),
        pytest.param("", "expected text", id="empty"),
        pytest.param("utt,text\na,Hello, you\n", "list.csv:2: more fields than columns", id="a comma"),
        pytest.param("utt,text\na,\n", "list.csv:2: the text is empty", id="no text in a row"),
        pytest.param("text,voice,prompt_wav,prompt_text\na,b,voice.wav,x\n", "a voice and a prompt", id="two voices"),
    ],
)
@pytest.mark.usefixtures("prompt")
def test_a_bad_table_is_named(tmp_path: Path, table: str, reason: str) -> None:
    (path := tmp_path / "list.csv").write_text(table, encoding="utf-8")
    with pytest.raises(BenchmarkError, match=reason):
        require_all_good(read_list(path))


def test_rows_get_the_voice_that_they_name_or_the_default(tmp_path: Path, prompt: Path) -> None:
    (tmp_path / "voice.txt").write_text("it says", encoding="utf-8")
    rows: list[InputRow] = [SpeechInput("a", "hi"), SpeechInput("b", "hi", voice="nobody"), BadRow("c", "bad")]
    named, unknown, bad = with_voices(rows, tmp_path, "voice")
    assert named == SpeechInput("a", "hi", "it says", prompt, "voice")
    assert isinstance(unknown, BadRow) and "got the voice 'nobody'" in unknown.reason and bad == BadRow("c", "bad")
    with pytest.raises(BenchmarkError, match=r"got the voice 'bob'; .* has voice"):
        with_voices(rows, tmp_path, "bob")


WAV = b"RIFF of a voice"


@pytest.fixture
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    module = pytest.importorskip("datasets", reason="needs the extra `datasets`")
    monkeypatch.setattr(module.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "a.wav").write_bytes(WAV)
    return module


def _rows() -> list[dict[str, str]]:
    first = {"id": "u1", "target_text": "hello", "prompt_text": "says", "prompt_audio": "a.wav"}
    return [first, {**first, "id": "u2", "prompt_audio": "gone.wav"}]


@pytest.mark.filterwarnings("ignore")
def test_a_local_jsonl_file_is_a_dataset_whose_prompts_lie_beside_it(tmp_path: Path, datasets: Any) -> None:
    path = tmp_path / "list.jsonl"
    path.write_text("\n".join(map(json.dumps, _rows())), encoding="utf-8")
    good, bad = read_dataset(str(path), "test")
    assert good == SpeechInput("u1", "hello", "says", tmp_path / "a.wav")
    assert isinstance(bad, BadRow) and "gone.wav does not exist" in bad.reason


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("has_splits", [pytest.param(False, id="one split"), pytest.param(True, id="splits")])
def test_a_saved_dataset_carries_its_prompts(tmp_path: Path, datasets: Any, has_splits: bool) -> None:
    audio = datasets.Features({name: datasets.Value("string") for name in ("id", "target_text", "prompt_text")})
    audio["prompt_audio"] = {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}
    rows = [{**_rows()[0], "prompt_audio": {"bytes": WAV, "path": None}}]
    saved = datasets.Dataset.from_list(rows, features=audio)
    (datasets.DatasetDict({"test": saved}) if has_splits else saved).save_to_disk(tmp_path / "saved")
    assert read_dataset(str(tmp_path / "saved"), "test") == [SpeechInput("u1", "hello", "says", WAV)]


def test_a_dataset_that_is_not_there_says_so(tmp_path: Path, datasets: Any) -> None:
    with pytest.raises(BenchmarkError, match="can't be loaded"):
        read_dataset(str(tmp_path / "nothing"), "test")
