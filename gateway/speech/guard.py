"""Tells from the speech tokens of one answer whether its speech keeps to its text, and which of them may be spoken.

    tokens    [ given out to token2wav | held back        ]
                                       ^ from here on the text is spoken again where a trouble shows

Both follow from the tokens alone, never from time, so that equal seeds give equal speech. The first chunk is never held
back. Pure: no services, no time, no audio.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from gateway.llm.length import SpeechLength
from gateway.speech.letter_times import SpokenWords
from llm_service.aligner import Aligner
from llm_service.speech_bounds import SpeechBounds

LONG_FINISH = "length"


class GuardMode(str, Enum):
    """What the guard does."""

    OFF = "off"
    MEND = "mend"
    """It has what was not spoken yet spoken again."""


class Trouble(str, Enum):
    """How speech leaves its text."""

    LOOP = "loop"
    """The same sounds come again and again."""
    SILENCE = "silence"
    """It is silent for longer than any pause."""
    SHORT = "short"
    """It ends before the text can have been said."""
    LONG = "long"
    """It goes on when the text must have been said."""
    WORD = "word"
    """It leaves out a word, or says another one."""


@dataclass(frozen=True)
class GuardSettings:
    """How answers are guarded."""

    mode: GuardMode = GuardMode.OFF
    silent_tokens: frozenset[int] = frozenset()
    """The checkpoint's tokens (of 6561) that sound as silence; empty: not known, so the guard ignores silence."""
    redraws: int = 3
    """How often one segment is spoken again at most."""
    aligner: Aligner | None = None
    """The checkpoint's; None: no word is missed."""

    @classmethod
    def of_checkpoint(cls, mode: GuardMode, bounds: SpeechBounds, aligner: Aligner | None) -> GuardSettings:
        """Return what suits a checkpoint: speech that follows no text is not held to one."""
        suits = GuardMode.OFF if bounds.follows_text is False else mode
        return cls(suits, frozenset(bounds.silent_tokens or ()), aligner=aligner)


LOOP_GRAM_TOKENS = 4
"""160 ms. Two draws of one word are hardly ever equal for so long, even where the text repeats it."""
LOOP_COUNT = 4
"""More equal grams are a loop, unless the text itself says a word again and again."""
SILENCE_TOKENS = 40
"""1.6 s: longer than a pause between sentences."""
_KEPT_SILENCE_TOKENS = 8
MOST_HELD_TOKENS = 75
"""3 s: below the 5 s that our own LLM engine runs ahead of a listener."""
_HELD_DIVISOR = 3
"""An LLM a third faster than speech is far enough ahead after n tokens to have n / 3 of them held back."""
# A word, or a character of a script that is written without blanks.
_WORD = re.compile("[^\\W\u3040-\U0003ffff]+|[\u3040-\U0003ffff]")


def free_tokens(position: int, first_chunk: int) -> int:
    """Return how many of the tokens of a stream, `position` so far, may be spoken; a first chunk, once it is whole."""
    if position < first_chunk:
        return 0
    return position - min(MOST_HELD_TOKENS, (position - first_chunk) // _HELD_DIVISOR)


def repeats_in(text: str) -> int:
    """Return how often the text says its most frequent word."""
    return max(Counter(_WORD.findall(text.casefold())).values(), default=0)


@dataclass(frozen=True)
class TroubleFound:
    """A trouble, and up to where the answer is good."""

    trouble: Trouble
    good_tokens: int


class AnswerGuard:
    """Watches one answer, token by token."""

    def __init__(
        self, text: str, length: SpeechLength | None, settings: GuardSettings, kept: Sequence[int] = ()
    ) -> None:
        """Begin.

        Args:
            text: all that is to be said, as far as it is known, as the LLM gets it.
            length: the bounds of saying it; None: the text goes on, and bounds nothing.
            settings: how to judge.
            kept: tokens of an answer before that were given out; this one goes on behind them.
        """
        self._silent = settings.silent_tokens
        aligner = None if length is None else settings.aligner
        self._words = None if aligner is None else SpokenWords(aligner, text)
        self.grow(text, length)
        self._grams: dict[tuple[int, ...], list[int]] = {}
        self._silence = 0
        self.tokens: list[int] = []
        self.given = len(kept)
        """Tokens given out; no word among them is judged."""
        for token_id in kept:
            self.push(token_id)

    def grow(self, text: str, length: SpeechLength | None) -> None:
        """Go by more of the text; see the begin."""
        self.length = length
        self._most_grams = max(LOOP_COUNT, 2 * repeats_in(text))

    def push(self, token_id: int) -> TroubleFound | None:
        """Take the next token (0..6560); return the trouble that it shows, if any."""
        self.tokens.append(token_id)
        return self._silence_verdict(token_id) or self._loop_verdict() or self._length_verdict() or self._missed(False)

    def end(self, finish_reason: str) -> TroubleFound | None:
        """Take the end (`stop` or `length`); return the trouble with it, if any."""
        if self.length is None:
            return None  # no room for the rest of the text, which is no fault of the speech
        if finish_reason == LONG_FINISH:
            return self._long(self.length)
        count, sounding = len(self.tokens), sum(token_id not in self._silent for token_id in self.tokens)
        if count < self.length.shortest or sounding < self.length.least_sounding:
            return TroubleFound(Trouble.SHORT, count)
        slowest = self.length.slowest
        return TroubleFound(Trouble.LONG, count) if slowest is not None and count > slowest else self._missed(True)

    def _silence_verdict(self, token_id: int) -> TroubleFound | None:
        self._silence = self._silence + 1 if token_id in self._silent else 0
        if self._silence <= SILENCE_TOKENS:
            return None
        return TroubleFound(Trouble.SILENCE, len(self.tokens) - self._silence + _KEPT_SILENCE_TOKENS)

    def _loop_verdict(self) -> TroubleFound | None:
        gram = tuple(self.tokens[-LOOP_GRAM_TOKENS:])
        if len(gram) < LOOP_GRAM_TOKENS or self._silence:
            return None
        found = self._grams.setdefault(gram, [])
        found.append(len(self.tokens))
        return TroubleFound(Trouble.LOOP, found[0]) if len(found) > self._most_grams else None

    def _length_verdict(self) -> TroubleFound | None:
        length = self.length
        return None if length is None or len(self.tokens) <= length.longest else self._long(length)

    def _long(self, length: SpeechLength) -> TroubleFound:
        """Judge an answer that did not end: most likely its text ends in the pause next to the usual length."""
        usual = min(length.usual, len(self.tokens))
        pauses = (at for at in range(usual, len(self.tokens)) if self.tokens[at] in self._silent)
        end = next(pauses, usual)
        return TroubleFound(Trouble.LONG, end if end <= usual + SILENCE_TOKENS else usual)

    def _missed(self, is_over: bool) -> TroubleFound | None:
        missed = None if self._words is None else self._words.missed(self.tokens, self.given, is_over)
        return None if missed is None else TroubleFound(Trouble.WORD, missed)
