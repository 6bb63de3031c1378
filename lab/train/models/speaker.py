"""The speaker encoder and its training stage: which of the corpus's speakers a window is from.

Convolutions over time, mean and spread over the utterance, one linear layer. It has CAM++'s interface, not its
architecture. Source of the loss: additive angular margin (Deng et al., arXiv 1801.07698).

Its convolutions with batch norm, folded into one when exported, are the speech tokenizer's too.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from lab.train.data import SpeechStreams, Windows
from lab.train.replay import Inputs
from lab.train.sizes import SpeakerSizes
from lab.train.trainer import OneModel, autocast, mean_of
from token2wav_service.features.mel import FBANK_MEL_BINS
from token2wav_service.features.prompt_models import EMBEDDING_SIZE

MARGIN = 0.2
"""Margin of the angles in radians."""
SCALE = 30.0
SPREAD_FLOOR = 1e-4


class ConvUnit(nn.Module):
    """Same-padded convolution, then batch norm."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.stride, self.dilation, self.padding = stride, dilation, (kernel - 1) // 2 * dilation
        self.conv = nn.Conv1d(inputs, outputs, kernel, stride, self.padding, dilation, bias=False)
        self.norm = nn.BatchNorm1d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, inputs, T] to [B, outputs, ceil(T / stride)]."""
        return torch.as_tensor(self.norm(self.conv(x)))

    def folded(self) -> tuple[Tensor, Tensor]:
        """Return weight and bias of the one convolution that equals the unit in eval mode."""
        norm = self.norm
        assert norm.running_var is not None and norm.running_mean is not None
        gain = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        return self.conv.weight * gain[:, None, None], norm.bias - norm.running_mean * gain


class ResidualBlock(nn.Module):
    """x + 1x1(relu(k5(x))), then relu."""

    KERNEL = 5

    def __init__(self, channels: int, dilation: int = 1) -> None:
        super().__init__()
        self.wide = ConvUnit(channels, channels, self.KERNEL, dilation=dilation)
        self.point = ConvUnit(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, C, T] to the same shape."""
        return torch.relu(x + self.point(torch.relu(self.wide(x))))


class SpeakerNet(nn.Module):
    """Mean-subtracted energies to an embedding. What is exported."""

    def __init__(self, sizes: SpeakerSizes) -> None:
        super().__init__()
        self.stem = ConvUnit(FBANK_MEL_BINS, sizes.channels, 5, stride=2)
        self.blocks = nn.ModuleList(ResidualBlock(sizes.channels, dilation) for dilation in range(1, sizes.blocks + 1))
        self.embed = nn.Linear(2 * sizes.channels, EMBEDDING_SIZE)

    def forward(self, energies: Tensor) -> Tensor:
        """Map [B, T, 80] to [B, 192]."""
        x = torch.relu(self.stem(energies.transpose(1, 2)))
        for block in self.blocks:
            x = block(x)
        x = x.float()
        mean = x.mean(2)
        spread = torch.sqrt((x * x).mean(2) - mean * mean + SPREAD_FLOOR)
        return torch.as_tensor(self.embed(torch.cat([mean, spread], 1)))


class MarginClassifier(nn.Module):
    """Tells the training speakers apart by angle. Training only."""

    def __init__(self, speakers: int) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.randn(speakers, EMBEDDING_SIZE))

    def forward(self, embedding: Tensor, speaker: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss, and the cosines [B, speakers] without margin."""
        cosine = functional.normalize(embedding) @ functional.normalize(self.centres).T
        angle = torch.acos(cosine.clamp(-1 + 1e-6, 1 - 1e-6))
        own = functional.one_hot(speaker, len(self.centres))
        return functional.cross_entropy(SCALE * torch.cos(angle + MARGIN * own), speaker), cosine


FEATURES = ("fbank",)
EXCERPT_TOKENS = (38, 52, 68, 84, 100)
"""Tokens of an excerpt, 1.5 to 4 s. Few sizes: each has a graph of its own."""
RATE = 1e-3
_NOISE_SPREAD = 0.3
_VALIDATION_BATCHES = 8


class SpeakerStage(OneModel[nn.ModuleDict]):
    """Encoder and classifier."""

    name = "speaker"

    def __init__(self, sizes: SpeakerSizes, speakers: int, streams: SpeechStreams, batch: int) -> None:
        """Build on the streams' device."""
        self._streams, self._batch = streams, batch
        self._draw = torch.Generator().manual_seed(streams.seed)
        model = {"net": SpeakerNet(sizes), "classifier": MarginClassifier(speakers)}
        super().__init__(nn.ModuleDict(model).to(streams.device), RATE)

    def step(self, progress: float) -> Mapping[str, Tensor]:
        """Train on one batch of windows of one length."""
        self._model.train()
        tokens = EXCERPT_TOKENS[int(torch.randint(len(EXCERPT_TOKENS), (), generator=self._draw))]
        windows = self._streams.draw(self._batch, tokens, is_even=True)
        return self._replayed(tokens, windows.inputs(), progress, partial(self._training_losses, tokens))

    @torch.no_grad()
    def validate(self) -> Mapping[str, float]:
        """Measure loss and the share of right speakers on unseen audio."""
        model = self._average.eval()
        tokens = EXCERPT_TOKENS[0]
        drawn = (
            self._streams.draw(self._batch, tokens, is_validation=True, is_even=True)
            for _ in range(_VALIDATION_BATCHES)
        )
        return mean_of(self._losses(model, windows, self._energies(windows, tokens)) for windows in drawn)

    def _training_losses(self, tokens: int, inputs: Inputs) -> dict[str, Tensor]:
        windows = Windows(**inputs)
        energies = self._energies(windows, tokens)
        return self._losses(self._model, windows, energies + _NOISE_SPREAD * torch.randn_like(energies))

    def _energies(self, windows: Windows, tokens: int) -> Tensor:
        energies = self._streams.window("fbank", windows.starts, tokens).float()
        return energies - energies.mean(1, keepdim=True)

    def _losses(self, model: nn.Module, windows: Windows, energies: Tensor) -> dict[str, Tensor]:
        own = windows.speakers.to(energies.device)
        with autocast(energies.device):
            embedding = model.get_submodule("net")(energies)
        loss, cosine = model.get_submodule("classifier")(embedding.float(), own)
        return {"loss": loss, "right": (cosine.argmax(1) == own).float().mean()}
