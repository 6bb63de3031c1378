"""What the LLM learns from: utterances of text and speech tokens, joined into prompts and continuations.

One sequence, as `llm_service.prompt` lays it out, with one to three utterances of one speaker:

    sos | text 1 | text 2 | task_id | speech 1 | speech 2 | end

Each text is encoded by itself, as the gateway encodes a prompt's transcript and the text to say. The text tokenizer
reads lower case and single digits, and has a few hundred merges of bytes learnt from the corpus. Few merges, because a
new word must be read from its letters; not none, because the length bounds of an answer count at least two speech
tokens to a text token, and a letter alone often has less.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor

from lab.train.data import SpeechStreams, parted
from llm_service.vocab import SPEECH_TOKEN_COUNT

_STRAIGHT = {"’": "'", "‘": "'", "“": '"', "”": '"', "–": "-", "—": ", ", "…": "..."}
"""Typographic marks, as texts on the web have them, to what the corpus knows."""


def train_text_tokenizer(texts: Iterable[str], size: int) -> Tokenizer:
    """Learn merges until the vocabulary has `size` entries, 256 of them bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = _normalizer()
    tokenizer.pre_tokenizer = _pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_text_tokenizer(tokenizer: Tokenizer, path: Path) -> None:
    """Write it as the `tokenizers` library does; without special tokens, which `write_llm` adds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path), pretty=False)


def _normalizer() -> Any:
    straighten = [normalizers.Replace(mark, plain) for mark, plain in _STRAIGHT.items()]
    return normalizers.Sequence([normalizers.NFC(), *straighten, normalizers.Lowercase()])


def _pre_tokenizer() -> Any:
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


MAX_SPEECH_TOKENS = 400
"""16 s in one sequence, prompt included."""
JOINED_SHARE = 0.75
"""Share of sequences that are a prompt and its continuation; the others are one utterance."""
MAX_JOINED = 3
_TRIES = 4
"""Utterances that are looked at for each one before the last: a long one has room for short ones only."""
WRONG_SHARE = 0.06
"""Share of input speech tokens that are replaced by others, so that the LLM learns to go on after a slip of
sampling."""


@dataclass(frozen=True)
class Noise:
    """What training adds, so that the LLM does not learn its corpus by heart."""

    wrong: float = WRONG_SHARE
    bare: float = 0.0
    """Share of utterances whose last stop is left out of the text."""
    masked: float = 0.0
    """Share of text tokens that are replaced by others."""
    dropout: float = 0.0
    """Share of the decoder's values that are dropped."""


PLACES, ASKED = 64, 16
"""Sequences are padded to whole multiples of so many places, and asked ones to so many a sequence: few shapes, because
each has a graph of its own."""
IGNORED = -100
"""Target where nothing is asked; torch's own default."""


@dataclass(frozen=True)
class TokenUtterance:
    """One utterance for the LLM."""

    speaker: int
    text: str
    token_ids: npt.NDArray[np.uint16]
    phones: npt.NDArray[np.uint8] | None = None
    """[2 tokens], where they are known."""


@dataclass(frozen=True)
class LLMBatch:
    """Padded sequences; T places."""

    kinds: Tensor
    """[B, T] int64: which table an input row is from, `TEXT`, `CONTROL` or `SPEECH`."""
    rows: Tensor
    """[B, T] int64: its row there."""
    targets: Tensor
    """[B, T] int64: the head's row that comes next, IGNORED where no speech does."""
    asked: Tensor
    """[N] int64: places in the flattened batch where speech comes next, and repeated ones where it does not."""


TEXT, CONTROL, SPEECH = 0, 1, 2
SOS_ROW, TASK_ROW = 0, 1
END_ROW = SPEECH_TOKEN_COUNT
"""Row of the head's first end token."""


_USUAL_NOISE = Noise()
Encoded = tuple[TokenUtterance, npt.NDArray[np.int64]]
"""An utterance and the tokens of its text."""
_Rows = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]


class UtteranceBank:
    """Utterances by speaker, encoded once."""

    def __init__(
        self, utterances: Iterable[TokenUtterance], tokenizer: Tokenizer, seed: int, noise: Noise = _USUAL_NOISE
    ) -> None:
        """Encode everything.

        Raises:
            CorpusError: there is nothing to train on.
        """
        fitting = [utterance for utterance in utterances if len(utterance.token_ids) <= MAX_SPEECH_TOKENS]
        encoded = [encoding.ids for encoding in tokenizer.encode_batch([u.text for u in fitting])]
        pairs = [(u, np.array(ids, np.int64)) for u, ids in zip(fitting, encoded, strict=True)]
        self._noise, self._text_rows = noise, tokenizer.get_vocab_size()
        self._stop = tokenizer.token_to_id(".")
        self.speech_tokens = sum(len(utterance.token_ids) for utterance in fitting)
        self._training, self._validation = map(_by_speaker, parted(pairs, "for the LLM"))
        self._seed = seed
        self._draw = np.random.default_rng(seed)

    def split(self, part: int) -> None:
        """Draw otherwise from here on: `part` numbers the processes that draw side by side."""
        self._draw = np.random.default_rng([self._seed, part])

    def batch(self, size: int, device: torch.device, is_validation: bool = False) -> LLMBatch:
        """Draw sequences; training inputs have wrong tokens in them, targets never."""
        sequences = self.sequences(size, is_validation)
        return _padded([_laid_out(pairs, self._wrong(pairs, is_validation)) for pairs in sequences], device)

    def sequences(self, size: int, is_validation: bool = False) -> list[list[Encoded]]:
        """Draw utterances that belong together; their texts are as training shows them, unless it is validation."""
        speakers = self._validation if is_validation else self._training
        counts = np.array([len(pairs) for pairs in speakers], np.float64)
        chosen = self._draw.choice(len(speakers), size, p=counts / counts.sum())
        sequences = [self._sequence(speakers[speaker]) for speaker in chosen]
        return sequences if is_validation else [[(u, self._worn(ids)) for u, ids in pairs] for pairs in sequences]

    def _worn(self, text: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return a text's tokens as training shows them: sometimes without the last stop, some replaced."""
        noise = self._noise
        if noise.bare and len(text) > 1 and text[-1] == self._stop and self._draw.random() < noise.bare:
            text = text[:-1]
        if noise.masked:
            is_masked = self._draw.random(len(text)) < noise.masked
            text = np.where(is_masked, self._draw.integers(0, self._text_rows, len(text)), text)
        return text

    def _sequence(self, pairs: Sequence[Encoded]) -> list[Encoded]:
        wanted = int(self._draw.integers(2, MAX_JOINED + 1)) if self._draw.random() < JOINED_SHARE else 1
        last, *before = self._draw.integers(0, len(pairs), 1 + _TRIES * (wanted - 1))
        chosen = [pairs[last]]
        total = len(pairs[last][0].token_ids)
        for index in before:
            size = len(pairs[index][0].token_ids)
            if len(chosen) < wanted and total + size <= MAX_SPEECH_TOKENS:
                chosen.insert(0, pairs[index])
                total += size
        return chosen

    def _wrong(self, pairs: Sequence[Encoded], is_validation: bool) -> npt.NDArray[np.int64]:
        """Return the speech tokens to put in: half of the wrong ones from near by, half from anywhere."""
        speech = np.concatenate([pair[0].token_ids for pair in pairs]).astype(np.int64)
        if is_validation:
            return speech
        fate = self._draw.random(len(speech))
        near = np.clip(np.arange(len(speech)) + self._draw.integers(-2, 3, len(speech)), 0, len(speech) - 1)
        anywhere = self._draw.integers(0, SPEECH_TOKEN_COUNT, len(speech))
        wrong = self._noise.wrong
        swapped = np.where(fate < wrong / 2, speech[near], anywhere)
        return np.where(fate < wrong, swapped, speech)


def utterances_of_shards(directory: Path, most_files: int | None = None) -> list[TokenUtterance]:
    """Read token shards, the first ones or all, or the one file that `pack_tokens` made of them."""
    found = []
    for path in sorted(directory.glob("*.npz"))[:most_files]:
        with np.load(path) as shard:
            ends = np.cumsum(shard["tokens"])
            pieces = np.split(shard["token_ids"], ends[:-1])
            texts = json.loads(str(shard["texts"]))
            heard = np.split(shard["phones"], 2 * ends[:-1]) if "phones" in shard else [None] * len(pieces)
            rows = zip(shard["speaker"], texts, pieces, heard, strict=True)
            found += [TokenUtterance(int(speaker), text, ids, phones) for speaker, text, ids, phones in rows]
    return found


def utterances_of_streams(streams: SpeechStreams, token_ids: npt.NDArray[np.uint16]) -> list[TokenUtterance]:
    """Return the wide corpus's utterances with their tokens [tokens]."""
    return [TokenUtterance(u.speaker, u.text, token_ids[u.start : u.start + u.tokens]) for u in streams.utterances]


def pack_tokens(utterances: Sequence[TokenUtterance], path: Path) -> None:
    """Write utterances into one compressed file, small enough to keep between machines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path,
        speaker=np.array([u.speaker for u in utterances], np.uint8),
        tokens=np.array([len(u.token_ids) for u in utterances], np.int32),
        texts=np.array(json.dumps([u.text for u in utterances])),
        token_ids=np.concatenate([u.token_ids for u in utterances]),
    )


def _by_speaker(pairs: Sequence[Encoded]) -> list[list[Encoded]]:
    speakers: dict[int, list[Encoded]] = {}
    for pair in pairs:
        speakers.setdefault(pair[0].speaker, []).append(pair)
    return [speakers[speaker] for speaker in sorted(speakers)]


def _laid_out(pairs: Sequence[Encoded], speech_in: npt.NDArray[np.int64]) -> _Rows:
    """Return kinds, rows and targets of one sequence."""
    text = np.concatenate([ids for _, ids in pairs])
    speech = np.concatenate([utterance.token_ids for utterance, _ in pairs]).astype(np.int64)
    kinds = np.concatenate([[CONTROL], np.full(len(text), TEXT), [CONTROL], np.full(len(speech), SPEECH)])
    rows = np.concatenate([[SOS_ROW], text, [TASK_ROW], speech_in])
    targets = np.concatenate([np.full(len(text) + 1, IGNORED), speech, [END_ROW]])
    return kinds.astype(np.int64), rows.astype(np.int64), targets.astype(np.int64)


def _padded(sequences: Sequence[_Rows], device: torch.device) -> LLMBatch:
    size = _whole(max(len(kinds) for kinds, _, _ in sequences), PLACES)

    def stacked(column: int, filler: int) -> Tensor:
        out = np.full((len(sequences), size), filler, np.int64)
        for row, sequence in enumerate(sequences):
            out[row, : len(sequence[column])] = sequence[column]
        return torch.from_numpy(out)

    targets = stacked(2, IGNORED)
    asked = (targets != IGNORED).flatten().nonzero()[:, 0]
    filled = torch.zeros(_whole(len(asked), len(sequences) * ASKED), dtype=torch.int64)  # the first place asks nothing
    filled[: len(asked)] = asked
    parts = (stacked(0, TEXT), stacked(1, 0), targets, filled)
    return LLMBatch(*(part.to(device, non_blocking=True) for part in parts))


def _whole(size: int, step: int) -> int:
    return -(-size // step) * step
