"""Who may speak the corpus: each choice's speakers, their shares of the audio, and the engine that speaks as them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from demo_voice.train import hibari
from demo_voice.train.flite import SPEAKERS, Flite, Spoken, speaker_shares


class Engine(Protocol):
    """Anything that speaks."""

    def speak(self, text: str, speaker: int) -> Spoken:
        """Speak a text as one of the choice's speakers.

        Raises:
            SynthesisError: it could not.
        """
        ...


@dataclass(frozen=True)
class Teachers:
    """One choice of teachers."""

    speakers: Sequence[str]
    """Class i of the speaker encoder is speakers[i]."""
    shares: Sequence[float]
    """Each speaker's share of the utterances; they sum to 1."""
    is_varied: bool
    """Whether the texts also have fragments, dialogue, lists and long sentences."""
    open: Callable[[Path | None], Engine]
    """Makes the engine, given the folder of unpacked engines or None for installed ones."""


class FliteEngine:
    """flite, by the number of the speaker."""

    def __init__(self, root: Path | None) -> None:
        """Find the program in `root`, or the installed one."""
        self._flite = Flite(root)

    def speak(self, text: str, speaker: int) -> Spoken:
        """Speak a text as `SPEAKERS[speaker]`.

        Raises:
            SynthesisError: the program is missing or failed.
        """
        return self._flite.speak(text, SPEAKERS[speaker])


DEFAULT = "flite"
TEACHERS = {
    DEFAULT: Teachers([voice.name for voice in SPEAKERS], speaker_shares(), False, FliteEngine),
    "hibari": Teachers(
        [manner.name for manner in hibari.MANNERS], hibari.SHARES, True, lambda _: hibari.HibariEngine()
    ),
}
