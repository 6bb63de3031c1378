"""Reads lists of texts and voices: plain lines, CSV, JSONL, manifests, Hugging Face datasets, the bundled samples.

A row that can't be used becomes a `BadRow` that names its line; whether that ends the run is the caller's choice.
"""

from __future__ import annotations

import argparse
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
from gateway.core import FloatArray
from servicekit.extras import install_command
from token2wav_service.features.audio import load_prompt_audio

MANIFEST_FIELDS = ("utt", "prompt_text", "prompt_wav", "text")
_DATASET_FIELDS = ("id", "target_text", "prompt_text", "prompt_audio")
_SAVED_DATASET, _SAVED_SPLITS = "dataset_info.json", "dataset_dict.json"
"""Files that `save_to_disk` leaves in a directory of one split, and of several."""
_NAMES = {"id": "utt", "target_text": "text", "prompt_audio": "prompt_wav"}
"""Other spelling of a field -> field."""
_KNOWN = {"utt", "text", "voice", "prompt_wav", "prompt_text", *_NAMES}
_EXPECTED = "expected text, and optionally utt, voice, prompt_wav, prompt_text"
_STANDARD_INPUT = Path("-")
MANIFEST = "|"
_CSV_SUFFIXES = {".csv": ",", ".tsv": "\t"}
_JSONL_SUFFIXES = (".jsonl", ".ndjson")

Entry = tuple[str, Mapping[str, Any] | str]
"""Where a row stands, and its fields or what is wrong with it."""


def read_source(args: argparse.Namespace) -> list[InputRow] | None:
    """Read what the options of `add_source_options` name; None if they name nothing.

    Raises:
        BenchmarkError: the list can't be read.
    """
    if args.huggingface_dataset is not None:
        return read_dataset(args.huggingface_dataset, args.split_name)
    for path, suffix in ((args.input, None), (args.manifest_path, MANIFEST), (args.jsonl_path, ".jsonl")):
        if path is not None:
            return read_list(path, suffix)
    return None


def read_list(path: Path, suffix: str | None = None) -> list[InputRow]:
    """Read a list of texts; prompt paths are relative to it, and a row without a name is called by its number.

    A table or JSON objects have `text` or `target_text`, and optionally `utt` or `id`, `voice`, `prompt_wav` with
    `prompt_text`; a manifest has lines of `utt|prompt_text|prompt_wav|text`.

    Args:
        path: `-` reads plain lines from standard input.
        suffix: says which form the list has: .csv, .tsv, .jsonl or `MANIFEST`; None takes the path's own, and of any
            other file the lines of a manifest, or one text a line.

    Raises:
        BenchmarkError: no such file, not UTF-8, or a CSV without a column `text`.
    """
    suffix = suffix or path.suffix.lower()
    if suffix in _CSV_SUFFIXES:
        return _rows(_csv_entries(path, _CSV_SUFFIXES[suffix]), path.parent)
    lines = _read_text(path).splitlines()
    if suffix in _JSONL_SUFFIXES:
        return _rows(_json_entries(path, lines), path.parent)
    if suffix == MANIFEST or {line.count("|") for line in lines if line.strip()} == {len(MANIFEST_FIELDS) - 1}:
        return _rows(_manifest_entries(path, lines), path.parent)
    return [SpeechInput(f"{number:04d}", line.strip()) for number, line in enumerate(lines, 1) if line.strip()]


def read_dataset(name: str, split: str) -> list[InputRow]:
    """Load a Hugging Face dataset with the fields id, target_text, prompt_text and prompt_audio.

    Args:
        name: of a dataset on the hub, a local directory (as `load_dataset` or `save_to_disk` have it), or a local file
            whose suffix says what it is: parquet, arrow, json, jsonl or csv. A prompt_audio that is a path is relative
            to that file or directory.

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
    return _rows(_dataset_entries(rows), Path(name).parent if Path(name).is_file() else Path(name))


def read_samples(prompt: Path | None = None, prompt_text: str | None = None) -> list[SpeechInput]:
    """Return the bundled sentences, all in one voice; without a prompt in the server's own."""
    text = (resources.files("demo_voice") / "samples" / "english.txt").read_text(encoding="utf-8")
    rows = (line.split("|", 1) for line in text.splitlines())
    return [SpeechInput(utt, sentence, prompt_text, prompt) for utt, sentence in rows]


def find_voice(voices_dir: Path, name: str) -> tuple[Path, str]:
    """Return the audio file and the transcript of a voice of a voices directory.

    Raises:
        BenchmarkError: no such voice.
    """
    wav, transcript = voices_dir / f"{name}.wav", voices_dir / f"{name}.txt"
    if missing := [str(path) for path in (wav, transcript) if not path.is_file()]:
        raise BenchmarkError(f"voice {name!r} lacks {missing}; a voice is <name>.wav and <name>.txt in --voices-dir")
    return wav, transcript.read_text(encoding="utf-8").strip()


def with_voices(rows: Iterable[InputRow], voices_dir: Path, default: str) -> list[InputRow]:
    """Give each row without a prompt the one of the voice that it names, or of the default voice.

    Raises:
        BenchmarkError: there is no such default voice.
    """
    names = sorted(path.stem for path in voices_dir.glob("*.wav"))
    has = f"{voices_dir} has {', '.join(names) or 'no voice'}"

    def with_voice(row: InputRow) -> InputRow:
        if isinstance(row, BadRow) or row.prompt is not None:
            return row
        name = row.voice or default
        if name not in names:
            return BadRow(row.utt, f"got the voice {name!r}; {has}")
        prompt, prompt_text = find_voice(voices_dir, name)
        return replace(row, prompt=prompt, prompt_text=prompt_text, voice=name)

    if default not in names:
        raise BenchmarkError(f"got the voice {default!r}; {has}")
    return [with_voice(row) for row in rows]


def require_all_good(rows: Iterable[InputRow]) -> list[SpeechInput]:
    """Return the rows if none is bad.

    Raises:
        BenchmarkError: names every bad row, or says that there are none at all.
    """
    rows = list(rows)
    if bad := [f"{row.utt}: {row.reason}" for row in rows if isinstance(row, BadRow)]:
        raise BenchmarkError("the input has rows that can't be used:\n" + "\n".join(bad))
    if not rows:
        raise BenchmarkError("the input is empty; give at least one text")
    return [row for row in rows if isinstance(row, SpeechInput)]


def read_prompt(prompt: Path | bytes) -> FloatArray:
    """Return a prompt's samples, [N] mono float32 in +-1 at 16 kHz.

    Raises:
        OSError, InvalidPromptError: it can't be read.
    """
    return load_prompt_audio(prompt.read_bytes() if isinstance(prompt, Path) else prompt)


def _manifest_entries(path: Path, lines: Iterable[str]) -> Iterator[Entry]:
    for number, line in enumerate(lines, 1):
        fields = [part.strip() for part in line.split("|")]
        if len(fields) == len(MANIFEST_FIELDS):
            named = dict(zip(MANIFEST_FIELDS, fields, strict=True))
            yield f"{path}:{number}", named if named["utt"] else "has no utterance name"
        elif line.strip():
            yield f"{path}:{number}", f"got {len(fields)} fields, expected {'|'.join(MANIFEST_FIELDS)}"


def _json_entries(path: Path, lines: Iterable[str]) -> Iterator[Entry]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            yield f"{path}:{number}", f"not JSON ({error})"
            continue
        if not isinstance(row, dict):
            yield f"{path}:{number}", f"got {type(row).__name__}, expected a JSON object"
        elif unknown := sorted(set(row) - _KNOWN):
            yield f"{path}:{number}", f"unknown fields {unknown}; {_EXPECTED}"
        elif wrong := [name for name in row if name not in ("utt", "id") and not isinstance(row[name], str | None)]:
            yield f"{path}:{number}", f"got {row[wrong[0]]!r} for {wrong[0]}, expected a string"
        else:
            yield f"{path}:{number}", row


def _csv_entries(path: Path, delimiter: str) -> Iterator[Entry]:
    table = csv.DictReader(io.StringIO(_read_text(path).removeprefix("\ufeff"), newline=""), delimiter=delimiter)
    columns = [name.strip() for name in table.fieldnames or ()]
    if not set(columns) & {"text", "target_text"} or not set(columns) <= _KNOWN:
        raise BenchmarkError(f"{path}: the first line names the columns {columns}; {_EXPECTED}")
    table.fieldnames = columns
    for row in table:
        fields = {name: value.strip() for name, value in row.items() if name and value}
        too_many = "more fields than columns; put a text with commas in double quotes"
        yield f"{path}:{table.line_num}", too_many if None in row else fields


def _dataset_entries(rows: Iterable[Mapping[str, Any]]) -> Iterator[Entry]:
    for number, row in enumerate(rows, 1):
        audio = row.get("prompt_audio") or {}
        fields = {**row, "prompt_audio": audio.get("bytes") or audio.get("path")}
        missing = [name for name in _DATASET_FIELDS if fields.get(name) is None]
        yield f"dataset row {number}", f"lacks {missing}" if missing else fields


def _load_dataset(datasets: Any, name: str, split: str) -> Any:
    path = Path(name)
    if path.is_file():
        kind = "json" if path.suffix == ".jsonl" else path.suffix.removeprefix(".")
        return datasets.load_dataset(kind, data_files={split: str(path)}, split=split)
    if (path / _SAVED_DATASET).is_file():
        return datasets.load_from_disk(name)
    if (path / _SAVED_SPLITS).is_file():
        return datasets.load_from_disk(name)[split]
    return datasets.load_dataset(name, split=split)


def _rows(entries: Iterable[Entry], home: Path) -> list[InputRow]:
    """Check entries; prompt paths are relative to `home`, and a name that stands there twice is bad."""
    seen: set[str] = set()
    rows: list[InputRow] = []
    for number, (where, fields) in enumerate(entries, 1):
        row = _checked(where, number, fields, home)
        if isinstance(row, SpeechInput) and row.utt in seen:
            row = BadRow(row.utt, "the name stands in the list twice; give every row its own")
        seen.add(row.utt)
        rows.append(row)
    return rows


def _checked(where: str, number: int, fields: Mapping[str, Any] | str, home: Path) -> InputRow:
    if isinstance(fields, str):
        return BadRow(f"row {number}", f"{where}: {fields}")
    given = {_NAMES.get(name, name): value for name, value in fields.items() if value not in (None, "")}
    utt, text, wav = str(given.get("utt", f"{number:04d}")), str(given.get("text", "")), given.get("prompt_wav")
    prompt = wav if wav is None or isinstance(wav, bytes) else home / str(wav)
    prompt_text, problem = str(given.get("prompt_text", "")), ""
    if not text.strip():
        problem = "the text is empty"
    elif isinstance(prompt, Path) and not prompt.is_file():
        problem = f"prompt audio {prompt} does not exist"
    elif prompt is not None and not prompt_text.strip():
        problem = "the prompt has no transcript; write what it says"
    elif prompt is not None and "voice" in given:
        problem = "has a voice and a prompt; leave one of them out"
    if problem:
        return BadRow(utt, f"{where}: {problem}")
    return SpeechInput(utt, text, prompt_text or None, prompt, given.get("voice"))


def _read_text(path: Path) -> str:
    try:
        return sys.stdin.read() if path == _STANDARD_INPUT else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BenchmarkError(f"{path} can't be read: {error}") from error
