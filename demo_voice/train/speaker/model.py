"""The speaker encoder: convolutions over time, mean and spread over the utterance, one linear layer.

It has CAM++'s interface, not its architecture. Source of the loss: additive angular margin (Deng et al., arXiv
1801.07698).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from demo_voice.train.convolution import ConvUnit, ResidualBlock
from demo_voice.train.sizes import SpeakerSizes
from token2wav_service.features.mel import FBANK_MEL_BINS
from token2wav_service.features.speaker_encoder import EMBEDDING_SIZE

MARGIN = 0.2
"""Radians."""
SCALE = 30.0
SPREAD_FLOOR = 1e-4


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
