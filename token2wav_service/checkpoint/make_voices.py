"""Synthetic prompt voices: a harmonic buzz with a pitch contour, moving formants and pauses, in syllables.

They are made, not recorded, so anybody may ship them; nobody is cloned.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile

from token2wav_service.contract import PROMPT_SAMPLE_RATE_HZ
from token2wav_service.types import FloatArray

Float64Array = npt.NDArray[np.float64]

VOICE_SECONDS = 3.0
PEAK = 0.5

_SYLLABLE_SECONDS = 0.2
_PAUSE_EVERY = 5
"""Every so many syllables one is silent."""
_HARMONICS_BELOW_HZ = 7000.0
_FORMANT_WIDTH_HZ = 180.0
_BREATH = 0.003
_PITCH_RANGE_HZ = (90.0, 260.0)


@dataclass(frozen=True)
class SyntheticVoice:
    """What tells two synthetic voices apart."""

    name: str
    pitch_hz: float
    formants_hz: tuple[float, ...]
    transcript: str


SYNTHETIC_VOICES = (
    SyntheticVoice("default", 120.0, (550.0, 1500.0, 2500.0), "This voice was made by a program."),
    SyntheticVoice("second", 210.0, (680.0, 1850.0, 2900.0), "Another voice, a little higher."),
)


def make_voices(directory: Path, seed: int) -> None:
    """Write `<name>.wav` (mono 16 kHz, 16 bit, 3 s) and `<name>.txt` (its transcript) for every synthetic voice."""
    directory.mkdir(parents=True, exist_ok=True)
    for voice in SYNTHETIC_VOICES:
        _write(directory, voice, synthesise(voice, seed))


def make_numbered_voices(directory: Path, seed: int, count: int, seconds: float) -> None:
    """Write `voice-000`, `voice-001`, ...: voices of random pitch and formants, each its own, for load tests."""
    directory.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for number in range(count):
        formants = tuple(rng.uniform(0.8, 1.2) * centre for centre in SYNTHETIC_VOICES[0].formants_hz)
        voice = SyntheticVoice(
            f"voice-{number:03d}", rng.uniform(*_PITCH_RANGE_HZ), formants, f"This is the voice of number {number}."
        )
        _write(directory, voice, synthesise(voice, seed + number, seconds))


def synthesise(voice: SyntheticVoice, seed: int, seconds: float = VOICE_SECONDS) -> FloatArray:
    """Return [16000 * seconds] float32 at 16 kHz with a peak of 0.5."""
    rng = np.random.default_rng([seed, int(voice.pitch_hz)])
    time = np.arange(int(seconds * PROMPT_SAMPLE_RATE_HZ)) / PROMPT_SAMPLE_RATE_HZ
    syllables = int(np.ceil(seconds / _SYLLABLE_SECONDS))
    pitch = _contour(rng.uniform(0.85, 1.15, syllables), time) * voice.pitch_hz
    formants = [_contour(rng.uniform(0.75, 1.3, syllables), time) * centre for centre in voice.formants_hz]
    buzz = _buzz(pitch, formants) + _BREATH * rng.standard_normal(len(time))
    speech = buzz * _loudness(time)
    scaled: FloatArray = (PEAK * speech / np.abs(speech).max()).astype(np.float32)
    return scaled


def _write(directory: Path, voice: SyntheticVoice, samples: FloatArray) -> None:
    soundfile.write(directory / f"{voice.name}.wav", samples, PROMPT_SAMPLE_RATE_HZ, subtype="PCM_16")
    (directory / f"{voice.name}.txt").write_text(voice.transcript + "\n", encoding="utf-8")


def _contour(values: Float64Array, time: Float64Array) -> Float64Array:
    """A line through one value per syllable."""
    centres = (np.arange(len(values)) + 0.5) * _SYLLABLE_SECONDS
    return np.interp(time, centres, values)


def _buzz(pitch: Float64Array, formants: list[Float64Array]) -> Float64Array:
    phase = 2 * np.pi * np.cumsum(pitch) / PROMPT_SAMPLE_RATE_HZ
    total = np.zeros_like(pitch)
    for number in range(1, int(_HARMONICS_BELOW_HZ / pitch.max()) + 1):
        gain = sum(np.exp(-(((number * pitch - centre) / _FORMANT_WIDTH_HZ) ** 2)) for centre in formants)
        total += (gain + 0.05) * np.sin(number * phase) / number**0.5
    return total


def _loudness(time: Float64Array) -> Float64Array:
    """Rises and falls once a syllable; some syllables are pauses."""
    position = time / _SYLLABLE_SECONDS
    is_pause = np.floor(position) % _PAUSE_EVERY == _PAUSE_EVERY - 1
    return np.where(is_pause, 0.0, np.sin(np.pi * (position % 1)) ** 0.5)
