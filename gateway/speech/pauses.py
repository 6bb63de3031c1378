r"""Puts the silence of a text's pauses into its speech, exact to the sample, and cuts the one before its first sound.

    speech   [ segment 0    ][ segment 1         ]
    heard    [ segment 0   \][ silence ][/ segment 1         ]

Where a segment's speech ends is known by its tokens, of which each is 40 ms. It fades out before the silence and in
behind it, so that no click is heard.

A listener waits for silence before the first sound as for latency. A sound is a frame above the quietest one so far, so
that the weak onset of an f or a p counts; it begins with the first sample of that level there or in the frame before.
Knows nothing of tags or services.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gateway.core import AudioChunk, FloatArray
from gateway.speech.request import SpeechResult
from token2wav_service.contract import SAMPLE_RATE_HZ, SAMPLES_PER_TOKEN

if TYPE_CHECKING:
    from gateway.audio.ffmpeg import TempoChanger

FADE_SAMPLES = SAMPLE_RATE_HZ // 100
"""Samples of a fade, 10 ms: short enough to take nothing from a word, long enough to make no click."""
_FADE_IN: FloatArray = np.sin(0.5 * np.pi * (np.arange(FADE_SAMPLES) + 0.5) / FADE_SAMPLES).astype(np.float32) ** 2
_FADE_OUT = _FADE_IN[::-1]
_BEFORE_ALL = -1


class MannerChanger:
    """Has segments played at the rate and volume that their text asks for; others pass through untouched."""

    def __init__(self, result: SpeechResult, made_samples: int) -> None:
        """Begin behind so many samples, in which no segment asked for a manner; see `PauseWeaver`."""
        self._result = result
        self._at = made_samples
        """Samples taken so far, as token2wav made them."""
        self._span = 0
        self._tempo: TempoChanger | None = None
        self._gain = 1.0
        """Factor on the previous sample."""

    def changed(self, audio: AudioChunk) -> AudioChunk:
        """Return the next audio as it is to be heard; a changed rate holds some of it back until its segment ends."""
        parts, left = list[FloatArray](), audio.samples
        while True:
            is_over = self._skip_ended(parts, audio.is_last)
            if not len(left) or is_over:
                break
            taken = left[: self._left_of_span(len(left))]
            parts.append(self._played(taken))
            left = left[len(taken) :]
        return replace(audio, samples=np.concatenate([np.zeros(0, np.float32), *parts, left]))

    def _skip_ended(self, parts: list[FloatArray], is_last: bool) -> bool:
        """Go on behind the spans that have ended; return whether that was the last one."""
        spans = self._result.spans
        while self._span < len(spans):
            span = spans[self._span]
            is_known = span.is_complete and (is_last or self._span + 1 < len(spans))
            if not is_known or self._at < (span.first_token + span.tokens) * SAMPLES_PER_TOKEN:
                return False
            if self._tempo is not None:
                parts.append(self._louder(self._tempo.finish()))
                self._tempo = None
            self._span += 1
        return True

    def _left_of_span(self, samples: int) -> int:
        """Return how many of the next samples are the span's."""
        span = self._result.spans[self._span]
        if not span.is_complete:
            return samples
        return min(samples, (span.first_token + span.tokens) * SAMPLES_PER_TOKEN - self._at) or samples

    def _played(self, samples: FloatArray) -> FloatArray:
        self._at += len(samples)
        rate = self._result.spans[self._span].manner.rate
        if rate == 1:
            return self._louder(samples)
        if self._tempo is None:
            self._tempo = _open_tempo(rate)
        return self._louder(self._tempo.push(samples))

    def _louder(self, samples: FloatArray) -> FloatArray:
        """Multiply [N] samples by the span's gain, which is reached within a fade."""
        gain = self._result.spans[self._span].manner.gain
        if (gain == self._gain == 1) or not len(samples):
            return samples
        gains = np.full(len(samples), gain, np.float32)
        ramp = _FADE_IN[: len(samples)]
        gains[: len(ramp)] = self._gain + (gain - self._gain) * ramp
        self._gain = gain
        return np.clip(samples * gains, -1.0, 1.0)


def _open_tempo(rate: float) -> TempoChanger:
    # NOTE: this needs the extra `audio`; without it the text was refused before.
    from gateway.audio.ffmpeg import TempoChanger

    return TempoChanger(rate)


class PauseWeaver:
    """Goes along with the audio of one stream; speech without pauses passes through untouched but for its beginning."""

    def __init__(self, result: SpeechResult, leading_silence: LeadingSilence) -> None:
        """Begin before the first sample.

        Args:
            result: the stream's; its spans tell where pauses are, and grow meanwhile.
        """
        self._result = result
        self._leading_silence = leading_silence
        self._manners: MannerChanger | None = None
        """Begun with the first segment that asks for a manner."""
        self._made = 0
        """Samples taken so far, as token2wav made them."""
        self._at = 0
        """Samples of speech taken so far, at their rate, silence not counted."""
        self._span = _BEFORE_ALL
        """Index of the span before the next pause; `_BEFORE_ALL`: that pause comes before the first word."""
        self._last_pause: int | None = None
        """Position in the speech where the last silence was put."""

    @property
    def cut_samples(self) -> int:
        """Samples of silence cut before the first sound so far."""
        return self._leading_silence.cut_samples

    def woven_into(self, audio: AudioChunk) -> AudioChunk:
        """Return the next audio with the pauses that belong into it; the last gets the one at the end too."""
        made, self._made = self._made, self._made + len(audio.samples)
        if self._result.has_manners:
            self._manners = self._manners or MannerChanger(self._result, made)
            audio = self._manners.changed(audio)
        audio = self._begun(audio)
        start, self._at = self._at, self._at + len(audio.samples)
        if not self._result.silence_samples:
            return audio
        return replace(audio, samples=self._woven(audio.samples, start, audio.is_last))

    def _begun(self, audio: AudioChunk) -> AudioChunk:
        """Leave the silence before the first sound out, and note it with the first segment."""
        samples = self._leading_silence.without(audio.samples, audio.is_last)
        if self._result.spans:
            self._result.spans[0].cut_samples = self._leading_silence.cut_samples
        return audio if samples is audio.samples else replace(audio, samples=samples)

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
        end = span.speech_end_samples - span.silence_before_samples
        return end, span.pause_samples, span.is_complete and (is_last or index + 1 < len(spans))


def _fade(samples: FloatArray, ramp: FloatArray, at: int) -> None:
    """Multiply the part of [N] samples that a ramp beginning at `at` covers, in place; it may lie outside."""
    begin, end = max(at, 0), min(at + len(ramp), len(samples))
    if begin < end:
        samples[begin:end] *= ramp[begin - at : end - at]


DEFAULT_KEPT_S = 0.017
"""Not 20 ms: speech would often last a whole number of 5 ms frames, which DNSMOS marks down (3.88, not 3.91)."""
MOST_CUT_S = 1.0
"""Longest silence in seconds that is cut; the rest may be meant and stays."""
FRAME_SAMPLES = SAMPLE_RATE_HZ // 200
"""Samples of one level measurement, 5 ms."""
RISE_DB = 10.0
"""Level of the first sound above the quietest frame."""
SOFTEST_DBFS, LOUDEST_DBFS = -60.0, -45.0
"""Levels below which all is silence and above which all is sound, whatever the quietest frame."""
_FLOOR = 1e-10


class LeadingSilence:
    """Goes along with the audio of one speech; from its first sound on everything passes through untouched."""

    def __init__(self, kept_s: float | None = DEFAULT_KEPT_S) -> None:
        """Begin before the first sample.

        Args:
            kept_s: silence that stays before the first sound, at most; None: all of it.
        """
        self._kept = 0 if kept_s is None else round(kept_s * SAMPLE_RATE_HZ)
        self._is_over = kept_s is None
        self._held: FloatArray = np.zeros(0, np.float32)
        self._checked = 0
        """Samples held whose level was measured."""
        self._quietest_db = 0.0
        self.cut_samples = 0
        """Samples cut so far, at 24 kHz."""

    def without(self, samples: FloatArray, is_last: bool) -> FloatArray:
        """Return what may be heard of the next [N] float32 samples and of those held back before, [M] float32.

        Args:
            samples: in +-1 at 24 kHz.
            is_last: nothing comes after them; nothing is held back any more.
        """
        if self._is_over:
            return samples
        self._held = np.concatenate([self._held, samples])
        sound = self._first_sound()
        self._cut((self._checked - FRAME_SAMPLES if sound is None else sound) - self._kept)
        if sound is None and not is_last and self.cut_samples < MOST_CUT_S * SAMPLE_RATE_HZ:
            return self._held[:0]
        self._is_over = True
        heard, self._held = self._held, self._held[:0]
        return heard

    def _first_sound(self) -> int | None:
        """Look at the whole frames that are new; return where the first sound begins."""
        for level_db in self._new_levels():
            self._quietest_db = min(self._quietest_db, level_db)
            sound_db = min(max(self._quietest_db + RISE_DB, SOFTEST_DBFS), LOUDEST_DBFS)
            if level_db > sound_db:
                begin = max(self._checked - FRAME_SAMPLES, 0)
                return begin + int(np.argmax(np.abs(self._held[begin:]) > 10 ** (sound_db / 20)))
            self._checked += FRAME_SAMPLES
        return None

    def _new_levels(self) -> list[float]:
        """Return the RMS of each new frame, in dB of full scale."""
        new = self._held[self._checked :]
        frames = new[: len(new) // FRAME_SAMPLES * FRAME_SAMPLES].reshape(-1, FRAME_SAMPLES).astype(np.float64)
        return list(10 * np.log10(np.mean(frames**2, axis=1) + _FLOOR))

    def _cut(self, samples: int) -> None:
        samples = max(samples, 0)
        self._held, self._checked = self._held[samples:], self._checked - samples
        self.cut_samples += samples
