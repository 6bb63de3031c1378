"""The aligner and its training stage: phones of speech tokens and of letters. `llm_service.aligner` runs it.

    tokens ─► two convolutions ─► phones of each 20 ms      taught by the phones that the engine said
    letters ─► one convolution ─► phones, durations          taught by the likeliest ways through them all

Nobody says which letter a phone belongs to. The letters of a text are the states of a hidden Markov model: each lasts a
frame or longer, or is skipped, and says phones. Its likelihood is the sum over all paths through the text, by the
forward algorithm (Rabiner 1989, A Tutorial on Hidden Markov Models), and training raises it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from demo_voice.unpack import FloatArray
from lab.train.data import CorpusError, parted
from lab.train.sizes import AlignerSizes
from lab.train.teachers.flite import PHONES
from lab.train.trainer import OneModel, mean_of
from llm_service.aligner import (
    DIGITS,
    FRAMES_PER_TOKEN,
    LEVELS,
    PAUSE_PHONE,
    PAUSES,
    SILENT_LOG,
    STATE_COUNT,
    UNKNOWN,
    spell,
)

KERNEL, LETTER_KERNEL = 5, 7
LONGEST_JUMP = 4
"""Letters from one frame to the next; those between are silent."""
LONGEST_FRAMES = 300
"""6 s: the forward algorithm goes frame by frame, and long texts teach no more than short ones."""
_SHORTEST_SHARE = 0.05
"""Of the utterances, by length, with which training begins: there are fewer wrong ways through short texts."""
_IMPOSSIBLE = -1e4
_IGNORED = -100
_RATE = 4e-3


def one_hot_digits(token_ids: Tensor) -> Tensor:
    """Return the digits of tokens [...] as [..., 8, 3] float32."""
    digits = token_ids[..., None] // LEVELS ** torch.arange(DIGITS, device=token_ids.device) % LEVELS
    return functional.one_hot(digits, LEVELS).float()


class TokenNet(nn.Module):
    """Tells which phones a speech token's two frames may be."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(LEVELS * DIGITS, channels, KERNEL, padding=KERNEL // 2)
        self.second = nn.Conv1d(channels, channels, KERNEL, padding=KERNEL // 2)
        self.head = nn.Linear(channels, FRAMES_PER_TOKEN * len(PHONES))

    def forward(self, token_ids: Tensor, is_token: Tensor) -> Tensor:
        """Map [B, T] tokens to [B, 2 T, phones] logits; places that hold none count as nothing."""
        return self.read(one_hot_digits(token_ids), is_token)

    def read(self, digits: Tensor, is_token: Tensor) -> Tensor:
        """Do the same with the tokens' digits, one-hot [B, T, 8, 3]."""
        mask = is_token[:, None].float()
        x = digits.flatten(2).transpose(1, 2) * mask
        for layer in (self.first, self.second):
            x = functional.relu(layer(x)) * mask
        return torch.as_tensor(self.head(x.transpose(1, 2)).reshape(len(digits), -1, len(PHONES)))


class TextNet(nn.Module):
    """Tells which phones a letter stands for, how long it lasts and how likely it is not spoken."""

    def __init__(self, embedding: int, channels: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(STATE_COUNT, embedding)
        self.convolution = nn.Conv1d(embedding, channels, LETTER_KERNEL, padding=LETTER_KERNEL // 2)
        self.head = nn.Linear(channels, len(PHONES) + 2)

    def forward(self, states: Tensor, is_state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map [B, S] states to [B, S, phones] logarithms, and [B, S] logits of lasting and of being skipped."""
        embedded = (self.embedding(states) * is_state[..., None].float()).transpose(1, 2)
        out = self.head(functional.relu(self.convolution(embedded)).transpose(1, 2))
        is_pause_phone = torch.arange(len(PHONES), device=states.device) == PAUSE_PHONE
        never = (states < len(PAUSES))[..., None] != is_pause_phone
        phones = functional.log_softmax(out[..., :-2].masked_fill(never, SILENT_LOG), -1)
        return phones, out[..., -2], out[..., -1]


class AlignerNet(nn.Module):
    """Both networks, which are trained side by side and share nothing."""

    def __init__(self, sizes: AlignerSizes) -> None:
        super().__init__()
        self.tokens = TokenNet(sizes.token_channels)
        self.text = TextNet(sizes.letter_embedding, sizes.letter_channels)
        self.register_buffer("log_prior", torch.zeros(len(PHONES)))


def log_likelihood(spoken: Tensor, stay: Tensor, skip: Tensor, frames: Tensor, states: Tensor) -> Tensor:
    """Return the logarithm of the sum over all paths through the states, [B].

    Args:
        spoken: [B, T, S], logarithms of the frames' phones in each state.
        stay: [B, S], logits of lasting one more frame.
        skip: [B, S], logits of not being entered.
        frames: [B], of each utterance, at most T.
        states: [B], of each text, 2 to S.
    """
    batch, longest, width = spoken.shape
    leave, stay, omit, enter = (functional.logsigmoid(x) for x in (-stay, stay, skip, -skip))
    omitted = functional.pad(omit.cumsum(1), (1, 0))
    jumps = [
        (_shifted(leave, by) + omitted[:, :-1] - _shifted(omitted[:, 1:], by) + enter).masked_fill(
            torch.arange(width, device=spoken.device) < by, _IMPOSSIBLE
        )
        for by in range(1, LONGEST_JUMP + 1)
    ]
    begin = torch.full((batch, width - 2), _IMPOSSIBLE, device=spoken.device)
    paths = torch.cat([enter[:, :1], omit[:, :1] + enter[:, 1:2], begin], 1) + spoken[:, 0]
    found = [paths]
    for frame in range(1, longest):
        ways = [paths + stay, *(_shifted(paths, by) + jump for by, jump in enumerate(jumps, 1))]
        paths = torch.logsumexp(torch.stack(ways), 0) + spoken[:, frame]
        found.append(paths)
    rows = torch.arange(batch, device=spoken.device)
    ended = torch.stack(found, 1)[rows, frames - 1] + leave
    before_last = ended[rows, states - 2] + omit[rows, states - 1]
    return torch.logaddexp(ended[rows, states - 1], before_last)


def _shifted(values: Tensor, by: int) -> Tensor:
    return functional.pad(values, (by, 0), value=_IMPOSSIBLE)[:, : values.shape[1]]


@dataclass(frozen=True)
class PhoneUtterance:
    """One utterance for the aligner."""

    states: npt.NDArray[np.int64]
    """[S], of its text."""
    token_ids: npt.NDArray[np.int64]
    """[T]"""
    phones: npt.NDArray[np.int64]
    """[2 T]"""


def phone_utterances(paths: Iterable[Path]) -> list[PhoneUtterance]:
    """Read token shards.

    Raises:
        CorpusError: one was made without phones.
    """
    found = []
    for path in paths:
        with np.load(path) as shard:
            if "phones" not in shard:
                raise CorpusError(f"{path} has no phones; remove the folder, and run the stage again")
            ends = np.cumsum(shard["tokens"])[:-1]
            pieces = zip(
                json.loads(str(shard["texts"])),
                np.split(shard["token_ids"].astype(np.int64), ends),
                np.split(shard["phones"].astype(np.int64), ends * FRAMES_PER_TOKEN),
                strict=True,
            )
            found += [PhoneUtterance(spell(text).states, ids, phones) for text, ids, phones in pieces]
    return found


class AlignerStage(OneModel[AlignerNet]):
    """Implements `Trainee`."""

    name = "aligner"

    def __init__(
        self, sizes: AlignerSizes, utterances: Sequence[PhoneUtterance], device: torch.device, batch: int, seed: int
    ) -> None:
        """Keep the utterances, the shortest first.

        Raises:
            CorpusError: there is nothing to train on.
        """
        # The gateway writes numbers out before they are spoken.
        fitting = [u for u in utterances if len(u.phones) <= LONGEST_FRAMES and UNKNOWN not in u.states]
        training, self._validation = parted(fitting, "for the aligner")
        self._training = sorted(training, key=lambda each: len(each.phones))
        self._device, self._size = device, batch
        self._draw = np.random.default_rng(seed)
        super().__init__(AlignerNet(sizes).to(device), _RATE)
        counts = np.bincount(np.concatenate([each.phones for each in training]), minlength=len(PHONES)) + 1.0
        log_prior = torch.from_numpy(np.log(counts / counts.sum()).astype(np.float32))
        for net in (self._model, self._average):
            net.get_buffer("log_prior").copy_(log_prior)

    def step(self, progress: float) -> Mapping[str, Tensor]:
        """Train both networks on a batch."""
        reach = min(1.0, max(_SHORTEST_SHARE, 3 * progress))
        known = max(int(reach * len(self._training)), min(self._size, len(self._training)))
        chosen = [self._training[index] for index in self._draw.integers(0, known, self._size)]
        self._updater.prepare(progress)
        return self._updated(self._losses(self._model, chosen))

    @torch.no_grad()
    def validate(self) -> Mapping[str, float]:
        """Measure both likelihoods and the share of phones told right."""
        parts = [self._validation[at : at + self._size] for at in range(0, len(self._validation), self._size)]
        return mean_of(self._losses(self._average.eval(), part) for part in parts)

    def _losses(self, model: AlignerNet, utterances: Sequence[PhoneUtterance]) -> dict[str, Tensor]:
        token_ids, is_token = self._padded([each.token_ids for each in utterances])
        states, is_state = self._padded([each.states for each in utterances])
        phones, is_frame = self._padded([each.phones for each in utterances])
        heard = model.tokens(token_ids, is_token)
        targets = phones.masked_fill(~is_frame, _IGNORED)
        phone_loss = functional.cross_entropy(heard.flatten(0, 1), targets.flatten(), ignore_index=_IGNORED)
        right = (heard.argmax(-1) == phones)[is_frame].float().mean()
        letters, stay, skip = model.text(states, is_state)
        spoken = letters.gather(2, phones[:, None].expand(-1, states.shape[1], -1)).transpose(1, 2)
        likelihood = log_likelihood(spoken, stay, skip, is_frame.sum(1), is_state.sum(1))
        letter_loss = -likelihood.sum() / is_frame.sum()
        return {"loss": phone_loss + letter_loss, "phones": phone_loss, "letters": letter_loss, "right": right}

    def _padded(self, rows: Sequence[npt.NDArray[np.int64]]) -> tuple[Tensor, Tensor]:
        """Return rows [B, N] with zeros behind them, and where they hold something."""
        lengths = torch.tensor([len(row) for row in rows])
        padded = nn.utils.rnn.pad_sequence([torch.from_numpy(row) for row in rows], batch_first=True)
        return padded.to(self._device), (torch.arange(padded.shape[1]) < lengths[:, None]).to(self._device)


def aligner_arrays(net: AlignerNet) -> dict[str, FloatArray]:
    """Return the weights under the names of the file."""
    return {name: value.detach().float().cpu().numpy() for name, value in net.state_dict().items()}
