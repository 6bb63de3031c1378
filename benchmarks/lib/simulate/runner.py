"""A `Runner` without a model: its programs have the GPU runner's shapes, its audio is silence of the right length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from token2wav_service.contract import LOOKAHEAD_TOKENS, SPEECH_VOCAB_SIZE
from token2wav_service.engine.runner import ChunkOutcome, ChunkWork, ModelFacts
from token2wav_service.errors import CapacityError
from token2wav_service.features.extractor import voice_id_of
from token2wav_service.runtime.slots.step_shapes import StepShapes
from token2wav_service.types import TokenChunk, VoiceFeatures, VoicePrompt

FRAMES_PER_TOKEN = 2
FRAME_SAMPLES = 480
HELD_FRAMES = 8
"""What the vocoder holds back for its joins."""
VOICE_BYTES, STREAM_BYTES = 170_000_000, 70_000_000
PROMPT_TOKENS = 125
_LONGEST_S = 120
_SILENCE = np.zeros(24_000 * _LONGEST_S, np.float32)


@dataclass(frozen=True)
class ModelledVoice:
    """A voice of 5 s."""

    frames: int = FRAMES_PER_TOKEN * PROMPT_TOKENS
    num_bytes: int = VOICE_BYTES


@dataclass
class ModelledState:
    """How far a stream is; changed in place."""

    num_bytes: int = STREAM_BYTES
    mel_tail: int = 0
    has_speech: bool = False


class ModelledRunner:
    """Makes silence at once; what a batch takes is `StepCost`'s business."""

    def __init__(self, max_streams: int, shapes: StepShapes | None = None) -> None:
        """Begin with every slot free."""
        self.facts = ModelFacts(SPEECH_VOCAB_SIZE, LOOKAHEAD_TOKENS, FRAMES_PER_TOKEN)
        self.shapes = shapes or StepShapes()
        self._free = max_streams

    def prepare_voice(self, features: VoiceFeatures) -> ModelledVoice:
        """See `Runner.prepare_voice`."""
        return ModelledVoice()

    def open(self, voice: ModelledVoice) -> ModelledState:
        """Take a slot.

        Raises:
            CapacityError: all are taken.
        """
        if not self._free:
            raise CapacityError("all slots are taken; retry later")
        self._free -= 1
        return ModelledState()

    def close(self, state: ModelledState) -> None:
        """Give the slot back."""
        self._free += 1

    def bucket(self, chunk: TokenChunk) -> int:
        """See `Runner.bucket`."""
        return self.shapes.token_bucket(_spoken(chunk))

    def step_size(self, bucket: int, ready: int) -> int:
        """See `Runner.step_size`."""
        return self.shapes.step_size(bucket, ready)

    def program(self, works: Sequence[ChunkWork[ModelledState]]) -> tuple[int, int]:
        """Return the streams and the tokens that the batch's program has room for."""
        return self.shapes.stream_bucket(len(works)), self.shapes.token_bucket(max(map(_spoken, works)))

    def run(self, works: Sequence[ChunkWork[ModelledState]]) -> list[ChunkOutcome[ModelledState]]:
        """See `Runner.run`."""
        return [ChunkOutcome(_SILENCE[: self._advance(work)], work.state) for work in works]

    def _advance(self, work: ChunkWork[ModelledState]) -> int:
        """Move a state on; returns the samples that are delivered."""
        state = work.state
        total = state.mel_tail + self.facts.new_frames(len(work.token_ids), work.is_last)
        is_ready = work.is_last or state.has_speech or total >= HELD_FRAMES
        state.mel_tail = min(total, HELD_FRAMES)
        if not is_ready:
            return 0
        state.has_speech = True
        return (total - (0 if work.is_last else HELD_FRAMES)) * FRAME_SAMPLES


class ModelledExtractor:
    """Features of no prompt in particular, told apart by its samples."""

    def extract(self, prompt: VoicePrompt) -> VoiceFeatures:
        """See `FeatureExtractor.extract`."""
        tokens = np.arange(PROMPT_TOKENS, dtype=np.int64)
        mel = np.zeros((FRAMES_PER_TOKEN * PROMPT_TOKENS, 80), np.float32)
        return VoiceFeatures(voice_id_of(prompt.samples), tokens, mel, np.zeros(192, np.float32))


def _spoken(chunk: TokenChunk | ChunkWork[ModelledState]) -> int:
    return len(chunk.token_ids) - (0 if chunk.is_last else LOOKAHEAD_TOKENS)
