"""Where a training run keeps its files, and what each stage reads and writes.

WORK/engines/, texts/        unpacked from what was carried along
WORK/corpus/, raw/           wide and raw shards; made again wherever they are missing
WORK/codes.npy               their speech tokens
WORK/tokens/                 token shards, until they are packed
WORK/state/                  all that is worth keeping: weights, packed tokens, the log
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

LOG_FILE = "log.jsonl"
"""Losses and validation figures, one JSON record a line; in the state, and in this folder of the bundled weights."""
MAX_STATE_FILE_BYTES = 16 * 1024 * 1024
"""Kept small, so that a run can be taken up on another machine."""


@dataclass(frozen=True)
class Workspace:
    """The folders of one training."""

    root: Path

    @property
    def engines(self) -> Path:
        return self.root / "engines"

    @property
    def unpacked_engines(self) -> Path | None:
        """The engines, where they were carried along; None: installed ones speak."""
        return self.engines if self.engines.is_dir() else None

    @property
    def texts(self) -> Path:
        return self.root / "texts"

    @property
    def corpus(self) -> Path:
        return self.root / "corpus"

    @property
    def raw(self) -> Path:
        """Shards without audio, where there are any."""
        return self.root / "raw"

    @property
    def codes(self) -> Path:
        return self.root / "codes.npy"

    @property
    def token_shards(self) -> Path:
        return self.root / "tokens"

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def packed_tokens(self) -> Path:
        return self.state / "tokens" / "tokens.npz"

    @property
    def text_tokenizer(self) -> Path:
        return self.state / "text_tokenizer.json"

    @property
    def silent_tokens(self) -> Path:
        """The tokens that sound as silence, where the teachers are not the bundled voice's."""
        return self.state / "silent_tokens.json"

    @property
    def warm(self) -> Path:
        """Lies here where training began from the bundled weights."""
        return self.state / "warm.json"

    @property
    def voices(self) -> Path:
        return self.root / "voices"

    @property
    def log(self) -> Path:
        return self.state / LOG_FILE

    @property
    def bundle(self) -> Path:
        return self.root / "bundle"

    @property
    def speech_tokenizer(self) -> Path:
        """The exported tokenizer, which token shards are made with."""
        return self.root / "speech_tokenizer.onnx"

    def weights(self, stage: str) -> Path:
        """Return the state file of a trained stage."""
        return self.state / f"{stage}.pt"

    def adopt(self, state: Path) -> None:
        """Take over an earlier run's state, unless there is one already."""
        if state.is_dir() and not self.state.exists():
            shutil.copytree(state, self.state)

    def hand_out(self, directory: Path) -> None:
        """Copy the state to where it is kept; the bundle can be made of it anywhere.

        Raises:
            ValueError: a file is too large to be kept.
        """
        if self.state.is_dir():
            whole = shutil.ignore_patterns("*.part")  # of a file that was being written
            shutil.copytree(self.state, directory / self.state.name, ignore=whole, dirs_exist_ok=True)
        large = [path for path in directory.rglob("*") if path.is_file() and path.stat().st_size > MAX_STATE_FILE_BYTES]
        if large:
            raise ValueError(f"{[path.name for path in large]} pass {MAX_STATE_FILE_BYTES} bytes; make fewer of them")
