"""Cuts the silence before the first sound of a speech, as its audio goes by: a listener waits for it as for latency.

    made    [............. 170 ms of silence ............|S p e e c h
    heard                                    [ 20 ms ....|S p e e c h

A sound is a frame above the quietest one so far, so that the weak onset of an f or a p counts; it begins with the
frame's first sample of that level. Pure; knows nothing of texts or services.
"""

from __future__ import annotations

import numpy as np

from gateway.core import FloatArray
from token2wav_service.contract import SAMPLE_RATE_HZ

DEFAULT_KEPT_S = 0.02
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
        self._cut(len(self._held) - self._unchecked - self._kept if sound is None else sound - self._kept)
        if sound is None and not is_last and self.cut_samples < MOST_CUT_S * SAMPLE_RATE_HZ:
            return self._held[:0]
        self._is_over = True
        heard, self._held = self._held, self._held[:0]
        return heard

    @property
    def _unchecked(self) -> int:
        return len(self._held) - self._checked

    def _first_sound(self) -> int | None:
        """Look at the whole frames that are new; return where the first sound begins."""
        for level_db in self._new_levels():
            self._quietest_db = min(self._quietest_db, level_db)
            sound_db = min(max(self._quietest_db + RISE_DB, SOFTEST_DBFS), LOUDEST_DBFS)
            if level_db > sound_db:
                frame = self._held[self._checked : self._checked + FRAME_SAMPLES]
                return self._checked + int(np.argmax(np.abs(frame) > 10 ** (sound_db / 20)))
            self._checked += FRAME_SAMPLES
        return None

    def _new_levels(self) -> list[float]:
        """Return the RMS of each new frame, in dB of full scale."""
        new = self._held[self._checked :]
        frames = new[: len(new) // FRAME_SAMPLES * FRAME_SAMPLES].reshape(-1, FRAME_SAMPLES).astype(np.float64)
        levels: list[float] = (10 * np.log10(np.mean(frames**2, axis=1) + _FLOOR)).tolist()
        return levels

    def _cut(self, samples: int) -> None:
        samples = max(samples, 0)
        self._held, self._checked = self._held[samples:], self._checked - samples
        self.cut_samples += samples
