"""The source engine flite: its voices, its phones, and text to 16 kHz audio with the phones' times.

The speakers of the corpus are flite's four American English voices at 16 kHz, and warped copies of three of them. A
warped copy is the voice played faster or slower, with its speaking rate put right beforehand: pitch and formants move
together, as they do between people of different size. It makes a prompt mean something: more speakers than the engine
has voices. Phones supervise the speech tokenizer and are never seen at inference. One process speaks one utterance.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import wave
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt

BASE_VOICES = ("rms", "slt", "awb", "kal16")
WARPED_VOICES = ("rms", "slt", "awb")
WARPS = tuple(Fraction(up, down) for up, down in ((5, 6), (7, 8), (15, 16), (16, 15), (8, 7), (6, 5)))
PLAIN = Fraction(1)


@dataclass(frozen=True)
class SourceVoice:
    """One speaker of the corpus."""

    base: str
    """The engine's name for the voice."""
    warp: Fraction = PLAIN
    """Factor on pitch and formants."""

    @property
    def name(self) -> str:
        return self.base if self.warp == PLAIN else f"{self.base}_{self.warp.numerator}_{self.warp.denominator}"


SPEAKERS = (
    *(SourceVoice(base) for base in BASE_VOICES),
    *(SourceVoice(base, warp) for base in WARPED_VOICES for warp in WARPS),
)
"""Class i of the speaker encoder and row i of every speaker table is SPEAKERS[i]."""

_PLAIN_SHARES = {"rms": 0.32, "slt": 0.22, "awb": 0.18, "kal16": 0.04}
"""Shares of the audio; the warped copies share the rest evenly. rms is understood best, so it has most."""


def speaker_shares() -> list[float]:
    """Return each speaker's share of the corpus, in the order of SPEAKERS; they sum to 1."""
    warped = (1.0 - sum(_PLAIN_SHARES.values())) / (len(WARPED_VOICES) * len(WARPS))
    return [_PLAIN_SHARES[voice.base] if voice.warp == PLAIN else warped for voice in SPEAKERS]


PAUSE = "pau"
PHONES = (
    PAUSE,
    *("aa", "ae", "ah", "ao", "aw", "ax", "axr", "ay", "b", "ch", "d", "dh", "dx", "eh", "el", "em", "en", "er", "ey"),
    *("f", "g", "hh", "hv", "ih", "iy", "jh", "k", "l", "m", "n", "nx", "ng", "ow", "oy", "p", "r", "s", "sh", "t"),
    *("th", "uh", "uw", "v", "w", "y", "z", "zh"),
)
"""The radio phone set that flite's and Festival's American voices share."""

_NUMBERS = {phone: number for number, phone in enumerate(PHONES)}


def phone_number(phone: str) -> int:
    """Return a phone's class.

    Raises:
        KeyError: no such phone.
    """
    if phone not in _NUMBERS:
        raise KeyError(f"got phone {phone!r}, expected one of {PHONES}")
    return _NUMBERS[phone]


FloatArray = npt.NDArray[np.float32]

RATE_HZ = 16_000
_PCM16_SCALE = 32768.0
_TIMEOUT_S = 60.0


class SynthesisError(Exception):
    """The engine failed, or said something we can't read."""


@dataclass(frozen=True)
class Segment:
    """A phone and where it ends, in seconds from the beginning."""

    phone: str
    end_s: float


@dataclass(frozen=True)
class Spoken:
    """One utterance of a teacher."""

    samples: FloatArray
    """[N] mono float32 in +-1."""
    segments: tuple[Segment, ...]
    rate_hz: int = RATE_HZ
    """16,000 or 24,000."""
    pitch: FloatArray | None = None
    """[N // (rate / 50)] Hz at the middle of every 20 ms, 0 where unvoiced; None: to be tracked in the audio."""
    phase: FloatArray | None = None
    """[N // (rate / 50)] the fundamental's phase there, in cycles from 0 to 1, but for a constant; None: not known."""


class Flite:
    """The engine, installed or unpacked somewhere."""

    def __init__(self, root: Path | None = None) -> None:
        """Find the program.

        Args:
            root: folder into which the Debian packages were unpacked; None: the installed program.
        """
        self._program = "flite" if root is None else str(root / "usr/bin/flite")
        libraries = "" if root is None else str(root / "usr/lib/x86_64-linux-gnu")
        self._environment = {**os.environ, "LD_LIBRARY_PATH": libraries} if libraries else dict(os.environ)

    def speak(self, text: str, voice: SourceVoice) -> Spoken:
        """Speak a text.

        Raises:
            SynthesisError: the program is missing or failed.
        """
        # Played faster by the warp, the audio gets shorter; so the engine speaks slower by the same factor.
        command = [self._program, "-voice", voice.base, "--setf", f"duration_stretch={float(voice.warp):.6f}"]
        scratch = "/dev/shm" if Path("/dev/shm").is_dir() else None
        with tempfile.NamedTemporaryFile(suffix=".wav", dir=scratch) as file:
            printed = self._run([*command, "-psdur", "-t", text, "-o", file.name])
            samples = _read_wav(Path(file.name))
        segments = _scaled_to(_parse_segments(printed), len(samples) / RATE_HZ)
        return _warped(Spoken(samples, segments), voice)

    def _run(self, command: list[str]) -> str:
        try:
            done = subprocess.run(
                command, env=self._environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
            )
        except FileNotFoundError as err:
            raise SynthesisError(f"{self._program} is missing; install flite, or give the unpacked engines") from err
        except (subprocess.SubprocessError, UnicodeError) as err:
            raise SynthesisError(f"flite failed on {command[-3]!r}: {err}") from err
        return done.stdout


def _read_wav(path: Path) -> FloatArray:
    try:
        with wave.open(str(path)) as file:
            rate, channels, pcm = file.getframerate(), file.getnchannels(), file.readframes(file.getnframes())
    except (wave.Error, EOFError) as err:
        raise SynthesisError(f"flite wrote no readable WAV: {err}") from err
    if (rate, channels) != (RATE_HZ, 1):
        raise SynthesisError(f"flite gave {rate} Hz and {channels} channels, expected {RATE_HZ} Hz mono")
    return np.frombuffer(pcm, "<i2").astype(np.float32) / _PCM16_SCALE


def _parse_segments(printed: str) -> tuple[Segment, ...]:
    """Read `phone:end` pairs; the engine starts a line, and its clock, with every sentence of the text."""
    segments: list[Segment] = []
    for line in printed.splitlines():
        began = segments[-1].end_s if segments else 0.0
        for item in line.split():
            phone, colon, end = item.rpartition(":")
            if not colon:
                raise SynthesisError(f"flite printed {item!r}, expected PHONE:SECONDS")
            segments.append(Segment(phone, began + float(end)))
    if not segments:
        raise SynthesisError("flite printed no phones; is there a word in the text?")
    return tuple(segments)


def _scaled_to(segments: tuple[Segment, ...], seconds: float) -> tuple[Segment, ...]:
    """Stretch the times to the audio's length: frames are rounded, so the two differ by a little."""
    factor = seconds / segments[-1].end_s
    return tuple(Segment(segment.phone, segment.end_s * factor) for segment in segments)


def _warped(spoken: Spoken, voice: SourceVoice) -> Spoken:
    if voice.warp == PLAIN:
        return spoken
    from scipy import signal

    faster = signal.resample_poly(spoken.samples.astype(np.float64), voice.warp.denominator, voice.warp.numerator)
    samples = np.asarray(np.clip(faster, -1.0, 1.0), np.float32)
    return Spoken(samples, _scaled_to(spoken.segments, len(samples) / RATE_HZ))
