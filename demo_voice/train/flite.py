"""Runs flite: text to 16 kHz audio and the phones in it with their times. One process an utterance."""

from __future__ import annotations

import os
import subprocess
import tempfile
import wave
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from demo_voice.train.voices import PLAIN, SourceVoice

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
    """One utterance of the source engine."""

    samples: FloatArray
    """[N] mono float32 in +-1 at 16 kHz."""
    segments: tuple[Segment, ...]


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
