"""A checkpoint's aligner: which letters of a text a speech token sounds like. `aligner.npz`, optional.

    text    h e l l o , _ y o u          one state a letter, one for all between two words
    tokens  [ 25 a second ]              two frames of 20 ms each
    scores  [frames, states]             how much rather a frame sounds like a state than like anything

Two small networks over phones: one tells of each frame which phones it may be, by the tokens around it; the other of
each letter which phones it stands for, how long and how likely not at all, by the letters around it. Arrays only.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, is_zipfile

import numpy as np
import numpy.typing as npt

from llm_service.errors import CheckpointError
from servicekit.file_sums import FileSumsError, check_file

FloatArray = npt.NDArray[np.float32]

ALIGNER_FILE = "aligner.npz"
"""Beside the tokenizer; loaders of the LLM take every safetensors file there for a part of its weights."""
FRAMES_PER_TOKEN = 2
LEVELS, DIGITS = 3, 8
"""A speech token is a number of 8 ternary digits, each one-hot in the network's input."""
PAUSES = (" ", ",", ".")
"""The first states of the inventory: what stands between words, the stronger the later."""
_SPOKEN = "'abcdefghijklmnopqrstuvwxyz"
UNKNOWN = len(PAUSES) + len(_SPOKEN)
"""The state of a digit, or of a letter that the aligner does not know: it sounds like anything."""
STATE_COUNT = UNKNOWN + 1
PAUSE_PHONE = 0
"""The only phone of the pauses, and of nothing else."""
SILENT_LOG = -30.0
"""Of a phone that a state never stands for."""

_STATE_OF = {letter: number for number, letter in enumerate((*PAUSES, *_SPOKEN))}
_STRAIGHT = {"\u2019": "'", "\u2018": "'"}
_COMMAS, _STOPS = frozenset(',()\u2013\u2014-"\u201c\u201d'), frozenset(".!?;:\u2026\u3002\uff01\uff1f\uff1b\uff1a")
_FLOOR = 1e-4
"""Of a score before its logarithm: speech that left its text must not be infinitely unlikely."""
_TRUST = 0.6
"""Neighbouring frames tell much the same; counted in full they would outweigh what is known of durations."""
_UNREADABLE = (OSError, EOFError, BadZipFile, ValueError, TypeError)
"""What numpy raises for files that are something else."""
_UNKNOWN_STAY, _UNKNOWN_SKIP = 2.0, -3.0
"""Logits of an unknown letter: about 0.15 s, hardly ever silent."""


@dataclass(frozen=True)
class Spelling:
    """A text as states: a pause first and last, and never two in a row."""

    states: npt.NDArray[np.int64]
    """[S], 0 to `UNKNOWN`."""
    state_at: tuple[int, ...]
    """Position among the states of each character of the text."""


def spell(text: str) -> Spelling:
    """Return the states of a text; every text has one."""
    states, state_at = [0], list[int]()
    for character in text:
        state = _state_of(character)
        if state is not None and (state >= len(PAUSES) or states[-1] >= len(PAUSES)):
            states.append(state)
        elif state is not None:
            states[-1] = max(states[-1], state)
        state_at.append(len(states) - 1)
    if states[-1] >= len(PAUSES):
        states.append(0)
    return Spelling(np.array(states), tuple(state_at))


@lru_cache(maxsize=4096)
def _state_of(character: str) -> int | None:
    """Return a character's state; None: it belongs to the one before, as an accent does."""
    plain = unicodedata.normalize("NFKD", _STRAIGHT.get(character, character).lower())[:1]
    if unicodedata.combining(plain or " "):
        return None
    if plain in _STATE_OF and plain not in PAUSES:
        return _STATE_OF[plain]
    if plain in _STOPS:
        return PAUSES.index(".")
    if plain in _COMMAS:
        return PAUSES.index(",")
    return UNKNOWN if plain.isalnum() else 0


@dataclass(frozen=True)
class LetterModel:
    """What the aligner knows of one text's states before it is spoken."""

    phones: FloatArray
    """[P, S], how much rather a state is a phone than any state is; an unknown letter's are 1."""
    stay: FloatArray
    """[S], logits of lasting one more frame."""
    skip: FloatArray
    """[S], logits of not being spoken at all."""


_Weights = dict[str, FloatArray]
_NAMES = {"tokens.first", "tokens.second", "tokens.head", "text.convolution", "text.head"}


class Aligner:
    """Scores speech tokens against letters. Holds no state of a speech; may be shared."""

    def __init__(self, weights: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take weights by the names of the file.

        Raises:
            CheckpointError: some are missing, or do not fit one another.
        """
        self._weights = {name: np.asarray(value, np.float32) for name, value in weights.items()}
        self._check()
        layers = {name: self._weights[f"{name}.weight"] for name in _NAMES}
        self._matrices = {
            name: np.ascontiguousarray(weight.T.reshape(-1, len(weight))) for name, weight in layers.items()
        }
        """[inputs, outputs]; those of a convolution place by place."""
        try:
            self.scores([0], 0, 1, self.letters(np.array([0, UNKNOWN])))
        except (ValueError, IndexError) as error:
            shapes = {name: value.shape for name, value in self._weights.items()}
            raise CheckpointError(f"got {shapes} ({error}), expected weights that fit one another") from error

    @property
    def context_tokens(self) -> int:
        """Speech tokens on either side that a frame's score depends on."""
        return sum(self._weights[f"tokens.{name}.weight"].shape[2] // 2 for name in ("first", "second"))

    def letters(self, states: npt.NDArray[np.int64]) -> LetterModel:
        """Return what is known of the states of a text, [S]."""
        is_pause, is_unknown = states < len(PAUSES), states == UNKNOWN
        embedded = self._weights["text.embedding.weight"][states]
        out = self._linear(np.maximum(self._convolved(embedded, "text.convolution"), 0), "text.head")
        phones, (stay, skip) = out[:, :-2], out[:, -2:].T
        never = np.equal.outer(is_pause, np.arange(phones.shape[1]) != PAUSE_PHONE)
        phones = _softmax(np.where(never, np.float32(SILENT_LOG), phones)) / np.exp(self._weights["log_prior"])
        phones[is_unknown] = 1
        stay = np.where(is_unknown, np.float32(_UNKNOWN_STAY), stay)
        return LetterModel(phones.T, stay, np.where(is_unknown, np.float32(_UNKNOWN_SKIP), skip))

    def scores(self, token_ids: Sequence[int], since: int, until: int, letters: LetterModel) -> FloatArray:
        """Score the frames of some tokens against all states.

        Args:
            token_ids: of a segment, as far as they have come.
            since: first token to score.
            until: behind the last one.
            letters: of its text.

        Returns:
            [2 (until - since), S], logarithms.
        """
        begin = max(since - self.context_tokens, 0)
        window = token_ids[begin : until + self.context_tokens]
        one_hot = np.asarray(window)[:, None] // LEVELS ** np.arange(DIGITS) % LEVELS
        rows = (one_hot[:, :, None] == np.arange(LEVELS)).reshape(len(window), -1).astype(np.float32)
        for name in ("tokens.first", "tokens.second"):
            rows = np.maximum(self._convolved(rows, name), 0)
        heard = self._linear(rows[since - begin : until - begin], "tokens.head")
        chances = _softmax(heard.reshape(-1, len(letters.phones)))
        scores: FloatArray = _TRUST * np.log(chances @ letters.phones + _FLOOR)
        return scores

    def _convolved(self, rows: FloatArray, name: str) -> FloatArray:
        """Convolve [N, C] with [D, C, K] over zeros beyond both ends, to [N, D]."""
        width = self._weights[f"{name}.weight"].shape[2]
        padded = np.zeros((len(rows) + width - 1, rows.shape[1]), np.float32)
        padded[width // 2 : width // 2 + len(rows)] = rows
        windows = np.concatenate([padded[at : at + len(rows)] for at in range(width)], axis=1)
        return self._linear(windows, name)

    def _linear(self, rows: FloatArray, name: str) -> FloatArray:
        out: FloatArray = rows @ self._matrices[name] + self._weights[f"{name}.bias"]
        return out

    def _check(self) -> None:
        """Look for tensors that are missing, unknown or not finite."""
        names = {
            "log_prior",
            "text.embedding.weight",
            *(f"{name}.{part}" for name in _NAMES for part in ("weight", "bias")),
        }
        if set(self._weights) != names:
            raise CheckpointError(f"got tensors {sorted(self._weights)}, expected {sorted(names)}")
        if not all(np.isfinite(value).all() for value in self._weights.values()):
            raise CheckpointError("got weights that are not finite, expected numbers")


def _softmax(logits: FloatArray) -> FloatArray:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True), np.float32)


def write_aligner(directory: Path, weights: Mapping[str, FloatArray]) -> None:
    """Write the file beside the tokenizer in `directory`, in half precision."""
    with (directory / ALIGNER_FILE).open("wb") as file:
        np.savez(file, **{name: value.astype(np.float16) for name, value in weights.items()})


def load_aligner(tokenizer_dir: Path) -> Aligner | None:
    """Read a checkpoint's aligner; None if it has none, as the official ones.

    Raises:
        CheckpointError: the file is there and holds something else.
    """
    path = tokenizer_dir / ALIGNER_FILE
    if not path.exists():
        return None
    try:
        check_file(path)
        if not is_zipfile(path):
            raise CheckpointError("it is no archive of numpy's")
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            return Aligner(dict(file))
    except (FileSumsError, CheckpointError, *_UNREADABLE) as error:
        raise CheckpointError(f"{path} can't be read ({error}); get it again, or remove it to go without") from error
