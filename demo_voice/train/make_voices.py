"""Makes the bundled prompt voices with the source engine: `python -m demo_voice.train.make_voices`."""

from __future__ import annotations

import argparse
import json
import logging
import wave
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from demo_voice.train.flite import RATE_HZ, Flite, SourceVoice
from demo_voice.unpack import VOICES

logger = logging.getLogger(__name__)

_PCM16_PEAK = 32767.0
_SAMPLE_WIDTH_BYTES = 2


@dataclass(frozen=True)
class PromptVoice:
    """One bundled voice: who speaks, what, and what listeners are told of it."""

    name: str
    base: str
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


def make_voices(directory: Path, engine: Flite) -> None:
    """Write `<name>.wav` (16 kHz mono, 16 bit), `<name>.txt` and `<name>.json` of every bundled voice."""
    directory.mkdir(parents=True, exist_ok=True)
    for voice in PROMPT_VOICES:
        samples = engine.speak(voice.transcript, SourceVoice(voice.base)).samples
        with wave.open(str(directory / f"{voice.name}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(_SAMPLE_WIDTH_BYTES)
            file.setframerate(RATE_HZ)
            file.writeframes((np.clip(samples, -1, 1) * _PCM16_PEAK).astype("<i2").tobytes())
        (directory / f"{voice.name}.txt").write_text(voice.transcript + "\n", encoding="utf-8")
        (directory / f"{voice.name}.json").write_text(voice.profile, encoding="utf-8")
        logger.info("%s: %.2f s", voice.name, len(samples) / RATE_HZ)


def main(argv: Sequence[str] | None = None) -> int:
    """Make the voices; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m demo_voice.train.make_voices", description=__doc__)
    parser.add_argument("--out", type=Path, default=VOICES, help="default %(default)s")
    parser.add_argument("--engines", type=Path, help="unpacked engines (default: installed ones)")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    make_voices(args.out, Flite(args.engines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
