"""The speakers of the corpus: flite's four American English voices at 16 kHz, and warped copies of three of them.

A warped copy is the voice played faster or slower, with its speaking rate put right beforehand: pitch and formants
move together, as they do between people of different size. It makes a prompt mean something: more speakers than the
engine has voices.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

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
"""Of the audio; the rest is shared evenly by the warped copies. rms is understood best, so it is heard most."""


def speaker_shares() -> list[float]:
    """Return each speaker's share of the corpus, in the order of SPEAKERS; they sum to 1."""
    warped = (1.0 - sum(_PLAIN_SHARES.values())) / (len(WARPED_VOICES) * len(WARPS))
    return [_PLAIN_SHARES[voice.base] if voice.warp == PLAIN else warped for voice in SPEAKERS]
