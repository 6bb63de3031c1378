"""Who may speak the corpus: each choice's speakers, their shares of the audio, and the engine that speaks as them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from demo_voice.unpack import SIZES_FILE, BundleError
from lab.train.teachers import hibari
from lab.train.teachers.flite import SPEAKERS, Flite, Spoken, SynthesisError, speaker_shares

if TYPE_CHECKING:
    from lab.train.teachers.kokoro import Kokoro, KokoroSpeaker


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
    """Each speaker's share of the utterances that the engine speaks; they sum to 1. A speaker of share 0 has a stage of
    its own."""
    long_shares: Sequence[float]
    """The same of utterances that are long sentences."""
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


class HibariAndKokoro:
    """hibari's manners, then Kokoro's speakers; those are loaded when the first is asked for."""

    def __init__(self) -> None:
        """Load hibari."""
        self._hibari = hibari.HibariEngine()

    def speak(self, text: str, speaker: int) -> Spoken:
        """Speak a text as a manner of hibari's or a speaker of Kokoro's.

        Raises:
            SynthesisError: there is no word in the text, or a package is missing.
        """
        number = speaker - len(hibari.MANNERS)
        if number < 0:
            return self._hibari.speak(text, speaker)
        from lab.train.teachers import kokoro

        return self.speak_as(text, kokoro.SPEAKERS[number])

    def speak_as(self, text: str, speaker: KokoroSpeaker) -> Spoken:
        """Speak a text as any mixture of Kokoro's voices.

        Raises:
            SynthesisError: there is no word in the text, or a package is missing.
        """
        from lab.train.teachers import kokoro

        phonemes = _kokoro().known(" ".join(self._hibari.phonemes(text)))
        if not phonemes:
            raise SynthesisError(f"Kokoro has no phonemes for {text!r}; is there a word in it?")
        (made,) = _kokoro().speak([(phonemes, speaker)])
        return kokoro.spoken(phonemes, made)


@lru_cache(maxsize=1)
def _kokoro() -> Kokoro:
    import torch

    from lab.train.teachers.kokoro import Kokoro

    return Kokoro.load(torch.device("cuda" if torch.cuda.is_available() else "cpu"))


KOKORO_SPEAKERS = (
    *("kumo", "alpha", "gongitsune", "nezumi"),
    *("kumo_alpha", "kumo_gongitsune", "alpha_nezumi", "gongitsune_alpha"),
)
"""Names of `kokoro.SPEAKERS`; whoever speaks as others need not load torch."""
FLITE, HIBARI, MIXED = "flite", "hibari", "hibari+kokoro"
DEFAULT = MIXED
"""Who taught the bundled weights."""
_MANNERS = [manner.name for manner in hibari.MANNERS]
TEACHERS = {
    FLITE: Teachers([voice.name for voice in SPEAKERS], speaker_shares(), speaker_shares(), False, FliteEngine),
    HIBARI: Teachers(_MANNERS, hibari.SHARES, hibari.LONG_SHARES, True, lambda _: hibari.HibariEngine()),
    MIXED: Teachers(
        [*_MANNERS, *KOKORO_SPEAKERS],
        [*hibari.SHARES, *[0.0] * len(KOKORO_SPEAKERS)],
        [*hibari.LONG_SHARES, *[0.0] * len(KOKORO_SPEAKERS)],
        True,
        lambda _: HibariAndKokoro(),
    ),
}


def teachers_of(directory: Path) -> str:
    """Return who taught a bundle, or a checkpoint unpacked from one; the first teachers where it does not say.

    Raises:
        BundleError: its bundle.json can't be read.
    """
    path = directory / SIZES_FILE
    try:
        return str(json.loads(path.read_text("utf-8")).get("teachers", FLITE)) if path.is_file() else FLITE
    except (ValueError, AttributeError) as error:
        raise BundleError(f"{path} can't be read ({error!r})") from error
