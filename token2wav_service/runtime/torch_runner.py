"""Runs batches through the plain modules, on any device: tokens to mel in one forward, mel to audio in one per overlap.

States are values: a batch returns new ones and leaves the old ones unchanged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from token2wav_service.engine.runner import ChunkOutcome, ChunkWork, ModelFacts
from token2wav_service.models.flow_state import FlowState
from token2wav_service.models.flow_stream import FlowInput, StreamFlow
from token2wav_service.models.vocoder_stream import StreamVocoder, VocoderInput, VocoderState
from token2wav_service.types import TokenChunk, VoiceFeatures

MAX_PADDED_WORK = 1.5
"""The vocoder's padding is real work without a mask in hardware: rows of very different lengths run apart."""


@dataclass(frozen=True)
class TorchVoice:
    """A voice: the flow after its prompt, from which streams start."""

    flow: FlowState
    speaker: Tensor
    """[192] on the models' device."""

    @property
    def frames(self) -> int:
        """Mel frames of the prompt."""
        return self.flow.frames

    @property
    def num_bytes(self) -> int:
        """Memory it holds."""
        return self.flow.num_bytes + self.speaker.numel() * self.speaker.element_size()


@dataclass(frozen=True)
class TorchState:
    """One stream's state."""

    voice: TorchVoice
    flow: FlowState
    vocoder: VocoderState

    @property
    def num_bytes(self) -> int:
        """Memory it holds beyond what it shares with its voice."""
        own = self.flow.num_bytes if self.flow is not self.voice.flow else 0
        return own + self.vocoder.num_bytes


class ModelRunner:
    """Holds the models; holds no stream."""

    def __init__(self, flow: StreamFlow, vocoder: StreamVocoder) -> None:
        self.flow = flow
        self.vocoder = vocoder
        self.facts = ModelFacts(flow.flow.config.vocab_size, flow.lookahead, flow.stride)

    @torch.inference_mode()
    def prepare_voice(self, features: VoiceFeatures) -> TorchVoice:
        """Run a voice's prompt once."""
        speaker = torch.from_numpy(features.speaker_embedding)
        state = self.flow.prepare_voice(
            torch.from_numpy(features.prompt_tokens), torch.from_numpy(features.prompt_mel), speaker
        )
        return TorchVoice(state, speaker.to(self.flow.device))

    def open(self, voice: TorchVoice) -> TorchState:
        """Return the state of a new stream; it shares the voice's tensors until its first chunk."""
        return TorchState(voice, voice.flow, self.vocoder.initial_state())

    def close(self, state: TorchState) -> None:
        """Nothing to do: a state is freed with its last reference."""

    def bucket(self, chunk: TokenChunk) -> int:
        """All chunks share one program, whatever their sizes."""
        return 0

    def step_size(self, bucket: int, ready: int) -> int:
        """A step takes them all."""
        return ready

    @torch.inference_mode()
    def run(self, works: Sequence[ChunkWork[TorchState]]) -> list[ChunkOutcome[TorchState]]:
        """Run every chunk; the works' states are unchanged, also when this raises."""
        rows = [
            FlowInput(w.state.flow, torch.tensor(w.token_ids), w.state.voice.speaker, w.seed, w.is_last) for w in works
        ]
        mels, flows = self.flow.forward(rows)
        inputs = [VocoderInput(w.state.vocoder, mel, w.seed, w.is_last) for w, mel in zip(works, mels, strict=True)]
        samples, vocoders = self._vocode(inputs)
        return [
            ChunkOutcome(wave.float().cpu().numpy(), TorchState(work.state.voice, flow, vocoder))
            for work, wave, flow, vocoder in zip(works, samples, flows, vocoders, strict=True)
        ]

    def _vocode(self, inputs: Sequence[VocoderInput]) -> tuple[list[Tensor], list[VocoderState]]:
        samples = [row.mel.new_zeros(0) for row in inputs]
        states = [row.state for row in inputs]
        groups: dict[int, list[int]] = defaultdict(list)
        for index, row in enumerate(inputs):
            if row.is_ready:
                groups[row.state.mel_tail.shape[1]].append(index)
            else:
                states[index] = self.vocoder.hold(row)
        for members in (part for group in groups.values() for part in _similar(group, inputs)):
            made, new_states, _ = self.vocoder.forward([inputs[index] for index in members])
            for index, wave, state in zip(members, made, new_states, strict=True):
                samples[index], states[index] = wave, state
        return samples, states


def _similar(members: Sequence[int], inputs: Sequence[VocoderInput]) -> list[list[int]]:
    """Split rows so that padding each part to its longest costs at most half of the work again."""
    parts: list[list[int]] = []
    frames = 0
    for index in sorted(members, key=lambda member: -inputs[member].total_frames):
        frames += inputs[index].total_frames
        if parts and inputs[parts[-1][0]].total_frames * (len(parts[-1]) + 1) <= MAX_PADDED_WORK * frames:
            parts[-1].append(index)
        else:
            parts.append([index])
            frames = inputs[index].total_frames
    return parts
