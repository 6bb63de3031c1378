"""Training stage of the speech tokenizer: phones, voicing, pitch and mel out of the rounded codes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from demo_voice.train.data import SpeechStreams, Windows
from demo_voice.train.precision import autocast
from demo_voice.train.sizes import TokenizerSizes
from demo_voice.train.tokenizer.model import CodeDecoder, Heard, SpeechTokenizerNet, rounded, token_ids
from demo_voice.train.trainer import OneModel, mean_of
from demo_voice.train.voices import SPEAKERS

FEATURES = ("log_mel", "mel", "phones", "pitch")
WINDOW_TOKENS = 75
"""3 s."""
RATE = 1e-3
VOICED_WEIGHT, PITCH_WEIGHT, MEL_WEIGHT = 0.3, 0.3, 0.5
MEL_MEAN, MEL_SCALE = -6.0, 3.0
"""About the mean and the spread of the flow's log-mel of speech."""
_GAIN_SPREAD = 0.15
"""Of the log-mel, per window: 0.15 is 12 dB of power. Loudness must not change what was said."""
_NOISE_SPREAD = 0.05
_VALIDATION_BATCHES = 8


class TokenizerStage(OneModel[nn.ModuleDict]):
    """Net and heads, trained together; only the net is kept for use."""

    name = "tokenizer"

    def __init__(self, sizes: TokenizerSizes, streams: SpeechStreams, batch: int) -> None:
        """Build on the streams' device."""
        self._streams, self._batch = streams, batch
        model = {"net": SpeechTokenizerNet(sizes), "decoder": CodeDecoder(sizes, len(SPEAKERS))}
        super().__init__(nn.ModuleDict(model).to(streams.device), RATE)

    def step(self, progress: float) -> Mapping[str, Tensor]:
        """Train on one batch of windows."""
        self._model.train()
        losses = self._losses(self._model, self._draw(False), is_augmented=True)
        return self._updated(losses, progress)

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

    def _draw(self, is_validation: bool) -> Windows:
        return self._streams.draw(self._batch, WINDOW_TOKENS, is_validation)

    def _log_mel(self, windows: Windows) -> Tensor:
        return self._streams.window("log_mel", windows.starts, WINDOW_TOKENS).float().transpose(1, 2)

    def _losses(self, model: nn.Module, windows: Windows, is_augmented: bool) -> dict[str, Tensor]:
        log_mel = self._log_mel(windows)
        if is_augmented:
            gain = _GAIN_SPREAD * torch.randn_like(log_mel[:, :1, :1])
            log_mel = log_mel + gain + _NOISE_SPREAD * torch.randn_like(log_mel)
        with autocast(log_mel.device):
            codes = rounded(model.get_submodule("net")(log_mel))
            heard = model.get_submodule("decoder")(codes, windows.speakers.to(log_mel.device))
        return self._compare(heard, windows.starts)

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
        loss = phone_loss + VOICED_WEIGHT * voiced_loss + PITCH_WEIGHT * pitch_loss + MEL_WEIGHT * mel_loss
        right = (heard.phones.argmax(1) == phones).float().mean()
        return {
            "loss": loss,
            "phones": phone_loss,
            "voiced": voiced_loss,
            "pitch": pitch_loss,
            "mel": mel_loss,
            "right": right,
        }
