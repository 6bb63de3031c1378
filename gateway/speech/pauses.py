r"""Puts the silence of a text's pauses into its speech, exact to the sample.

    speech   [ segment 0    ][ segment 1         ]
    heard    [ segment 0   \][ silence ][/ segment 1         ]

Where a segment's speech ends is known by its tokens, of which each is 40 ms. It fades out before the silence and in
behind it, so that no click is heard. Knows nothing of tags or services.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gateway.core import AudioChunk, FloatArray
from gateway.speech.request import SpeechResult
from token2wav_service.contract import SAMPLE_RATE_HZ, SAMPLES_PER_TOKEN

FADE_SAMPLES = SAMPLE_RATE_HZ // 100
"""10 ms: short enough to take nothing from a word, and long enough that its end is no click."""
_FADE_IN: FloatArray = np.sin(0.5 * np.pi * (np.arange(FADE_SAMPLES) + 0.5) / FADE_SAMPLES).astype(np.float32) ** 2
_FADE_OUT = _FADE_IN[::-1]
_BEFORE_ALL = -1


class PauseWeaver:
    """Goes along with the audio of one stream; speech without pauses passes through untouched."""

    def __init__(self, result: SpeechResult) -> None:
        """Begin before the first sample.

        Args:
            result: the stream's; its spans tell where pauses are, and grow meanwhile.
        """
        self._result = result
        self._at = 0
        """Samples of speech taken so far, silence not counted."""
        self._span = _BEFORE_ALL
        """Behind which the next pause is; `_BEFORE_ALL`: the one before the first word."""
        self._last_pause: int | None = None
        """Where in the speech the last silence was put."""

    def woven_into(self, audio: AudioChunk) -> AudioChunk:
        """Return the next audio with the pauses that belong into it; the last gets the one at the end too."""
        start, self._at = self._at, self._at + len(audio.samples)
        if not self._result.silence_samples:
            return audio
        return replace(audio, samples=self._woven(audio.samples, start, audio.is_last))

    def _woven(self, samples: FloatArray, start: int, is_last: bool) -> FloatArray:
        samples, parts, taken = samples.copy(), list[FloatArray](), 0
        if self._last_pause is not None:
            _fade(samples, _FADE_IN, self._last_pause - start)
        while (pause := self._next_pause(is_last)) is not None:
            position, silence = max(pause[0] - start, taken), pause[1]
            _fade(samples, _FADE_OUT, position - FADE_SAMPLES)
            if position > len(samples):
                break
            _fade(samples, _FADE_IN, position)
            parts += [samples[taken:position], np.zeros(silence, np.float32)]
            taken, self._last_pause, self._span = position, pause[0], self._span + 1
        return np.concatenate([*parts, samples[taken:]]) if parts else samples

    def _next_pause(self, is_last: bool) -> tuple[int, int] | None:
        """Return where in the speech the next pause is and its samples; None while that is not known."""
        spans = self._result.spans
        while self._span < len(spans):
            position, silence, is_known = self._pause_behind(self._span, is_last)
            if not is_known:
                return None
            if silence:
                return position, silence
            self._span += 1
        return None

    def _pause_behind(self, index: int, is_last: bool) -> tuple[int, int, bool]:
        spans = self._result.spans
        if index == _BEFORE_ALL:
            return 0, spans[0].silence_before_samples if spans else 0, bool(spans)
        span = spans[index]
        end = (span.first_token + span.tokens) * SAMPLES_PER_TOKEN
        return end, span.pause_samples, span.is_complete and (is_last or index + 1 < len(spans))


def _fade(samples: FloatArray, ramp: FloatArray, at: int) -> None:
    """Multiply the part of [N] samples that a ramp beginning at `at` covers, in place; it may lie outside."""
    begin, end = max(at, 0), min(at + len(ramp), len(samples))
    if begin < end:
        samples[begin:end] *= ramp[begin - at : end - at]
