"""Voices as the engine holds them: features, and the models' state after the prompt, shared by all streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from token2wav_service.engine.runner import Runner, VoiceState
from token2wav_service.engine.types import VoiceFeatures, VoicePrompt
from token2wav_service.features.audio import validate_prompt
from token2wav_service.features.extractor import voice_id_of
from token2wav_service.features.voice_cache import VoiceCache


class FeatureExtractor(Protocol):
    """Turns a prompt into features (`PromptFeatureExtractor`, or a test's own)."""

    def extract(self, prompt: VoicePrompt) -> VoiceFeatures:
        """Compute everything the models need of a voice."""
        ...


@dataclass(frozen=True)
class Voice:
    """A voice ready for streams."""

    features: VoiceFeatures
    state: VoiceState
    """The models after the prompt; streams start from it and never change it."""

    @property
    def num_bytes(self) -> int:
        """Bytes the voice holds."""
        arrays = (self.features.prompt_tokens, self.features.prompt_mel, self.features.speaker_embedding)
        return self.state.num_bytes + sum(array.nbytes for array in arrays)


class VoiceStore:
    """Makes voices once and remembers them under a byte budget; thread-safe."""

    def __init__(self, extractor: FeatureExtractor, runner: Runner[Any, Any], budget_bytes: int) -> None:
        self._extractor = extractor
        self._runner = runner
        self.cache: VoiceCache[Voice] = VoiceCache(budget_bytes)

    def register(self, prompt: VoicePrompt) -> VoiceFeatures:
        """Return the prompt's voice, making it unless it is cached.

        Raises:
            InvalidPromptError: the prompt can't be used; nothing is kept.
            CapacityError: the cache can't hold it beside the voices in use.
        """
        validate_prompt(prompt.samples)
        voice_id = voice_id_of(prompt.samples)
        return self.cache.get_or_compute(voice_id, lambda: self._make(prompt), lambda voice: voice.num_bytes).features

    def _make(self, prompt: VoicePrompt) -> Voice:
        features = self._extractor.extract(prompt)
        return Voice(features, self._runner.prepare_voice(features))
