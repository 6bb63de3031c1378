"""Chunked vocoding with the causal HiFT: pieces of many streams' mel in one batch, joined without overlap or fade.

Source: specification of the flows, section 8; differs in the default source phase and noise (see `SynthesisPolicy`)
and in that 4 frames and 4 samples are held back instead of 8 frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from token2wav_service.config import SynthesisPolicy
from token2wav_service.models.causal import VocoderInput
from token2wav_service.models.noise import NoiseDomain, counter_uniform
from token2wav_service.models.vocoder.causal_hift import CausalHiFT, CausalState

NOISE_SAMPLES = 7_200_000
"""Samples (300 s) of the original's noise buffer."""
NOISE_SEED = 0


@dataclass(frozen=True)
class CausalVocoderState:
    """What the causal vocoder remembers of one stream; never changed in place."""

    mel_tail: Tensor
    """[80, at most 4] mel frames that wait for those behind them."""
    floats: Tensor
    """The floats of `CausalState`, without a batch."""
    doubles: Tensor
    frames: int = 0
    """Frames decoded so far."""

    @property
    def num_bytes(self) -> int:
        """Memory it holds."""
        return sum(t.numel() * t.element_size() for t in (self.mel_tail, self.floats, self.doubles))


Row = VocoderInput[CausalVocoderState]


class CausalStreamVocoder:
    """Vocodes chunks of many streams; holds the model, no stream's state."""

    def __init__(self, hift: CausalHiFT, policy: SynthesisPolicy, noise_buffer: Tensor | None = None) -> None:
        """Hold the model.

        Args:
            hift: in eval mode, on its device.
            policy: source phase and noise.
            noise_buffer: [samples, H] for the reference; None draws a fixed one (the original's can't be
                drawn again: it depends on what the process drew before).
        """
        self.hift = hift
        self.policy = policy
        self.noise_buffer = noise_buffer
        if policy.is_reference and noise_buffer is None:
            generator = torch.Generator().manual_seed(NOISE_SEED)
            self.noise_buffer = torch.rand(NOISE_SAMPLES, hift.m_source.harmonics, generator=generator)

    def initial_state(self) -> CausalVocoderState:
        """Return the state of a stream that has not begun."""
        empty = self.hift.initial_state(1)
        mel = empty.floats.new_zeros(self.hift.config.in_channels, 0)
        return CausalVocoderState(mel, empty.floats[0], empty.doubles[0])

    def vocode(self, rows: Sequence[Row]) -> tuple[list[Tensor], list[CausalVocoderState]]:
        """Vocode what can be vocoded of every row.

        Returns:
            Samples to deliver per row ([n] float32, none while a row has too few frames), and the new states.
        """
        mels = [torch.cat([row.state.mel_tail, row.mel], 1) for row in rows]
        held = [0 if row.is_last else self.hift.lookahead for row in rows]
        counts = [int(mel.shape[1]) - more for mel, more in zip(mels, held, strict=True)]
        samples = [row.mel.new_zeros(0) for row in rows]
        states = [
            CausalVocoderState(mel, row.state.floats, row.state.doubles, row.state.frames)
            for row, mel in zip(rows, mels, strict=True)
        ]
        ready = [index for index, count in enumerate(counts) if count > 0]
        if ready:
            made = self._run([rows[i] for i in ready], [mels[i] for i in ready], [counts[i] for i in ready])
            for index, wave, state in zip(ready, *made, strict=True):
                samples[index], states[index] = wave, state
        return samples, states

    def _run(
        self, rows: Sequence[Row], mels: Sequence[Tensor], counts: Sequence[int]
    ) -> tuple[list[Tensor], list[CausalVocoderState]]:
        size, device = max(counts), self.hift.window.device
        width = size + self.hift.lookahead
        before = CausalState(
            torch.stack([row.state.floats for row in rows]),
            torch.stack([row.state.doubles for row in rows]),
            torch.tensor([row.state.frames == 0 for row in rows], device=device),
        )
        wave, after = self.hift(
            torch.stack([functional.pad(mel, (0, width - mel.shape[1])) for mel in mels]),
            torch.tensor(counts, device=device),
            torch.tensor([row.is_last for row in rows], device=device),
            before,
            self._noise(rows, size + 1),
            is_reference=self.policy.is_reference,
        )
        held, samples, states = self.hift.held_samples, [], []
        for index, (row, mel, count) in enumerate(zip(rows, mels, counts, strict=True)):
            end = count * self.hift.config.frame_samples
            first = held if row.state.frames == 0 else 0
            samples.append(wave[index, first : end + held if row.is_last else end])
            tail = mel[:, count:].clone()
            done = row.state.frames + count
            states.append(CausalVocoderState(tail, after.floats[index].clone(), after.doubles[index].clone(), done))
        return samples, states

    def _noise(self, rows: Sequence[Row], frames: int) -> Tensor:
        """[B, 480 frames, H] uniform noise from each row's next sample on."""
        samples, harmonics = self.hift.config.frame_samples, self.hift.m_source.harmonics
        device = self.hift.window.device
        if self.policy.is_reference and self.noise_buffer is not None:
            index = torch.arange(frames * samples)
            starts = [row.state.frames * samples for row in rows]
            # The buffer repeats where the original fails (300 s).
            return torch.stack([self.noise_buffer[(start + index) % len(self.noise_buffer)] for start in starts]).to(
                device
            )
        seeds = torch.tensor([row.seed for row in rows], dtype=torch.int64, device=device)
        firsts = torch.tensor([row.state.frames for row in rows], device=device)
        width = samples * harmonics
        return counter_uniform(seeds, firsts, frames, width, NoiseDomain.SOURCE).view(len(rows), -1, harmonics)
