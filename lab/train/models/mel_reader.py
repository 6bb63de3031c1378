"""A reader of phones that judges the flow's mel in training: what was said must still be read from what was made.

The reader learns from true mel, beside the flow. The flow's mel shall then be read as its phones are, and shall look to
the reader's layers as the true one does. Source: losses of a recogniser in training a synthesiser (DMDSpeech, Li et
al., arXiv 2410.11097) and of a network's layers (Johnson et al., arXiv 1603.08155).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from lab.train.models.speaker import ConvUnit, ResidualBlock
from lab.train.models.tokenizer import MEL_MEAN, MEL_SCALE, haze
from lab.train.teachers.flite import PHONES
from lab.train.trainer import Updater, autocast
from token2wav_service.features.mel import FLOW_MEL_BINS

CHANNELS = 192
DILATIONS = (1, 2, 3)
RATE = 1e-3
_GAIN_SPREAD, _NOISE_SPREAD = 0.3, 0.1
"""Of the log-mel: of a window's level, and of every value. Without them the flow could please one reader alone."""


class MelReader(nn.Module):
    """Tells the phones of a log-mel at 50 Hz."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvUnit(FLOW_MEL_BINS, CHANNELS, 5)
        self.blocks = nn.ModuleList(ResidualBlock(CHANNELS, dilation) for dilation in DILATIONS)
        self.head = nn.Conv1d(CHANNELS, len(PHONES), 1)

    def forward(self, mel: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return logits [B, phones, T] of mel [B, 80, T], and what the layers make of it, [B, C, T] each."""
        x = torch.relu(self.stem((mel - MEL_MEAN) / MEL_SCALE))
        layers = [x]
        for block in self.blocks:
            x = block(x)
            layers.append(x)
        return self.head(x).float(), layers


@dataclass(frozen=True)
class TrueSpeech:
    """What a batch of windows should sound like."""

    mel: Tensor
    """[B, 80, T]"""
    phones: Tensor
    """[B, T] int64."""
    first: int
    """Frame from which mel is made; before it is the prompt."""


class Judge:
    """The reader, its training and its judgement."""

    def __init__(self, device: torch.device) -> None:
        self._reader = MelReader().to(device)
        self._updater = Updater(self._reader, RATE)

    def prepare(self, progress: float) -> None:
        """See `Updater.prepare`."""
        self._updater.prepare(progress)

    def learn(self, speech: TrueSpeech) -> dict[str, Tensor]:
        """Train the reader on true mel; returns its loss, and the share of frames that it read right."""
        self._reader.train()
        with autocast(speech.mel.device):
            logits, _ = self._reader(speech.mel + haze(speech.mel, _GAIN_SPREAD, _NOISE_SPREAD))
        self._reader.eval()
        loss = functional.cross_entropy(logits, speech.phones)
        self._updater.update(loss)
        return {"reader": loss, "reader_right": (logits.argmax(1) == speech.phones).float().mean()}

    def losses(self, made: Tensor, speech: TrueSpeech, weights: Tensor) -> dict[str, Tensor]:
        """Compare mel made for the first rows of a batch with the true one.

        Args:
            made: [R, 80, T]; only frames from `speech.first` on are judged.
            speech: of at least R rows.
            weights: [R], of the rows.

        Returns:
            `phones`, the cross-entropy of the phones; `layers`, how far the reader's layers are from what they make of
            the true mel, as a share of that; `right`, the share of frames that are read right.
        """
        first, true = speech.first, speech.mel[: len(made)]
        hazy = haze(true, _GAIN_SPREAD, _NOISE_SPREAD)
        with autocast(made.device):
            with torch.no_grad():
                _, wanted = self._reader(true + hazy)
            logits, layers = self._reader(torch.cat([true[:, :, :first], made[:, :, first:]], 2) + hazy)
        phones, logits = speech.phones[: len(made), first:], logits[:, :, first:]
        wrong = functional.cross_entropy(logits, phones, reduction="none").mean(1)
        ways = [
            (got.float() - want.float())[:, :, first:].abs().mean((1, 2)) / want.float().abs().mean()
            for got, want in zip(layers, wanted, strict=True)
        ]
        return {
            "phones": (wrong * weights).mean(),
            "layers": (torch.stack(ways).mean(0) * weights).mean(),
            "right": (logits.argmax(1) == phones).float().mean(),
        }
