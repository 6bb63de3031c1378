"""Training stage of the vocoder: mel, spectra and pitch first, then against the discriminators too.

Half of the batches are excited with the very phase of the audio, where the corpus knows it, so that the waveform itself
is learnt by regression where it is voiced and low.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from lab.train.data import SpeechStreams, Windows
from lab.train.models.excitation import angles, known_cycles, make_loud, served_cycles, served_pitch
from lab.train.models.vocoder_losses import (
    Discriminators,
    MelLoss,
    PhaseLoss,
    SpectralLoss,
    adversarial_loss,
    discriminator_loss,
    feature_loss,
)
from lab.train.replay import Inputs, Replayer
from lab.train.sizes import DiscriminatorSizes
from lab.train.trainer import Updater, mean_of
from lab.train.utterance import PCM16_SCALE
from token2wav_service.models.config import HiFTConfig
from token2wav_service.models.vocoder.hift import HiFT

FEATURES = ("audio", "mel", "pitch", "phase")
WINDOW_TOKENS = 16
"""Tokens of a window, 0.64 s."""
RATE = 5e-4
BETAS = (0.8, 0.99)
JUDGED_SAMPLES = 7680
"""Samples of each window that the discriminators judge, 0.32 s from anywhere in it: they are seven eighths of a step's
arithmetic if they judge it whole, and look no further than that."""
ADVERSARIAL_FROM = 0.1
"""Progress at which the discriminators join."""
OWN_PITCH_FROM = 0.5
"""Progress from which half of the batches use the predicted pitch, as at inference."""
MEL_WEIGHT, SPECTRAL_WEIGHT, PHASE_WEIGHT, PITCH_WEIGHT = 45.0, 2.0, 4.0, 1.0
FEATURE_WEIGHT, ADVERSARIAL_WEIGHT = 0.5, 1.0
PITCH_SCALE = 100.0
"""Hz; where the predictor's answers start, too: from 0 the small steps of training would take long to get there."""
_PITCH_GAIN = 50.0
_VALIDATION_BATCHES = 4


class Excitation(Enum):
    """Where a batch's harmonics begin, together, and at which pitch they go on."""

    KNOWN = "known"
    """With the phase and pitch of the audio."""
    ANY = "any"
    """Anywhere, with the pitch of the audio."""
    OWN = "own"
    """Anywhere, with the predicted pitch: as in use."""


class VocoderStage:
    """Vocoder and discriminators."""

    name = "vocoder"

    def __init__(self, config: HiFTConfig, judges: DiscriminatorSizes, streams: SpeechStreams, batch: int) -> None:
        """Build on the streams' device."""
        self._streams, self._batch = streams, batch
        self._hift = HiFT(config).to(streams.device)
        _start_at_speech_pitch(self._hift)
        make_loud(self._hift.m_source)
        self._judges = Discriminators(judges).to(streams.device)
        self._mel_loss, self._spectral_loss = MelLoss().to(streams.device), SpectralLoss().to(streams.device)
        self._phase_loss = PhaseLoss().to(streams.device)
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
        excitation = self._drawn_excitation(progress)
        is_judged = progress >= ADVERSARIAL_FROM
        for updater in (self._updater, self._judges_updater) if is_judged else (self._updater,):
            updater.prepare(progress)
        step = partial(self._updated, excitation, is_judged)
        return self.replayer.run((excitation, is_judged), {"starts": windows.starts}, step)

    def _drawn_excitation(self, progress: float) -> Excitation:
        if torch.rand((), generator=self._draw) < 0.5:
            return Excitation.KNOWN
        return Excitation.OWN if progress >= OWN_PITCH_FROM else Excitation.ANY

    def _updated(self, excitation: Excitation, is_judged: bool, inputs: Inputs) -> dict[str, Tensor]:
        made, true, losses = self._vocoded(self._hift, inputs["starts"], excitation)
        loss = MEL_WEIGHT * losses["mel"] + SPECTRAL_WEIGHT * losses["spectral"] + PITCH_WEIGHT * losses["pitch"]
        if "phase" in losses:
            loss = loss + PHASE_WEIGHT * losses["phase"]
        if not is_judged:
            return {**losses, "norm": self._updater.update(loss)}
        judged = judged_places(made)
        on_true, on_made = (self._judges(samples.gather(1, judged)) for samples in (true, made))
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
        _, _, losses = self._vocoded(hift, windows.starts, Excitation.OWN)
        _, _, known = self._vocoded(hift, windows.starts, Excitation.KNOWN)
        pitch_loss = losses.pop("pitch")
        return {**losses, "phase": known["phase"], "pitch_hz": PITCH_SCALE * pitch_loss}

    def _vocoded(self, hift: HiFT, starts: Tensor, excitation: Excitation) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return made and true samples [B, N], and how they differ; in phase, too, where it was the audio's."""
        audio, mel, pitch, phase = (self._streams.window(name, starts, WINDOW_TOKENS).float() for name in FEATURES)
        mel, true = mel.transpose(1, 2), (audio + _dither(audio)) / PCM16_SCALE
        cycles = known_cycles(pitch, phase)
        target = served_pitch(pitch, cycles)
        predicted = hift.f0_predictor(mel)
        used = predicted.detach() if excitation is Excitation.OWN else target
        source = _source(hift, used, cycles if excitation is Excitation.KNOWN else served_cycles(used))
        spectra = hift.spectra(mel, hift.stft(source[:, 0]))
        made = hift.samples(spectra, torch.ones_like(spectra[:1, :1]))
        losses = {
            "mel": self._mel_loss(made, true),
            "spectral": self._spectral_loss(made, true),
            "pitch": functional.l1_loss(predicted / PITCH_SCALE, target / PITCH_SCALE),
        }
        if excitation is Excitation.KNOWN:
            losses["phase"] = self._phase_loss(made, true, (pitch > 0) & (phase >= 0))
        return made, true, losses


def _source(hift: HiFT, pitch: Tensor, cycles: Tensor) -> Tensor:
    phase = angles(cycles, pitch, hift.m_source)
    noise = torch.randn(*phase.transpose(1, 2).shape, device=phase.device)
    return torch.as_tensor(hift.m_source(pitch, noise, phase))


def _dither(audio: Tensor) -> Tensor:
    """Draw triangular noise of one step of 16 bits, [B, N]: DNSMOS takes digital silence for a fault."""
    return torch.rand_like(audio) - torch.rand_like(audio)


def judged_places(samples: Tensor) -> Tensor:
    """Draw what the discriminators judge of samples [B, N]: [B, JUDGED_SAMPLES] int64 places, drawn on their device."""
    rows, count = samples.shape
    first = torch.randint(0, count - JUDGED_SAMPLES + 1, (rows, 1), device=samples.device)
    return first + torch.arange(JUDGED_SAMPLES, device=samples.device)


@torch.no_grad()
def _start_at_speech_pitch(hift: HiFT) -> None:
    classifier = hift.f0_predictor.classifier
    classifier.weight.mul_(_PITCH_GAIN)
    classifier.bias.fill_(PITCH_SCALE)
