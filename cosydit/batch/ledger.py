"""Knows which utterances are done, and survives being killed at any moment.

An utterance is done when its audio file exists: it is written under a temporary name and then renamed. Its line in
results.jsonl is appended in one write afterwards. Opening the ledger repairs what a kill left behind: temporary files,
a torn last line, a file without its line, a line without its file.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import soundfile

from cosydit.bench.report import write_text
from cosydit.bench.types import BenchmarkError
from gateway.core import FloatArray
from servicekit.files import takes_lock
from token2wav_service.contract import SAMPLE_RATE_HZ

RESULTS_FILE = "results.jsonl"
LOCK_FILE = ".lock"
FORMATS = {"wav": "WAV", "flac": "FLAC"}
PCM_SCALE = 32767
_PARTIAL = ".part"
_NAME = re.compile(r"(?!\.)[^/\\\x00-\x1f]{1,200}")


class Ledger:
    """The output directory of one batch; a context manager that keeps other runs out of it."""

    def __init__(self, directory: Path, audio_format: str, utts: Collection[str]) -> None:
        """Keep the names; nothing is touched before the context is entered.

        `audio_format` is a key of `FORMATS`; files of other utterances than `utts` are left alone.
        """
        self._directory = directory
        self._utts = utts
        self._format = audio_format
        self._lock: IO[str] | None = None
        self._results: int | None = None

    def __enter__(self) -> Ledger:
        """Make the directory, lock it and repair it.

        Raises:
            BenchmarkError: another run works there.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        self._lock = (self._directory / LOCK_FILE).open("w")
        if not takes_lock(self._lock.fileno()):
            self._lock.close()
            raise BenchmarkError(f"another batch writes to {self._directory}; wait for it, or give another one")
        self._repair()
        self._results = os.open(self._directory / RESULTS_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        return self

    def __exit__(self, *details: object) -> None:
        if self._results is not None:
            os.close(self._results)
        if self._lock is not None:
            self._lock.close()
        self._results = self._lock = None

    def audio_path(self, utt: str) -> Path:
        """Return where an utterance's audio lies when it is done.

        Raises:
            BenchmarkError: the name can't be a file name.
        """
        if not _NAME.fullmatch(utt):
            raise BenchmarkError(f"utterance name {utt!r} can't be a file name: use letters, digits, - and _")
        return self._directory / f"{utt}.{self._format}"

    def is_done(self, utt: str) -> bool:
        """Tell whether an utterance's audio exists; raises like `audio_path`."""
        return self.audio_path(utt).exists()

    def write_audio(self, utt: str, samples: FloatArray) -> str:
        """Write an utterance's samples, [N] float32 in +-1 at 24 kHz, as 16-bit PCM; returns the file's name.

        From here on it is done. Several threads may write at once.
        """
        path = self.audio_path(utt)
        partial = path.with_name(f".{path.name}{_PARTIAL}")
        pcm = np.clip(np.rint(samples * PCM_SCALE), -PCM_SCALE, PCM_SCALE).astype("<i2")
        soundfile.write(partial, pcm, SAMPLE_RATE_HZ, format=FORMATS[self._format], subtype="PCM_16")
        os.replace(partial, path)
        return path.name

    def append(self, result: Mapping[str, Any]) -> None:
        """Append an utterance's line, whole or not at all; `result` has its name as `utt`."""
        assert self._results is not None, "the ledger is not open"
        os.write(self._results, _line(result))

    def _repair(self) -> None:
        for leftover in self._directory.glob(f".*{_PARTIAL}"):
            leftover.unlink()
        results = self._read_results()
        for path in sorted(self._directory.glob(f"*.{self._format}")):
            if path.stem in self._utts and path.stem not in results:
                results[path.stem] = _recovered(path)
        write_text(self._directory / RESULTS_FILE, "".join(_line(result).decode() for result in results.values()))

    def _read_results(self) -> dict[str, dict[str, Any]]:
        """Return the lines whose audio exists in our format, the first of each utterance; torn lines are dropped."""
        results: dict[str, dict[str, Any]] = {}
        path = self._directory / RESULTS_FILE
        if not path.exists():
            return results
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                result = json.loads(line)
                utt, audio = result["utt"], self._directory / result["audio"]
            except (ValueError, LookupError, TypeError):
                continue
            if audio.suffix == f".{self._format}" and audio.exists():
                results.setdefault(utt, result)
        return results


def _recovered(path: Path) -> dict[str, Any]:
    """Describe audio whose line was lost: what the file itself tells."""
    info = soundfile.info(path)
    return {"utt": path.stem, "audio": path.name, "audio_s": info.frames / info.samplerate, "is_recovered": True}


def _line(result: Mapping[str, Any]) -> bytes:
    return (json.dumps(result, ensure_ascii=False) + "\n").encode("utf-8")
