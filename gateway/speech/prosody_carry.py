"""What the next segment needs of those before it, so that its voice goes on where theirs stopped. Pure.

The LLM continues from a text and the speech tokens of that text (the voice prompt's, as a rule). Put behind them, the
text and tokens of the segments just spoken let it continue the prosody too:

    sos | voice's transcript, carried text, new text | task_id | voice's tokens, carried tokens  ->  new tokens
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.core import Utterance
from gateway.text.breaks import spoken_length
from llm_service.speech_bounds import SpeechBounds


@dataclass(frozen=True)
class CarryLimits:
    """How much is carried; 0 tokens carries nothing."""

    max_speech_tokens: int = 500
    """Most speech tokens carried, 25 a second: 20 s, so that a usual segment fits. Each takes a position of the LLM's
    input."""
    max_text_characters: int = 480
    max_letters: int | None = None
    """Most letters as spoken that are carried and spoken anew together; None: any number."""

    @classmethod
    def within(cls, bounds: SpeechBounds) -> CarryLimits:
        """Return the limits for an LLM that keeps to bounds."""
        tokens = cls.max_speech_tokens if bounds.carry_tokens is None else bounds.carry_tokens
        return cls(tokens, max_letters=bounds.segment_letters)


@dataclass(frozen=True)
class SpokenPart:
    """A segment that has been spoken to its end."""

    text: str
    """The text that the LLM got."""
    speech_tokens: tuple[int, ...]
    """All speech tokens of the LLM's answer, 0..6560."""


@dataclass(frozen=True)
class ProsodyCarry:
    """The latest segments spoken in one voice, as far as the limits allow.

    Text and tokens must tell of the same speech, and which token speaks which letter is not known; so segments are
    carried whole or not at all. A new voice begins with a new carry.
    """

    limits: CarryLimits = CarryLimits()
    parts: tuple[SpokenPart, ...] = ()
    """Segments spoken, oldest first."""
    instruction: str = ""
    """Instruction that the LLM got with these segments."""

    @property
    def text(self) -> str:
        """What the carried tokens say."""
        return "".join(part.text for part in self.parts)

    @property
    def speech_tokens(self) -> tuple[int, ...]:
        """Speech tokens 0..6560."""
        return tuple(token for part in self.parts for token in part.speech_tokens)

    def after(self, text: str, speech_tokens: Sequence[int]) -> ProsodyCarry:
        """Return the carry for the segment behind one that was spoken to its natural end.

        Drops the oldest segments beyond the limits, and all of them if the new one alone passes a limit: older speech
        without the newest would break the thread. A segment cut short by a cancel or by the bound of its length must
        not be given here, for its tokens say less than its text; go on with a new carry instead.
        """
        kept = [*self.parts, SpokenPart(text, tuple(speech_tokens))]
        while kept and not self._fits(kept):
            kept.pop(0)
        return replace(self, parts=tuple(kept))

    def under(self, instruction: str) -> ProsodyCarry:
        """Return the carry for a segment with an instruction; speech under another one is not gone on from."""
        return self if instruction == self.instruction else ProsodyCarry(self.limits, instruction=instruction)

    def continued(self, utterance: Utterance) -> Utterance:
        """Return an utterance that goes on from the carried speech, or from as much of it as leaves room for its text.

        Args:
            utterance: the new text with the voice's own transcript and tokens.
        """
        fitting = self._beside(utterance.text)
        return replace(
            utterance,
            reference_text=utterance.reference_text + fitting.text,
            reference_tokens=utterance.reference_tokens + fitting.speech_tokens,
        )

    def _beside(self, text: str) -> ProsodyCarry:
        most, first = self.limits.max_letters, 0
        while most is not None and first < len(self.parts):
            carried = "".join(part.text for part in self.parts[first:])
            if spoken_length(carried + text) <= most:
                break
            first += 1
        return replace(self, parts=self.parts[first:])

    def _fits(self, parts: Sequence[SpokenPart]) -> bool:
        tokens = sum(len(part.speech_tokens) for part in parts)
        characters = sum(len(part.text) for part in parts)
        return tokens <= self.limits.max_speech_tokens and characters <= self.limits.max_text_characters
