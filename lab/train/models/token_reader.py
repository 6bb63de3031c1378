"""A reader of phones that judges what the LLM draws: every sound of the text shall be heard in its tokens, once.

It learns from the teachers' tokens and phones. It sees a quarter of a second to either side, so that it can't guess a
missing sound from its neighbours. Source of its loss: connectionist temporal classification (Graves et al. 2006); the
pause stands for its blank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from lab.train.data import parted
from lab.train.models.aligner import one_hot_digits
from lab.train.models.llm_data import TokenUtterance
from lab.train.teachers.flite import PAUSE, PHONES, phone_number
from lab.train.trainer import OneModel, autocast, mean_of
from lab.train.utterance import FRAMES_PER_TOKEN
from llm_service.aligner import DIGITS, LEVELS

CHANNELS, KERNEL, LAYERS = 256, 5, 3
DROPOUT = 0.15
RATE = 2e-3
_VALIDATION_BATCHES = 4
_MOST_NATS = 10.0
"""Of one frame."""
_PAUSE = phone_number(PAUSE)


class TokenReader(nn.Module):
    """Tells the phones of speech tokens, two frames of 20 ms a token."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [LEVELS * DIGITS, *[CHANNELS] * LAYERS]
        self.layers = nn.ModuleList(
            nn.Conv1d(before, after, KERNEL, padding=KERNEL // 2) for before, after in pairwise(sizes)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(CHANNELS) for _ in range(LAYERS))
        self.dropout = nn.Dropout(DROPOUT)
        self.head = nn.Linear(CHANNELS, FRAMES_PER_TOKEN * len(PHONES))

    def forward(self, token_ids: Tensor, sizes: Tensor) -> Tensor:
        """Return logarithms of the phones [B, 2 T, phones] of tokens [B, T]; of each row the first `sizes` count."""
        is_token = (torch.arange(token_ids.shape[1], device=token_ids.device) < sizes[:, None])[:, None].float()
        x = one_hot_digits(token_ids).flatten(2).transpose(1, 2) * is_token
        for layer, norm in zip(self.layers, self.norms, strict=True):
            made = functional.gelu(norm(layer(x).transpose(1, 2)).transpose(1, 2)) * is_token
            x = self.dropout(made + x if x.shape == made.shape else made)
        logits = self.head(x.transpose(1, 2))
        return functional.log_softmax(logits.reshape(len(logits), -1, len(PHONES)).float(), -1)


@dataclass(frozen=True)
class Sounds:
    """The sounds that answers should have, in order, without pauses."""

    phones: Tensor
    """[sum of counts] int64."""
    counts: Tensor
    """[B] int64."""

    @classmethod
    def of(cls, rows: Sequence[npt.NDArray[np.uint8]], device: torch.device) -> Sounds:
        """Put rows of `sounds` together."""
        joined = torch.from_numpy(np.concatenate(rows).astype(np.int64))
        return cls(joined.to(device), torch.tensor([len(row) for row in rows], device=device))


def sounds(phones: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return what phones at every 20 ms say: each run once, no pause."""
    is_first = np.diff(phones, prepend=_PAUSE) != 0
    return np.asarray(phones[is_first & (phones != _PAUSE)], np.uint8)


def misread(log_phones: Tensor, sizes: Tensor, wanted: Sounds) -> Tensor:
    """Return how unlikely the wanted sounds are in what the reader heard, [B] nats.

    Args:
        log_phones: [B, 2 T, phones] of `TokenReader`.
        sizes: [B] tokens of each row.
        wanted: of the rows.
    """
    frames = sizes * FRAMES_PER_TOKEN
    return functional.ctc_loss(
        log_phones.transpose(0, 1), wanted.phones, frames, wanted.counts, _PAUSE, "none", zero_infinity=True
    )


def misread_at(log_phones: Tensor, sizes: Tensor, wanted: Sounds) -> tuple[Tensor, Tensor]:
    """Return `misread`, and where: [B, T] nats by which what a token sounds like is not what it has to say.

    What has to be said at a frame is its phones' occupancy over all ways through the sounds; the loss's gradient in the
    logits is what was heard less that.
    """
    heard = log_phones.detach().requires_grad_()
    with torch.enable_grad():
        nats = misread(heard, sizes, wanted)
        (slope,) = torch.autograd.grad(nats.sum(), heard)
    said = (heard.detach().exp() - slope).clamp(min=0.0)
    frames = (torch.xlogy(said, said) - said * heard.detach()).sum(-1)
    return nats.detach(), frames.clamp(0.0, _MOST_NATS).reshape(len(frames), -1, FRAMES_PER_TOKEN).sum(-1)


class ReaderStage(OneModel[TokenReader]):
    """Trains the reader. Implements `Trainee`."""

    name = "reader"

    def __init__(self, utterances: Sequence[TokenUtterance], device: torch.device, batch: int, seed: int) -> None:
        """Keep the utterances whose phones are known.

        Raises:
            CorpusError: there are too few.
        """
        known = [(u.token_ids.astype(np.int64), sounds(u.phones)) for u in utterances if u.phones is not None]
        fitting = [pair for pair in known if 0 < len(pair[1]) <= len(pair[0])]
        self._training, self._validation = parted(fitting, "with phones")
        self._device, self._batch = device, batch
        self._draw = np.random.default_rng(seed)
        super().__init__(TokenReader().to(device), RATE)

    def step(self, progress: float) -> Mapping[str, Tensor]:
        """Train on one batch."""
        chosen = self._draw.integers(0, len(self._training), self._batch)
        self._updater.prepare(progress)
        return self._updated(self._losses(self._model.train(), [self._training[index] for index in chosen]))

    @torch.no_grad()
    def validate(self) -> Mapping[str, float]:
        """Measure the nats a sound."""
        model, size = self._average.eval(), self._batch
        starts = range(0, len(self._validation), size)[:_VALIDATION_BATCHES]
        return mean_of(self._losses(model, self._validation[start : start + size]) for start in starts)

    def _losses(
        self, model: TokenReader, pairs: Sequence[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]]
    ) -> dict[str, Tensor]:
        rows = nn.utils.rnn.pad_sequence([torch.from_numpy(ids) for ids, _ in pairs], batch_first=True)
        sizes = torch.tensor([len(ids) for ids, _ in pairs], device=self._device)
        wanted = Sounds.of([each for _, each in pairs], self._device)
        with autocast(self._device):
            log_phones = model(rows.to(self._device), sizes)
        return {"loss": misread(log_phones, sizes, wanted).sum() / wanted.counts.sum()}
