"""Makes prompt voices with the teachers, the bundled ones by default: `python -m lab.train.make_voices`."""

from __future__ import annotations

import argparse
import json
import logging
import wave
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from demo_voice.unpack import VOICES
from lab.train.teachers.choices import DEFAULT, FLITE, HIBARI, MIXED, TEACHERS, Engine
from lab.train.teachers.flite import RATE_HZ, FloatArray, Spoken, SynthesisError
from lab.train.utterance import audio_16k

logger = logging.getLogger(__name__)

_PCM16_PEAK = 32767.0
_SAMPLE_WIDTH_BYTES = 2


@dataclass(frozen=True)
class PromptVoice:
    """One bundled voice: who speaks, what, and what listeners are told of it."""

    name: str
    base: str
    """Which of the teachers' speakers."""
    transcript: str
    description: str
    gender: str
    language: str
    """BCP 47 tag."""

    @property
    def profile(self) -> str:
        """The text of its `<name>.json`."""
        told = {"description": self.description, "gender": self.gender, "language": self.language}
        return json.dumps(told, indent=1) + "\n"


PROMPT_VOICES = (
    PromptVoice(
        "default",
        "rms",
        "The old boat drifted past the bridge while we watched from the shore.",
        "A man, calm and clear, reading in American English; of the three he is understood best.",
        "male",
        "en-US",
    ),
    PromptVoice(
        "slt",
        "slt",
        "Fresh bread and warm coffee were waiting on the table this morning.",
        "A woman, even and bright, reading in American English.",
        "female",
        "en-US",
    ),
    PromptVoice(
        "awb",
        "awb",
        "We walked along the river until the lights of the town went out.",
        "A man, unhurried, reading in English with a Scottish accent.",
        "male",
        "en-GB",
    ),
)
"""About 3.5 s each: long enough for a likeness, short enough to cost little in every chunk. `default` is the engine's
rms, the voice that is understood best."""


HIBARI_VOICES = (
    PromptVoice(
        "default",
        "heart",
        "The old boat drifted past the bridge while we watched from the shore.",
        "A woman, warm and clear, reading in American English.",
        "female",
        "en-US",
    ),
    PromptVoice(
        "low",
        "heart_low",
        "Fresh bread and warm coffee were waiting on the table this morning.",
        "A woman with a lower voice, calm, reading in American English.",
        "female",
        "en-US",
    ),
    PromptVoice(
        "man",
        "heart_man",
        "We walked along the river until the lights of the town went out.",
        "A man with a deep voice, reading in American English.",
        "male",
        "en-US",
    ),
    PromptVoice(
        "tenor",
        "heart_tenor",
        "She counted every window of the house before the rain began.",
        "A man with a light voice, reading in American English.",
        "male",
        "en-US",
    ),
)
MIXED_VOICES = (
    *HIBARI_VOICES[:2],
    replace(HIBARI_VOICES[2], base="kumo", description="A man, calm, reading in American English."),
    PromptVoice(
        "bright",
        "gongitsune",
        "The children ran across the square when the music started again.",
        "A woman with a bright, young voice, reading in American English.",
        "female",
        "en-US",
    ),
    replace(HIBARI_VOICES[2], name="deep", transcript="At the end of the street he stopped and looked back once more."),
)
VOICES_OF = {FLITE: PROMPT_VOICES, HIBARI: HIBARI_VOICES, MIXED: MIXED_VOICES}
"""Prompt voices by teachers."""


class SourceVoices:
    """The teachers' own speech in the bundled voices: the yardstick of every listening test."""

    def __init__(self, teachers: str, engines: Path | None = None) -> None:
        """Open the teachers.

        Args:
            teachers: name in `TEACHERS`; `unpack.teachers_of` tells a checkpoint's.
            engines: folder of unpacked engines; None: the installed ones.

        Raises:
            SynthesisError: their package is missing, or nobody bundles voices of such teachers.
        """
        if teachers not in VOICES_OF:
            raise SynthesisError(f"got teachers {teachers!r}, expected one of {sorted(VOICES_OF)}")
        self.teachers = teachers
        self._voices = {voice.name: voice for voice in VOICES_OF[teachers]}
        self._engine = TEACHERS[teachers].open(engines)

    def speak(self, text: str, voice: str) -> Spoken:
        """Speak a text as the teacher of a bundled voice does.

        Raises:
            SynthesisError: there is no such voice, or the engine failed.
        """
        if voice not in self._voices:
            raise SynthesisError(f"got voice {voice!r}, expected one of {sorted(self._voices)} of {self.teachers}")
        speakers = list(TEACHERS[self.teachers].speakers)
        return self._engine.speak(text, speakers.index(self._voices[voice].base))


def make_voices(directory: Path, teachers: str, engine: Engine) -> None:
    """Write `<name>.wav` (16 kHz mono, 16 bit), `<name>.txt` and `<name>.json` of every voice.

    Args:
        directory: made if missing.
        teachers: name in `TEACHERS`.
        engine: theirs.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for voice in VOICES_OF[teachers]:
        samples = audio_16k(engine.speak(voice.transcript, list(TEACHERS[teachers].speakers).index(voice.base)))
        write_prompt(directory, voice.name, samples, voice.transcript)
        (directory / f"{voice.name}.json").write_text(voice.profile, encoding="utf-8")
        logger.info("%s: %.2f s", voice.name, len(samples) / RATE_HZ)


def write_prompt(directory: Path, name: str, samples: FloatArray, transcript: str) -> None:
    """Write `<name>.wav` (16 kHz mono, 16 bit) of [N] samples in +-1, and `<name>.txt`."""
    with wave.open(str(directory / f"{name}.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(_SAMPLE_WIDTH_BYTES)
        file.setframerate(RATE_HZ)
        file.writeframes((np.clip(samples, -1, 1) * _PCM16_PEAK).astype("<i2").tobytes())
    (directory / f"{name}.txt").write_text(transcript + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Make the voices; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.train.make_voices", description=__doc__)
    parser.add_argument("--out", type=Path, default=VOICES, help="default %(default)s")
    parser.add_argument("--teachers", choices=list(VOICES_OF), default=DEFAULT, help="default %(default)s")
    parser.add_argument("--engines", type=Path, help="unpacked engines (default: installed ones)")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    make_voices(args.out, args.teachers, TEACHERS[args.teachers].open(args.engines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
