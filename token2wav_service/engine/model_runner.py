"""Runs one batch through the models: tokens to mel in one forward, mel to audio in one per length."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from token2wav_service.engine.types import FloatArray
from token2wav_service.models.flow_state import FlowState
from token2wav_service.models.flow_stream import FlowInput, StreamFlow
from token2wav_service.models.vocoder_stream import StreamVocoder, VocoderInput, VocoderState


@dataclass(frozen=True)
class ChunkWork:
    """One stream's chunk and the states it starts from."""

    token_ids: tuple[int, ...]
    is_last: bool
    speaker: Tensor
    seed: int
    flow: FlowState
    vocoder: VocoderState


@dataclass(frozen=True)
class ChunkOutcome:
    """What a chunk made; the states replace the stream's."""

    samples: FloatArray
    """[N] float32 at 24 kHz."""
    flow: FlowState
    vocoder: VocoderState


class ModelRunner:
    """Holds the models; holds no stream."""

    def __init__(self, flow: StreamFlow, vocoder: StreamVocoder) -> None:
        self.flow = flow
        self.vocoder = vocoder

    @torch.inference_mode()
    def run(self, works: Sequence[ChunkWork]) -> list[ChunkOutcome]:
        """Run every chunk; the works' states are unchanged, also when this raises."""
        rows = [
            FlowInput(work.flow, torch.tensor(work.token_ids), work.speaker, work.seed, work.is_last) for work in works
        ]
        mels, flows = self.flow.forward(rows)
        inputs = [VocoderInput(w.vocoder, mel, w.seed, w.is_last) for w, mel in zip(works, mels, strict=True)]
        samples, vocoders = self._vocode(inputs)
        arrays = [tensor.float().cpu().numpy() for tensor in samples]
        return [ChunkOutcome(*parts) for parts in zip(arrays, flows, vocoders, strict=True)]

    def _vocode(self, inputs: Sequence[VocoderInput]) -> tuple[list[Tensor], list[VocoderState]]:
        samples = [row.mel.new_zeros(0) for row in inputs]
        states = [row.state for row in inputs]
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        for index, row in enumerate(inputs):
            if row.is_ready:
                groups[row.total_frames, row.state.mel_tail.shape[1]].append(index)
            else:
                states[index] = self.vocoder.hold(row)
        for members in groups.values():
            made, new_states, _ = self.vocoder.forward([inputs[index] for index in members])
            for index, wave, state in zip(members, made, new_states, strict=True):
                samples[index], states[index] = wave, state
        return samples, states
