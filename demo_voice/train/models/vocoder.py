"""Training stage of the vocoder: mel, spectra and pitch first, then against the discriminators too."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from demo_voice.train.data import SpeechStreams, Windows
from demo_voice.train.models.vocoder_losses import (
    Discriminators,
    MelLoss,
    SpectralLoss,
    adversarial_loss,
    discriminator_loss,
    feature_loss,
)
from demo_voice.train.replay import Inputs, Replayer
from demo_voice.train.sizes import DiscriminatorSizes
from demo_voice.train.trainer import Updater, mean_of
from token2wav_service.config import SourcePhase
from token2wav_service.models.config import HiFTConfig
from token2wav_service.models.vocoder.hift import HiFT

FEATURES = ("audio", "mel", "pitch")
WINDOW_TOKENS = 16
"""Tokens of a window, 0.64 s."""
RATE = 5e-4
BETAS = (0.8, 0.99)
ADVERSARIAL_FROM = 0.2
"""Progress at which the discriminators join."""
OWN_PITCH_FROM = 0.5
"""Progress from which half of the batches use the predicted pitch, as at inference."""
MEL_WEIGHT, SPECTRAL_WEIGHT, PITCH_WEIGHT, FEATURE_WEIGHT, ADVERSARIAL_WEIGHT = 15.0, 2.0, 1.0, 0.5, 1.0
PITCH_SCALE = 100.0
"""Hz; where the predictor's answers start, too: from 0 the small steps of training would take long to get there."""
_PITCH_GAIN = 50.0
_PCM16_PEAK = 32767.0
_VALIDATION_BATCHES = 4


class VocoderStage:
    """Vocoder and discriminators."""

    name = "vocoder"

    def __init__(self, config: HiFTConfig, judges: DiscriminatorSizes, streams: SpeechStreams, batch: int) -> None:
        """Build on the streams' device."""
        self._streams, self._batch = streams, batch
        self._hift = HiFT(config).to(streams.device)
        _start_at_speech_pitch(self._hift)
        self._judges = Discriminators(judges).to(streams.device)
        self._mel_loss, self._spectral_loss = MelLoss().to(streams.device), SpectralLoss().to(streams.device)
        self._updater = Updater(self._hift, RATE, BETAS)
        self._judges_updater = Updater(self._judges, RATE, BETAS)
        self._draw = torch.Generator().manual_seed(streams.seed)
        self.replayer = Replayer(streams.device)

    def parts(self) -> Mapping[str, nn.Module]:
        """Vocoder and discriminators."""
        return {"hift": self._hift, "judges": self._judges}

    def averaged(self) -> Mapping[str, nn.Module]:
        """The vocoder's average; the discriminators as they are."""
        return {"hift": self._updater.average, "judges": self._judges}

    def step(self, progress: float) -> Mapping[str, Tensor]:
        """Train on one batch of windows; once the discriminators have joined, on one judgement of it for both sides."""
        windows = self._streams.draw(self._batch, WINDOW_TOKENS)
        uses_own = progress >= OWN_PITCH_FROM and bool(torch.rand((), generator=self._draw) < 0.5)
        is_judged = progress >= ADVERSARIAL_FROM
        for updater in (self._updater, self._judges_updater) if is_judged else (self._updater,):
            updater.prepare(progress)
        step = partial(self._updated, uses_own, is_judged)
        return self.replayer.run((uses_own, is_judged), {"starts": windows.starts}, step)

    def _updated(self, uses_own_pitch: bool, is_judged: bool, inputs: Inputs) -> dict[str, Tensor]:
        made, true, pitch_loss = self._vocoded(self._hift, inputs["starts"], uses_own_pitch)
        losses = {**self._distances(made, true), "pitch": pitch_loss}
        loss = MEL_WEIGHT * losses["mel"] + SPECTRAL_WEIGHT * losses["spectral"] + PITCH_WEIGHT * pitch_loss
        if not is_judged:
            return {**losses, "norm": self._updater.update(loss)}
        on_true, on_made = self._judges(true), self._judges(made)
        losses |= {
            "judges": discriminator_loss(on_true, on_made),
            "features": feature_loss(on_true, on_made),
            "fooled": adversarial_loss(on_made),
        }
        loss = loss + FEATURE_WEIGHT * losses["features"] + ADVERSARIAL_WEIGHT * losses["fooled"]
        norm = self._updater.update(loss, keeps_graph=True)
        self._judges_updater.update(losses["judges"])
        return {**losses, "norm": norm}

    @torch.no_grad()
    def validate(self) -> Mapping[str, float]:
        """Measure the average's distances and pitch on unseen audio, with its own pitch."""
        hift = self._updater.average
        drawn = [self._streams.draw(self._batch, WINDOW_TOKENS, is_validation=True) for _ in range(_VALIDATION_BATCHES)]
        return mean_of(self._figures(hift, windows) for windows in drawn)

    def _figures(self, hift: HiFT, windows: Windows) -> dict[str, Tensor]:
        made, true, pitch_loss = self._vocoded(hift, windows.starts, uses_own_pitch=True)
        return {**self._distances(made, true), "pitch_hz": PITCH_SCALE * pitch_loss}

    def _vocoded(self, hift: HiFT, starts: Tensor, uses_own_pitch: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return made and true samples [B, N], and the loss of the predicted pitch."""
        audio, mel, pitch = (self._streams.window(name, starts, WINDOW_TOKENS).float() for name in FEATURES)
        mel = mel.transpose(1, 2)
        predicted = hift.f0_predictor(mel)
        pitch_loss = functional.l1_loss(predicted / PITCH_SCALE, pitch / PITCH_SCALE)
        source = self._source(hift, predicted.detach() if uses_own_pitch else pitch)
        spectra = hift.spectra(mel, hift.stft(source[:, 0]))
        made = hift.samples(spectra, torch.ones_like(spectra[:1, :1]))
        return made, audio / _PCM16_PEAK, pitch_loss

    def _source(self, hift: HiFT, pitch: Tensor) -> Tensor:
        module = hift.m_source
        phase, _ = module.phase(pitch, SourcePhase.CONTINUOUS)
        # A window begins anywhere in an utterance, so at any phase.
        phase = phase + 2 * torch.pi * torch.rand_like(phase[:, :, :1])
        noise = torch.randn(*phase.transpose(1, 2).shape, device=phase.device)
        return torch.as_tensor(module(pitch, noise, phase))

    def _distances(self, made: Tensor, true: Tensor) -> dict[str, Tensor]:
        return {"mel": self._mel_loss(made, true), "spectral": self._spectral_loss(made, true)}


@torch.no_grad()
def _start_at_speech_pitch(hift: HiFT) -> None:
    classifier = hift.f0_predictor.classifier
    classifier.weight.mul_(_PITCH_GAIN)
    classifier.bias.fill_(PITCH_SCALE)
