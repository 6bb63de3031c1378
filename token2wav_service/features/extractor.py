"""Everything the models need of a voice, from its prompt's samples.

It keeps nothing but the loaded models; `voice_cache.py` remembers voices.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from token2wav_service.contract import PROMPT_SAMPLE_RATE_HZ, TOKEN_RATE_HZ
from token2wav_service.features.audio import resample_16k_to_24k, validate_prompt
from token2wav_service.features.mel import FLOW_HIGH_HZ, flow_mel_24k, s3_log_mel
from token2wav_service.features.prompt_models import (
    SPEAKER_ENCODER_FILE,
    SPEECH_TOKENIZER_FILE,
    OnnxSpeechTokenizer,
    SpeakerEncoder,
    tokenize_samples,
)
from token2wav_service.types import FloatArray, IntArray, VoiceFeatures, VoicePrompt

FRAMES_PER_TOKEN = 2
SAMPLES_PER_TOKEN = PROMPT_SAMPLE_RATE_HZ // TOKEN_RATE_HZ

OnTokens = Callable[[IntArray], None]
"""Takes a prompt's speech tokens, cut to its mel."""


class PromptFeatureExtractor:
    """Loads the two prompt models once; safe to call from several threads."""

    def __init__(
        self,
        model_dir: Path,
        onnx_threads: int = 1,
        device: str = "cpu",
        tokenizer_file: str = SPEECH_TOKENIZER_FILE,
        mel_high_hz: float = FLOW_HIGH_HZ,
    ) -> None:
        """Open the models.

        Args:
            model_dir: holds campplus.onnx and the speech tokenizer.
            onnx_threads: CPU threads of one run.
            device: where the models run, by torch's name.
            tokenizer_file: name of the speech tokenizer's file.
            mel_high_hz: upper edge of the flow's mel filters.

        Raises:
            CheckpointError: a file is missing or does not load.
        """
        self._speaker_encoder = SpeakerEncoder(model_dir / SPEAKER_ENCODER_FILE, onnx_threads, device)
        self._tokenizer = OnnxSpeechTokenizer(model_dir / tokenizer_file, onnx_threads, device)
        self._mel_high_hz = mel_high_hz
        self._beside = ThreadPoolExecutor(2, thread_name_prefix="voice-features")
        """Computes what no speech token depends on. Its threads are as patient as the one that asks first."""

    def extract(self, prompt: VoicePrompt, on_tokens: OnTokens = lambda tokens: None) -> VoiceFeatures:
        """Compute a voice's features; tokens and mel are cut to the same time.

        Args:
            on_tokens: called as soon as the tokens are known: an LLM needs nothing else.

        Raises:
            InvalidPromptError: see `validate_prompt`.
        """
        validate_prompt(prompt.samples)
        log_mel = s3_log_mel(prompt.samples)
        mel = self._beside.submit(self._flow_mel, prompt.samples)
        embedding = self._beside.submit(self.speaker_embedding, prompt.samples)
        tokens = self._tokenizer.tokenize(log_mel)[: len(prompt.samples) // SAMPLES_PER_TOKEN]
        on_tokens(tokens)
        return VoiceFeatures(
            voice_id=voice_id_of(prompt.samples),
            prompt_tokens=tokens,
            prompt_mel=mel.result()[: FRAMES_PER_TOKEN * len(tokens)],
            speaker_embedding=embedding.result(),
        )

    def tokens(self, samples: FloatArray) -> IntArray:
        """Map [N] samples at 16 kHz, at most 30 s, to [T] speech tokens at 25 Hz."""
        return tokenize_samples(self._tokenizer, samples)

    def speaker_embedding(self, samples: FloatArray) -> FloatArray:
        """Map [N] samples at 16 kHz to the raw [192] speaker embedding."""
        return self._speaker_encoder.embed(samples)

    def _flow_mel(self, samples: FloatArray) -> FloatArray:
        return flow_mel_24k(resample_16k_to_24k(samples), self._mel_high_hz)


def voice_id_of(samples: FloatArray) -> str:
    """Return the SHA-256 of the samples as little-endian float32: equal audio is the same voice, whatever was said."""
    return hashlib.sha256(np.ascontiguousarray(samples, "<f4").tobytes()).hexdigest()
