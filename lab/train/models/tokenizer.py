"""The speech tokenizer and its training stage: convolutions to 8 values of 3 levels each, and heads that teach them.

The heads ask for phones, voicing, pitch and mel of the rounded codes. `CodeTable` gives each of the 6561 tokens a row
computed from its 8 digits by a small network: tokens that differ in one digit sound alike, and most are rare, so rows
share what is learnt. Once trained, the table is written out as an ordinary embedding.

Source: finite scalar quantisation (Mentzer et al., arXiv 2309.15505), with the code layout of the official tokenizer:
digit i of a token in base 3 is value i plus one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from lab.train.data import SpeechStreams, Windows
from lab.train.models.speaker import ConvUnit, ResidualBlock
from lab.train.replay import Inputs
from lab.train.sizes import TokenizerSizes
from lab.train.teachers.flite import PHONES
from lab.train.trainer import OneModel, autocast, mean_of
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


def soft_digits(codes: Tensor) -> Tensor:
    """Map rounded codes [B, 8, N] to one-hot digits [B, N, 8, 3], by polynomials through which a gradient passes."""
    low, high = codes * (codes - 1) / 2, codes * (codes + 1) / 2
    return torch.stack([low, 1 - codes.square(), high], -1).transpose(1, 2)


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


def per_sound(logits: Tensor, phones: Tensor) -> tuple[Tensor, Tensor]:
    """Judge each sound once, however long it is.

    By frames, a stop of 20 ms counts a tenth of a long vowel. Of 16 words that a recogniser misheard after the flow but
    not in the teacher's audio, 10 had a sound that a network could not read from tokens taught so; of any six sounds in
    a row, 28 % have one.

    Args:
        logits: [B, phones, T] of every frame.
        phones: [B, T] int64; frames of one phone in a row are one sound.

    Returns:
        The mean cross-entropy of the sounds' mean logits, and the share of sounds told right. No value's shape depends
        on the number of sounds.
    """
    begins = functional.pad(phones[:, 1:] != phones[:, :-1], (1, 0)).long()
    index = begins.cumsum(1)
    frames = (index[:, :, None] == torch.arange(phones.shape[1], device=phones.device)).float()
    counts = frames.sum(1)
    sums = logits.float() @ frames
    said = (frames * phones[:, :, None]).amax(1).long()
    losses = functional.cross_entropy(sums / counts.clamp(min=1)[:, None], said, reduction="none")
    is_sound = (counts > 0).float()
    is_right = (sums.argmax(1) == said).float()
    return (losses * is_sound).sum() / is_sound.sum(), (is_right * is_sound).sum() / is_sound.sum()


def haze(mel: Tensor, gain_spread: float, noise_spread: float) -> Tensor:
    """Draw what must not change what a log-mel [B, C, T] says: another level of each window, and noise."""
    return gain_spread * torch.randn_like(mel[:, :1, :1]) + noise_spread * torch.randn_like(mel)


class CodeTable(nn.Module):
    """Digits, one-hot, through one hidden layer."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        one_hot = functional.one_hot(code_digits(torch.device("cpu")), LEVELS).flatten(1).float()
        self.register_buffer("digits", one_hot, persistent=False)
        self.digits: Tensor
        self.inner = nn.Linear(CODE_SIZE * LEVELS, hidden)
        self.outer = nn.Linear(hidden, width)

    def forward(self) -> Tensor:
        """Return [6561, width]."""
        return torch.as_tensor(self.outer(functional.gelu(self.inner(self.digits))))


FEATURES = ("log_mel", "mel", "phones", "pitch")
WINDOW_TOKENS = 75
"""Tokens of a window, 3 s."""
RATE = 1e-3
VOICED_WEIGHT, PITCH_WEIGHT, MEL_WEIGHT, SOUND_WEIGHT = 0.3, 0.3, 1.0, 1.0
ANCHOR_WEIGHT = 1.0
Anchor = Callable[[Tensor, Tensor], Tensor]
"""Maps one-hot digits [B, N, 8, 3] and a mask [B, N] to phones [B, 2 N, phones], as another voice's aligner does."""
MEL_MEAN, MEL_SCALE = -6.0, 3.0
"""About the mean and the spread of the flow's log-mel of speech."""
_GAIN_SPREAD = 0.15
"""Spread of the log-mel for each window: 0.15 is 12 dB of power. Loudness must not change what was said."""
_NOISE_SPREAD = 0.05
_VALIDATION_BATCHES = 8


class TokenizerStage(OneModel[nn.ModuleDict]):
    """Net and heads, trained together; only the net is kept for use."""

    name = "tokenizer"

    def __init__(
        self, sizes: TokenizerSizes, speakers: int, streams: SpeechStreams, batch: int, anchor: Anchor | None = None
    ) -> None:
        """Build on the streams' device; the tokens shall mean the phones that the anchor hears in them."""
        self._streams, self._batch, self._anchor = streams, batch, anchor
        model = {"net": SpeechTokenizerNet(sizes), "decoder": CodeDecoder(sizes, speakers)}
        super().__init__(nn.ModuleDict(model).to(streams.device), RATE)

    def step(self, progress: float) -> Mapping[str, Tensor]:
        """Train on one batch of windows."""
        self._model.train()
        return self._replayed(self.name, self._draw(False).inputs(), progress, self._training_losses)

    @torch.no_grad()
    def validate(self) -> Mapping[str, float]:
        """Measure the averaged net: losses, share of right phones, how many tokens are in use, and their entropy."""
        model = self._average.eval()
        net = model.get_submodule("net")
        drawn = [self._draw(True) for _ in range(_VALIDATION_BATCHES)]
        figures = mean_of(self._losses(model, windows, is_augmented=False) for windows in drawn)
        ids = torch.cat([token_ids(net(self._log_mel(windows))).flatten() for windows in drawn])
        counts = torch.bincount(ids).float()
        shares = counts[counts > 0] / counts.sum()
        return {
            **figures,
            "tokens_in_use": float(len(shares)),
            "entropy_bits": float(-(shares * shares.log2()).sum()),
            "repeated_share": float((ids[1:] == ids[:-1]).float().mean()),
        }

    def _training_losses(self, inputs: Inputs) -> dict[str, Tensor]:
        return self._losses(self._model, Windows(**inputs), is_augmented=True)

    def _draw(self, is_validation: bool) -> Windows:
        return self._streams.draw(self._batch, WINDOW_TOKENS, is_validation)

    def _log_mel(self, windows: Windows) -> Tensor:
        return self._streams.window("log_mel", windows.starts, WINDOW_TOKENS).float().transpose(1, 2)

    def _losses(self, model: nn.Module, windows: Windows, is_augmented: bool) -> dict[str, Tensor]:
        log_mel = self._log_mel(windows)
        if is_augmented:
            log_mel = log_mel + haze(log_mel, _GAIN_SPREAD, _NOISE_SPREAD)
        with autocast(log_mel.device):
            codes = rounded(model.get_submodule("net")(log_mel))
            heard = model.get_submodule("decoder")(codes, windows.speakers.to(log_mel.device))
        losses = self._compare(heard, windows.starts)
        return losses if self._anchor is None else self._anchored(losses, self._anchor, codes, windows.starts)

    def _anchored(self, losses: dict[str, Tensor], anchor: Anchor, codes: Tensor, starts: Tensor) -> dict[str, Tensor]:
        digits = soft_digits(codes.float())
        logits = anchor(digits, torch.ones(digits.shape[:2], device=digits.device))
        phones = self._streams.window("phones", starts, WINDOW_TOKENS)
        loss = functional.cross_entropy(logits.transpose(1, 2), phones.long())
        right = (logits.argmax(2) == phones).float().mean()
        return {**losses, "loss": losses["loss"] + ANCHOR_WEIGHT * loss, "anchor": loss, "anchor_right": right}

    def _compare(self, heard: Heard, start: Tensor) -> dict[str, Tensor]:
        phones, pitch, mel = (self._streams.window(name, start, WINDOW_TOKENS) for name in ("phones", "pitch", "mel"))
        pitch, voiced = pitch.float(), (pitch > 0).float()
        log_pitch = torch.log(pitch.clamp(min=1.0))
        relative = log_pitch - (log_pitch * voiced).sum(1, keepdim=True) / voiced.sum(1, keepdim=True).clamp(min=1)
        phone_loss = functional.cross_entropy(heard.phones, phones.long())
        voiced_loss = functional.binary_cross_entropy_with_logits(heard.voiced, voiced)
        pitch_loss = ((heard.pitch - relative).abs() * voiced).sum() / voiced.sum().clamp(min=1)
        target = (mel.float().transpose(1, 2) - MEL_MEAN) / MEL_SCALE
        mel_loss = functional.l1_loss(heard.mel, target)
        sound_loss, sounds_right = per_sound(heard.phones, phones.long())
        loss = phone_loss + VOICED_WEIGHT * voiced_loss + PITCH_WEIGHT * pitch_loss + MEL_WEIGHT * mel_loss
        loss = loss + SOUND_WEIGHT * sound_loss
        right = (heard.phones.argmax(1) == phones).float().mean()
        return {
            "loss": loss,
            "phones": phone_loss,
            "voiced": voiced_loss,
            "pitch": pitch_loss,
            "mel": mel_loss,
            "sounds": sound_loss,
            "right": right,
            "sounds_right": sounds_right,
        }
