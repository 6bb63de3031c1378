"""The speech tokenizer: convolutions to 8 values of 3 levels each, and the heads that teach them what to carry.

Source: finite scalar quantisation (Mentzer et al., arXiv 2309.15505), with the code layout of the official tokenizer:
digit i of a token in base 3 is value i plus one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from demo_voice.train.convolution import ConvUnit, ResidualBlock
from demo_voice.train.phones import PHONES
from demo_voice.train.sizes import TokenizerSizes
from token2wav_service.features.mel import FLOW_MEL_BINS, S3_MEL_BINS

CODE_SIZE = 8
LEVELS = 3
INSIDE = 0.999
"""Keeps tanh away from the levels' outer edge."""


class SpeechTokenizerNet(nn.Module):
    """Log-mel at 100 Hz to codes at 25 Hz. What is exported."""

    def __init__(self, sizes: TokenizerSizes) -> None:
        super().__init__()
        channels = sizes.channels
        self.stem = ConvUnit(S3_MEL_BINS, channels, 5, stride=2)
        self.blocks_at_50_hz = nn.ModuleList(ResidualBlock(channels) for _ in range(sizes.blocks_at_50_hz))
        self.down = ConvUnit(channels, channels, 5, stride=2)
        self.blocks_at_25_hz = nn.ModuleList(ResidualBlock(channels) for _ in range(sizes.blocks_at_25_hz))
        self.project = ConvUnit(channels, CODE_SIZE, 1)

    def forward(self, log_mel: Tensor) -> Tensor:
        """Map [B, 128, T] to [B, 8, ceil(T / 4)] in +-0.999, before rounding."""
        x = torch.relu(self.stem(log_mel))
        for block in self.blocks_at_50_hz:
            x = block(x)
        x = torch.relu(self.down(x))
        for block in self.blocks_at_25_hz:
            x = block(x)
        return torch.tanh(self.project(x).float()) * INSIDE


def rounded(codes: Tensor) -> Tensor:
    """Round to -1, 0, 1; the gradient passes as if nothing had happened."""
    return codes + (codes.round() - codes).detach()


def token_ids(codes: Tensor) -> Tensor:
    """Map codes [B, 8, N] to [B, N] int64 ids 0..6560."""
    places = LEVELS ** torch.arange(CODE_SIZE, device=codes.device)
    return ((codes.round().long() + 1) * places[:, None]).sum(1)


def code_digits(device: torch.device) -> Tensor:
    """Return [6561, 8] int64: the digits 0..2 of every token."""
    ids = torch.arange(LEVELS**CODE_SIZE, device=device)
    return ids[:, None] // (LEVELS ** torch.arange(CODE_SIZE, device=device)) % LEVELS


@dataclass(frozen=True)
class Heard:
    """What the heads make of the codes, at 50 Hz."""

    phones: Tensor
    """[B, phones, 2N] logits."""
    voiced: Tensor
    """[B, 2N] logits."""
    pitch: Tensor
    """[B, 2N] log pitch relative to the window's mean."""
    mel: Tensor
    """[B, 80, 2N] the flow's log-mel, standardised; knows the speaker."""


class CodeDecoder(nn.Module):
    """The heads: phones and pitch without knowing the speaker, mel with. Training only."""

    def __init__(self, sizes: TokenizerSizes, speakers: int) -> None:
        super().__init__()
        channels = sizes.decoder_channels
        self.enter = ConvUnit(CODE_SIZE, channels, 3)
        self.blocks = nn.ModuleList(ResidualBlock(channels) for _ in range(2))
        self.upsample = nn.Conv1d(channels, 2 * channels, 1)
        self.at_50_hz = ResidualBlock(channels)
        self.content = nn.Conv1d(channels, len(PHONES) + 2, 1)
        self.speaker = nn.Embedding(speakers, channels)
        self.timbre = ResidualBlock(channels)
        self.mel = nn.Conv1d(channels, FLOW_MEL_BINS, 1)

    def forward(self, codes: Tensor, speaker: Tensor) -> Heard:
        """Read codes [B, 8, N] of speakers [B]."""
        x = torch.relu(self.enter(codes))
        for block in self.blocks:
            x = block(x)
        batch, _, length = x.shape
        x = self.upsample(x).view(batch, -1, 2, length).transpose(2, 3).flatten(2)
        x = self.at_50_hz(torch.relu(x))
        content = self.content(x).float()
        mel = self.mel(self.timbre(torch.relu(x + self.speaker(speaker)[:, :, None]))).float()
        return Heard(content[:, :-2], content[:, -2], content[:, -1], mel)
