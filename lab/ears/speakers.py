"""Who is speaking: ranks voices by the likeness of speaker embeddings. Pure numpy; embeddings come from outside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True)
class SpeakerRanking:
    """How alike one utterance is to every voice."""

    spoken_in: str
    """The voice it was asked for."""
    similarity: Mapping[str, float]
    """Cosine to each voice's prompt."""

    @property
    def ranked_first(self) -> str:
        return max(sorted(self.similarity), key=lambda name: self.similarity[name])

    @property
    def is_right(self) -> bool:
        return self.ranked_first == self.spoken_in


def cosine(a: FloatArray, b: FloatArray) -> float:
    """Return the cosine of the angle between two vectors."""
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def rank_speakers(spoken_in: str, embedding: FloatArray, voices: Mapping[str, FloatArray]) -> SpeakerRanking:
    """Compare an utterance's embedding with the voices'.

    Args:
        spoken_in: name of the voice asked for.
        embedding: [192] of the utterance.
        voices: [192] of each voice's prompt.

    Raises:
        KeyError: the voice asked for is not among them.
    """
    if spoken_in not in voices:
        raise KeyError(f"got voice {spoken_in!r}, expected one of {sorted(voices)}")
    return SpeakerRanking(spoken_in, {name: cosine(embedding, voice) for name, voice in voices.items()})


def top1(rankings: list[SpeakerRanking]) -> float:
    """Return the share of utterances whose own voice is ranked first.

    Raises:
        ValueError: there are none.
    """
    if not rankings:
        raise ValueError("got no utterances, expected at least one")
    return sum(ranking.is_right for ranking in rankings) / len(rankings)
