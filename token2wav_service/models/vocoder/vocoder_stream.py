"""Chunked vocoding: runs HiFT over a batch of streams' mel chunks and joins the outputs by cross-fades.

Source: specification section 9; differs in the default cross-fade, source phase and noise (see `SynthesisPolicy`),
and in that a stream's first frames may be fewer than the overlap.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from token2wav_service.config import SynthesisPolicy
from token2wav_service.models.causal import VocoderInput
from token2wav_service.models.noise import NoiseDomain, counter_normal
from token2wav_service.models.vocoder.hift import HiFT

OVERLAP_FRAMES = 8
"""Mel frames (160 ms) that consecutive vocoder calls share; that much audio is always held back."""


MAX_PADDED_WORK = 1.5
"""Most work of a padded batch relative to no padding; rows of very different lengths run apart."""


@dataclass(frozen=True)
class VocoderState:
    """What the vocoder remembers of one stream; never changed in place."""

    mel_tail: Tensor
    """[80, at most 8] mel frames to be vocoded again."""
    frames: int = 0
    """Mel frames taken in so far, the tail's included."""
    source_tail: Tensor | None = None
    """[3840] source samples under the tail; None before the first vocoder call."""
    speech_tail: Tensor | None = None
    """[3840] samples of audio held back."""
    phase: Tensor | None = None
    """[H] radians of the source's phase at the tail's right edge."""

    @property
    def num_bytes(self) -> int:
        tensors = (self.mel_tail, self.source_tail, self.speech_tail, self.phase)
        return sum(t.numel() * t.element_size() for t in tensors if t is not None)


Row = VocoderInput[VocoderState]


def total_frames(row: Row) -> int:
    """Return the mel frames that a call would vocode for the row."""
    return int(row.state.mel_tail.shape[1] + row.mel.shape[1])


def is_ready(row: Row) -> bool:
    """Return False while a stream has too few frames to leave any overlap for the next call."""
    return row.is_last or total_frames(row) >= OVERLAP_FRAMES


class StreamVocoder:
    """Vocodes chunks of many streams; holds the model and the cross-fade window, no stream's state."""

    def __init__(self, hift: HiFT, policy: SynthesisPolicy) -> None:
        self.hift = hift
        self.policy = policy
        self.overlap = OVERLAP_FRAMES * hift.config.frame_samples
        device = next(hift.parameters()).device
        self.window = crossfade_window(policy, self.overlap).to(device)

    def initial_state(self) -> VocoderState:
        """Return the state of a stream that has not begun."""
        return VocoderState(self.window.new_zeros(self.hift.config.in_channels, 0, dtype=torch.float32))

    def vocode(self, rows: Sequence[Row]) -> tuple[list[Tensor], list[VocoderState]]:
        """Vocode rows of any lengths, ready or not, in as few calls as their overlaps and lengths allow.

        Returns:
            Samples to deliver per row ([n] float32, none for a row that is not ready), and the new states.
        """
        samples = [row.mel.new_zeros(0) for row in rows]
        states = [row.state for row in rows]
        groups: dict[int, list[int]] = defaultdict(list)
        for index, row in enumerate(rows):
            if is_ready(row):
                groups[row.state.mel_tail.shape[1]].append(index)
            else:
                states[index] = self.hold(row)
        for members in (part for group in groups.values() for part in _similar(group, rows)):
            made, new_states, _ = self.forward([rows[index] for index in members])
            for index, wave, state in zip(members, made, new_states, strict=True):
                samples[index], states[index] = wave, state
        return samples, states

    def forward(
        self, rows: Sequence[Row], *, noise: Tensor | None = None, source: Tensor | None = None
    ) -> tuple[list[Tensor], list[VocoderState], Tensor]:
        """Vocode rows of any `total_frames`, all ready, whose states' `mel_tail` are equally wide.

        Args:
            rows: the streams' inputs.
            noise: [B, N, H] to use instead of the streams' own; for parity. N is 480 times the longest row's frames.
            source: [B, 1, N] to use instead of one made from the mel; for parity (the phase is then not carried).

        Returns:
            Samples to deliver per row ([n] float32), the new states, and the source [B, 1, N] that was used (without
            meaning beyond a row's end).
        """
        mel, lengths = self._collate(rows)
        edge: Tensor | None = None
        if source is None:
            source, edge = self._source(mel, lengths, rows, noise)
        speech = self.hift(mel, source, lengths)
        delivered, states = [], []
        for index, row in enumerate(rows):
            row_edge = None if edge is None else edge[index].clone()
            frames = total_frames(row)
            end = frames * self.hift.config.frame_samples
            samples, state = self._join(
                row, mel[index, :, :frames], speech[index, :end], source[index, 0, :end], row_edge
            )
            delivered.append(samples)
            states.append(state)
        return delivered, states, source

    def hold(self, row: Row) -> VocoderState:
        """Take in the frames of a row that is not ready."""
        mel = torch.cat([row.state.mel_tail, row.mel], 1)
        return VocoderState(mel, row.state.frames + row.mel.shape[1])

    def _collate(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor | None]:
        """Return mel [B, 80, T] padded on the right, and [B] frames per row, or None where all are full."""
        tails = torch.stack([row.state.mel_tail for row in rows])
        widths = [row.mel.shape[1] for row in rows]
        if len(set(widths)) == 1:
            return torch.cat([tails, torch.stack([row.mel for row in rows])], 2), None
        new = torch.stack([functional.pad(row.mel, (0, max(widths) - row.mel.shape[1])) for row in rows])
        lengths = torch.tensor([total_frames(row) for row in rows], dtype=torch.int64, device=new.device)
        return torch.cat([tails, new], 2), lengths

    def _source(
        self, mel: Tensor, lengths: Tensor | None, rows: Sequence[Row], noise: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the source [B, 1, N] and [B, H] its phase at each row's end."""
        module = self.hift.m_source
        f0 = self.hift.f0_predictor(mel, lengths)
        phase, edges = module.phase(f0, lengths, is_reference=self.policy.is_reference)
        tail = rows[0].state.mel_tail.shape[1]
        offset = self._phase_offset(rows, edges, tail)
        source = module(f0, self._noise(rows, mel.shape[2]) if noise is None else noise, phase + offset[:, :, None])
        for index, row in enumerate(rows):
            if row.state.source_tail is not None:
                source[index, 0, : row.state.source_tail.shape[0]] = row.state.source_tail
        return source, (edges[:, :, -1] + offset) % (2 * torch.pi)

    def _phase_offset(self, rows: Sequence[Row], edges: Tensor, tail: int) -> Tensor:
        """[B, H] what to add so that the phase goes on where the previous call's ended."""
        offset = torch.zeros_like(edges[:, :, 0])
        if not self.policy.is_reference:
            for index, row in enumerate(rows):
                if row.state.phase is not None:
                    offset[index] = (row.state.phase - edges[index, :, tail - 1]) % (2 * torch.pi)
        return offset

    def _noise(self, rows: Sequence[Row], frames: int) -> Tensor:
        device = self.window.device
        seeds = torch.tensor([r.seed for r in rows], dtype=torch.int64, device=device)
        starts = torch.tensor([r.state.frames - r.state.mel_tail.shape[1] for r in rows], device=device)
        harmonics = self.hift.m_source.harmonics
        width = self.hift.config.frame_samples * harmonics
        return counter_normal(seeds, starts, frames, width, NoiseDomain.SOURCE).view(len(rows), -1, harmonics)

    def _join(
        self, row: Row, mel: Tensor, speech: Tensor, source: Tensor, edge: Tensor | None
    ) -> tuple[Tensor, VocoderState]:
        if row.state.speech_tail is not None:
            speech = crossfade(speech, row.state.speech_tail, self.window)
        state = VocoderState(
            mel_tail=mel[:, -OVERLAP_FRAMES:].clone(),
            frames=row.state.frames + row.mel.shape[1],
            source_tail=source[-self.overlap :].clone(),
            speech_tail=speech[-self.overlap :].clone(),
            phase=edge,
        )
        return (speech if row.is_last else speech[: -self.overlap]), state


def _similar(members: Sequence[int], rows: Sequence[Row]) -> list[list[int]]:
    """Split rows so that padding each part to its longest costs at most half of the work again."""
    parts: list[list[int]] = []
    frames = 0
    for index in sorted(members, key=lambda member: -total_frames(rows[member])):
        frames += total_frames(rows[index])
        if parts and total_frames(rows[parts[-1][0]]) * (len(parts[-1]) + 1) <= MAX_PADDED_WORK * frames:
            parts[-1].append(index)
        else:
            parts.append([index])
            frames = total_frames(rows[index])
    return parts


def crossfade_window(policy: SynthesisPolicy, overlap: int) -> Tensor:
    """Return [2 * overlap] float64: fade-in of the new material, then fade-out of the old."""
    if policy.is_reference:
        return torch.hamming_window(2 * overlap, periodic=False, dtype=torch.float64)
    rising = torch.sin((torch.arange(overlap, dtype=torch.float64) + 0.5) * (torch.pi / 2 / overlap)) ** 2
    return torch.cat([rising, 1 - rising])


def crossfade(new: Tensor, old: Tensor, window: Tensor) -> Tensor:
    """Fade from `old` [overlap] into the beginning of `new` [N]; returns [N] in new's dtype."""
    overlap = old.shape[-1]
    faded = new[..., :overlap] * window[:overlap] + old * window[overlap:]
    return torch.cat([faded.to(new.dtype), new[..., overlap:]], -1)
