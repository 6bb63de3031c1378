"""The corpus in memory: one long stream of tokens and features per speaker, from which windows are cut at random.

Everything lies on the training device; a window costs an index. Utterances of a speaker stand back to back, so a
window may hold the end of one and the beginning of the next, as a prompt and its continuation do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from lab.train.utterance import LAYOUTS

VALIDATION_SHARE = 0.02
"""The end of every speaker's stream is never trained on."""
VALIDATION_EVERY = 50
"""Every so-manieth of single utterances is never trained on."""
T = TypeVar("T")


class CorpusError(Exception):
    """The corpus is missing or can't serve the windows asked for."""


def parted(utterances: Sequence[T], use: str) -> tuple[list[T], list[T]]:
    """Part utterances into those to train on and those to validate with; `use` tells in an error what for.

    Raises:
        CorpusError: there are too few.
    """
    if len(utterances) <= VALIDATION_EVERY:
        raise CorpusError(f"got {len(utterances)} utterances {use}, expected more than {VALIDATION_EVERY}")
    training = [each for index, each in enumerate(utterances) if index % VALIDATION_EVERY]
    return training, list(utterances[::VALIDATION_EVERY])


@dataclass(frozen=True)
class Utterance:
    """Where one utterance lies in the streams."""

    speaker: int
    text: str
    start: int
    """Row of the utterance's first token."""
    tokens: int


@dataclass(frozen=True)
class Windows:
    """A batch of windows."""

    speakers: Tensor
    """[B] int64; on the CPU when drawn."""
    starts: Tensor
    """[B] int64: rows of their first tokens."""

    def inputs(self) -> dict[str, Tensor]:
        """Return them by name, as a step's inputs."""
        return vars(self)


class SpeechStreams:
    """All shards of a directory, or of two, sorted by speaker."""

    def __init__(
        self, directory: Path, names: Sequence[str], device: torch.device, seed: int, beside: Path | None = None
    ) -> None:
        """Load the features `names` (of `utterance.LAYOUTS`).

        Args:
            directory: of shards.
            names: of features that every shard has.
            device: where they shall lie.
            seed: of the windows that are drawn.
            beside: another directory, which may be missing.

        Raises:
            CorpusError: the directory has no shards.
        """
        shards = [np.load(path) for path in sorted(directory.glob("shard-*.npz"))]
        if not shards:
            raise CorpusError(f"{directory} holds no shards; run `python -m lab.train.corpus` first")
        shards += [np.load(path) for path in sorted(beside.glob("shard-*.npz"))] if beside else []
        self.device, self.seed = device, seed
        self.utterances, order = _sorted_utterances(shards)
        self._columns = {name: _stream(shards, order, name).to(device) for name in names}
        counts = np.bincount([u.speaker for u in self.utterances], [u.tokens for u in self.utterances])
        self._lengths = torch.from_numpy(counts.astype(np.int64))
        self._starts = torch.cumsum(self._lengths, 0) - self._lengths
        self._draw = torch.Generator().manual_seed(seed)

    @property
    def tokens(self) -> int:
        """Tokens (25 Hz) in all."""
        return int(self._lengths.sum())

    def add_column(self, name: str, values: Tensor) -> None:
        """Add a feature of one row a token, in the streams' order (the speech tokens, once they are known)."""
        if len(values) != self.tokens:
            raise CorpusError(f"got {len(values)} rows for {name}, expected {self.tokens}, one a token")
        self._columns[name] = values.to(self.device)[:, None]

    def column(self, name: str, start: int, tokens: int) -> Tensor:
        """Return rows [tokens * per token, ...] of one feature."""
        return self._columns[name][start : start + tokens].flatten(0, 1)

    def window(self, name: str, starts: Tensor, tokens: int) -> Tensor:
        """Return [B, tokens * per token, ...] of one feature, beginning at rows `starts` [B]."""
        index = starts.to(self.device)[:, None] + torch.arange(tokens, device=self.device)
        return self._columns[name][index].flatten(1, 2)

    def draw(self, count: int, tokens: int, is_validation: bool = False, is_even: bool = False) -> Windows:
        """Draw windows of `tokens` tokens, from speakers by their share of the corpus, or from all alike.

        Speakers with too little audio for such a window are passed over.

        Raises:
            CorpusError: all have too little.
        """
        has_room = self._room(tokens, is_validation) >= 0
        if not bool(has_room.any()):
            raise CorpusError(f"no speaker has enough audio for windows of {tokens} tokens; make more corpus")
        weights = has_room.double() if is_even else has_room * self._lengths.double()
        speakers = torch.multinomial(weights, count, replacement=True, generator=self._draw)
        return Windows(speakers, self.draw_for(speakers, tokens, is_validation))

    def draw_for(self, speakers: Tensor, tokens: int, is_validation: bool = False) -> Tensor:
        """Draw where windows of `tokens` tokens of given speakers [B] begin: [B] rows."""
        room = self._room(tokens, is_validation)[speakers]
        offset = (torch.rand(len(speakers), generator=self._draw, dtype=torch.float64) * (room + 1)).long()
        begin = (self._lengths - self._held_out(tokens))[speakers] if is_validation else 0
        return self._starts[speakers] + begin + offset

    def _held_out(self, tokens: int) -> Tensor:
        """Tokens at the end of each speaker's stream that are for validation."""
        return (self._lengths.double() * VALIDATION_SHARE).long().clamp(min=tokens)

    def _room(self, tokens: int, is_validation: bool) -> Tensor:
        """Places, less one, where a window may begin; negative where there is none."""
        held_out = self._held_out(tokens)
        for_training = self._lengths - held_out - tokens
        return torch.where(for_training < 0, for_training, held_out - tokens) if is_validation else for_training


def _sorted_utterances(shards: Sequence[np.lib.npyio.NpzFile]) -> tuple[list[Utterance], list[tuple[int, int, int]]]:
    """Return the utterances by speaker, and (shard, first token in it, tokens) of each in that order."""
    found = sorted(_listed(shards), key=lambda item: (item[0], item[2], item[3]))
    utterances, order, start = [], [], 0
    for speaker, text, shard, first, tokens in found:
        utterances.append(Utterance(speaker, text, start, tokens))
        order.append((shard, first, tokens))
        start += tokens
    return utterances, order


def _listed(shards: Sequence[np.lib.npyio.NpzFile]) -> Iterator[tuple[int, str, int, int, int]]:
    for number, shard in enumerate(shards):
        first = 0
        for speaker, tokens, text in zip(
            shard["speaker"], shard["tokens"], json.loads(str(shard["texts"])), strict=True
        ):
            yield int(speaker), text, number, first, int(tokens)
            first += int(tokens)


def _stream(shards: Sequence[np.lib.npyio.NpzFile], order: Sequence[tuple[int, int, int]], name: str) -> Tensor:
    """Return [tokens, per token, ...] of one feature in the given order."""
    per_token = LAYOUTS[name].per_token
    arrays = [shard[name] for shard in shards]
    parts = [arrays[shard][first * per_token : (first + tokens) * per_token] for shard, first, tokens in order]
    joined = torch.from_numpy(np.concatenate(parts))
    return joined.view(-1, per_token, *joined.shape[1:])
