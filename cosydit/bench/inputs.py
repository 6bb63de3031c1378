"""Reads lists of texts and voices: plain lines, CSV, JSONL, manifests, Hugging Face datasets, the bundled samples.

A row that can't be used becomes a `BadRow` that names its line; whether that ends the run is the caller's choice.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from cosydit.bench.types import BadRow, BenchmarkError, InputRow, SpeechInput
from servicekit.extras import install_command

MANIFEST_FORM = "utt|prompt_text|prompt_wav|text"
_MANIFEST_FIELDS = 4
_SAMPLES = "english.txt"
_FILE_KINDS = {".jsonl": "json"}
_SAVED_DATASET, _SAVED_SPLITS = "dataset_info.json", "dataset_dict.json"
"""Files that `save_to_disk` leaves in a directory of one split, and of several."""
_UTT_KEYS = ("utt", "id")
_TEXT_KEYS = ("text", "target_text")
_WAV_KEYS = ("prompt_wav", "prompt_audio")
_PROMPT_TEXT_KEYS = ("prompt_text",)
_VOICE_KEYS = ("voice",)
_KNOWN_KEYS = {*_UTT_KEYS, *_TEXT_KEYS, *_WAV_KEYS, *_PROMPT_TEXT_KEYS, *_VOICE_KEYS}
_EXPECTED_KEYS = "expected text, and optionally utt, voice, prompt_wav, prompt_text"
_STANDARD_INPUT = Path("-")
_CSV_SUFFIXES = {".csv": ",", ".tsv": "\t"}
_JSONL_SUFFIXES = (".jsonl", ".ndjson")


def read_list(path: Path) -> list[InputRow]:
    """Read a list in whatever form it has: CSV or JSONL by its suffix, lines of a manifest, or one text a line.

    Args:
        path: `-` reads plain lines from standard input.

    Raises:
        BenchmarkError: no such file, not UTF-8, or a CSV without a column `text`.
    """
    if path.suffix.lower() in _CSV_SUFFIXES:
        return read_csv(path, _CSV_SUFFIXES[path.suffix.lower()])
    if path.suffix.lower() in _JSONL_SUFFIXES:
        return read_jsonl(path)
    lines = _read_text(path).splitlines()
    if _is_manifest(lines):
        return read_manifest(path)
    return [SpeechInput(_numbered(number), line.strip()) for number, line in enumerate(lines, 1) if line.strip()]


def read_csv(path: Path, delimiter: str = ",") -> list[InputRow]:
    """Read a table whose first line names the columns: `text`, and optionally those of `read_jsonl`.

    Raises:
        BenchmarkError: no such file, not UTF-8, or other columns.
    """
    table = csv.DictReader(io.StringIO(_read_text(path).removeprefix("\ufeff"), newline=""), delimiter=delimiter)
    columns = [name.strip() for name in table.fieldnames or ()]
    if not set(columns) & set(_TEXT_KEYS) or not set(columns) <= _KNOWN_KEYS:
        raise BenchmarkError(f"{path}: the first line names the columns {columns}; {_EXPECTED_KEYS}")
    table.fieldnames = columns
    return _without_repeats(_csv_row(path, table.line_num, number, row) for number, row in enumerate(table, 1))


def read_manifest(path: Path) -> list[InputRow]:
    """Read lines of `utt|prompt_text|prompt_wav|text`; prompt paths are relative to the manifest.

    Raises:
        BenchmarkError: no such file, or not UTF-8.
    """
    lines = enumerate(_read_text(path).splitlines(), 1)
    return _without_repeats(_manifest_row(path, number, line) for number, line in lines if line.strip())


def read_jsonl(path: Path) -> list[InputRow]:
    """Read one JSON object a line: `text` or `target_text`, and optionally `utt` or `id`, `voice`, `prompt_wav` with
    `prompt_text`. A row without a name is called by its line's number.

    Raises:
        BenchmarkError: no such file, or not UTF-8.
    """
    lines = enumerate(_read_text(path).splitlines(), 1)
    return _without_repeats(_json_row(path, number, line) for number, line in lines if line.strip())


def read_dataset(name: str, split: str) -> list[InputRow]:
    """Load a Hugging Face dataset with the fields id, target_text, prompt_text and prompt_audio.

    Args:
        name: of a dataset on the hub, a local directory (as `load_dataset` or `save_to_disk` have it), or a local file
            whose suffix says what it is: parquet, arrow, json, jsonl or csv. A prompt_audio that is a path is relative
            to that file or directory.
        split: which of its parts.

    Raises:
        BenchmarkError: `datasets` is not installed, the dataset can't be loaded, or it has other fields.
    """
    try:
        import datasets
    except ImportError as error:
        raise BenchmarkError(f"--huggingface-dataset needs: {install_command('datasets')} ({error})") from error
    try:
        rows = _load_dataset(datasets, name, split).cast_column("prompt_audio", datasets.Audio(decode=False))
    except Exception as error:  # the library raises many kinds: no network, no such split, no such column
        raise BenchmarkError(f"dataset {name!r}, split {split!r} can't be loaded: {error}") from error
    home = Path(name).parent if Path(name).is_file() else Path(name)
    return _without_repeats(_dataset_row(number, row, home) for number, row in enumerate(rows, 1))


def read_samples(prompt: Path | None = None, prompt_text: str | None = None) -> list[InputRow]:
    """Return the bundled sentences, all in one voice; without a prompt in the server's own."""
    text = (resources.files("demo_voice") / "samples" / _SAMPLES).read_text(encoding="utf-8")
    rows = (line.split("|", 1) for line in text.splitlines())
    return [SpeechInput(utt, sentence, prompt_text, prompt) for utt, sentence in rows]


def find_voice(voices_dir: Path, name: str) -> tuple[Path, str]:
    """Return the audio file and the transcript of a voice of a voices directory.

    Raises:
        BenchmarkError: no such voice.
    """
    wav, transcript = voices_dir / f"{name}.wav", voices_dir / f"{name}.txt"
    missing = [str(path) for path in (wav, transcript) if not path.is_file()]
    if missing:
        raise BenchmarkError(f"voice {name!r} lacks {missing}; a voice is <name>.wav and <name>.txt in --voices-dir")
    return wav, transcript.read_text(encoding="utf-8").strip()


def with_voices(rows: Iterable[InputRow], voices_dir: Path, default: str) -> list[InputRow]:
    """Give each row without a prompt the one of the voice that it names, or of the default voice.

    Raises:
        BenchmarkError: there is no such default voice.
    """
    names = sorted(path.stem for path in voices_dir.glob("*.wav"))
    if default not in names:
        raise BenchmarkError(f"got the voice {default!r}; {voices_dir} has {', '.join(names) or 'no voice'}")
    return [_with_voice(row, voices_dir, names, default) for row in rows]


def _with_voice(row: InputRow, voices_dir: Path, names: list[str], default: str) -> InputRow:
    if isinstance(row, BadRow) or row.prompt is not None:
        return row
    name = row.voice or default
    if name not in names:
        return BadRow(row.utt, f"got the voice {name!r}; {voices_dir} has {', '.join(names)}")
    prompt, prompt_text = find_voice(voices_dir, name)
    return replace(row, prompt=prompt, prompt_text=prompt_text, voice=name)


def require_all_good(rows: Iterable[InputRow]) -> list[SpeechInput]:
    """Return the rows if none is bad.

    Raises:
        BenchmarkError: names every bad row, or says that there are none at all.
    """
    rows = list(rows)
    bad = [f"{row.utt}: {row.reason}" for row in rows if isinstance(row, BadRow)]
    if bad:
        raise BenchmarkError("the input has rows that can't be used:\n" + "\n".join(bad))
    good = [row for row in rows if isinstance(row, SpeechInput)]
    if not good:
        raise BenchmarkError("the input is empty; give at least one text")
    return good


def _manifest_row(path: Path, number: int, line: str) -> InputRow:
    fields = [part.strip() for part in line.split("|")]
    if len(fields) != _MANIFEST_FIELDS:
        return BadRow(f"row {number}", f"{path}:{number}: got {len(fields)} fields, expected {MANIFEST_FORM}")
    utt, prompt_text, prompt_wav, text = fields
    return _checked(
        f"{path}:{number}", number, utt, text, prompt_text, path.parent / prompt_wav if prompt_wav else None
    )


def _json_row(path: Path, number: int, line: str) -> InputRow:
    where = f"{path}:{number}"
    try:
        row = json.loads(line)
    except ValueError as error:
        return BadRow(f"row {number}", f"{where}: not JSON ({error})")
    if not isinstance(row, dict):
        return BadRow(f"row {number}", f"{where}: got {type(row).__name__}, expected a JSON object")
    unknown = sorted(set(row) - _KNOWN_KEYS)
    if unknown:
        return BadRow(f"row {number}", f"{where}: unknown fields {unknown}; {_EXPECTED_KEYS}")
    return _named_fields(where, path.parent, number, row)


def _csv_row(path: Path, line: int, number: int, row: Mapping[str | None, Any]) -> InputRow:
    where = f"{path}:{line}"
    if None in row:
        return BadRow(f"row {number}", f"{where}: more fields than columns; put a text with commas in double quotes")
    return _named_fields(
        where, path.parent, number, {name: value.strip() for name, value in row.items() if name and value}
    )


def _named_fields(where: str, home: Path, number: int, row: Mapping[str, Any]) -> InputRow:
    wav = _first(row, _WAV_KEYS)
    utt = _first(row, _UTT_KEYS) or _numbered(number)
    prompt, prompt_text = home / wav if wav else None, _first(row, _PROMPT_TEXT_KEYS)
    checked = _checked(where, number, utt, _first(row, _TEXT_KEYS), prompt_text, prompt)
    voice = _first(row, _VOICE_KEYS)
    if not voice or isinstance(checked, BadRow):
        return checked
    if prompt is not None:
        return BadRow(utt, f"{where}: has a voice and a prompt; leave one of them out")
    return replace(checked, voice=voice)


def _load_dataset(datasets: Any, name: str, split: str) -> Any:
    path = Path(name)
    if path.is_file():
        kind = _FILE_KINDS.get(path.suffix, path.suffix.removeprefix("."))
        return datasets.load_dataset(kind, data_files={split: str(path)}, split=split)
    if (path / _SAVED_DATASET).is_file():
        return datasets.load_from_disk(name)
    if (path / _SAVED_SPLITS).is_file():
        return datasets.load_from_disk(name)[split]
    return datasets.load_dataset(name, split=split)


def _dataset_row(number: int, row: Mapping[str, Any], home: Path) -> InputRow:
    missing = [name for name in ("id", "target_text", "prompt_text", "prompt_audio") if row.get(name) is None]
    if missing:
        return BadRow(f"row {number}", f"dataset row {number} lacks {missing}")
    audio = row["prompt_audio"]
    prompt = audio["bytes"] if audio.get("bytes") else home / audio["path"]
    return _checked(f"dataset row {number}", number, str(row["id"]), row["target_text"], row["prompt_text"], prompt)


def _checked(
    where: str, number: int, utt: str, text: str, prompt_text: str | None, prompt: Path | bytes | None
) -> InputRow:
    if not utt:
        return BadRow(f"row {number}", f"{where}: has no utterance name")
    if not text.strip():
        return BadRow(utt, f"{where}: the text is empty")
    if isinstance(prompt, Path) and not prompt.is_file():
        return BadRow(utt, f"{where}: prompt audio {prompt} does not exist")
    if prompt is not None and not (prompt_text or "").strip():
        return BadRow(utt, f"{where}: the prompt has no transcript; write what it says")
    return SpeechInput(utt, text, prompt_text or None, prompt)


def _without_repeats(rows: Iterable[InputRow]) -> list[InputRow]:
    return list(_mark_repeats(rows))


def _mark_repeats(rows: Iterable[InputRow]) -> Iterator[InputRow]:
    seen: set[str] = set()
    for row in rows:
        if isinstance(row, SpeechInput) and row.utt in seen:
            yield BadRow(row.utt, "the name stands in the list twice; give every row its own")
        else:
            yield row
        seen.add(row.utt)


def _first(row: Mapping[str, Any], keys: Iterable[str]) -> str:
    return next((str(row[key]) for key in keys if row.get(key) is not None), "")


def _is_manifest(lines: Iterable[str]) -> bool:
    """Whether every line that holds anything has the fields of a manifest."""
    counts = {line.count("|") for line in lines if line.strip()}
    return counts == {_MANIFEST_FIELDS - 1}


def _numbered(number: int) -> str:
    """Return the name of a row that has none."""
    return f"{number:04d}"


def _read_text(path: Path) -> str:
    try:
        if path == _STANDARD_INPUT:
            return sys.stdin.read()
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BenchmarkError(f"{path} can't be read: {error}") from error
