"""Tells from the speech tokens of one answer whether its speech keeps to its text, and which of them may be spoken.

    tokens    [ given out to token2wav | held back        ]
                                       ^ from here on the text is spoken again where a trouble shows

What is given out and what is held back follows from the tokens alone, never from time, so that equal seeds give equal
speech. The first chunk is never held back. Pure: no services, no time, no audio.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from gateway.llm.length import SpeechLength
from llm_service.speech_bounds import SpeechBounds

LONG_FINISH = "length"


class GuardMode(str, Enum):
    """What the guard does."""

    OFF = "off"
    WARN = "warn"
    """It tells of troubles and changes nothing."""
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


@dataclass(frozen=True)
class GuardSettings:
    """How answers are guarded."""

    mode: GuardMode = GuardMode.OFF
    silent_tokens: frozenset[int] = frozenset()
    """The checkpoint's tokens (of 6561) that sound as silence; empty: not known, so the guard ignores silence."""
    redraws: int = 3
    """How often one segment is spoken again at most."""

    @classmethod
    def of_checkpoint(cls, mode: GuardMode, bounds: SpeechBounds) -> GuardSettings:
        """Return what suits a checkpoint: speech that follows no text is not held to one."""
        return cls(GuardMode.OFF if bounds.follows_text is False else mode, frozenset(bounds.silent_tokens or ()))


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


def held_tokens(position: int, free_tokens: int) -> int:
    """Return how many of the newest tokens are held back at a position in the stream.

    Args:
        position: tokens of the stream so far.
        free_tokens: in the first chunk, look-ahead included; they are never held back.
    """
    return min(MOST_HELD_TOKENS, max(0, position - free_tokens) // _HELD_DIVISOR)


# A word, or a character of a script that is written without blanks.
_WORD = re.compile("[^\\W\u3040-\U0003ffff]+|[\u3040-\U0003ffff]")


def repeats_in(text: str) -> int:
    """Return how often the text says its most frequent word."""
    return max(Counter(_WORD.findall(text.casefold())).values(), default=0)


@dataclass(frozen=True)
class Verdict:
    """A trouble, and up to where the answer is good."""

    trouble: Trouble
    good_tokens: int


class AnswerGuard:
    """Watches one answer, token by token."""

    def __init__(self, text: str, length: SpeechLength | None, silent_tokens: frozenset[int] = frozenset()) -> None:
        """Begin before the first token.

        Args:
            text: what is to be said, as the LLM gets it.
            length: the bounds of saying it; None: the text goes on.
            silent_tokens: see `GuardSettings`.
        """
        self._silent = silent_tokens
        self.grow(text, length)
        self._grams: dict[tuple[int, ...], list[int]] = {}
        self._silence = 0
        self.tokens: list[int] = []

    def grow(self, text: str, length: SpeechLength | None) -> None:
        """Go by more of the text; for the arguments see the begin.

        As long as the text goes on its length bounds nothing: the LLM has 15 tokens for 5 of the text, and no end.
        """
        self._length = length
        self._most_grams = max(LOOP_COUNT, 2 * repeats_in(text))

    def push(self, token_ids: Sequence[int]) -> Verdict | None:
        """Take the next tokens (0..6560); return the first trouble that they show."""
        first: Verdict | None = None
        for token_id in token_ids:
            self.tokens.append(token_id)
            verdict = self._silence_verdict(token_id) or self._loop_verdict() or self._length_verdict()
            first = first or verdict
        return first

    def end(self, finish_reason: str) -> Verdict | None:
        """Take the end (`stop` or `length`); return the trouble with it, if any."""
        if self._length is None:
            return None  # no room for the rest of the text, which is no fault of the speech
        if finish_reason == LONG_FINISH:
            return self._long(self._length)
        sounding = sum(token_id not in self._silent for token_id in self.tokens)
        if len(self.tokens) < self._length.shortest or sounding < self._length.least_sounding:
            return Verdict(Trouble.SHORT, len(self.tokens))
        slowest = self._length.slowest
        return None if slowest is None or len(self.tokens) <= slowest else Verdict(Trouble.LONG, len(self.tokens))

    def _silence_verdict(self, token_id: int) -> Verdict | None:
        self._silence = self._silence + 1 if token_id in self._silent else 0
        if self._silence <= SILENCE_TOKENS:
            return None
        return Verdict(Trouble.SILENCE, len(self.tokens) - self._silence + _KEPT_SILENCE_TOKENS)

    def _loop_verdict(self) -> Verdict | None:
        gram = tuple(self.tokens[-LOOP_GRAM_TOKENS:])
        if len(gram) < LOOP_GRAM_TOKENS or self._silence:
            return None
        found = self._grams.setdefault(gram, [])
        found.append(len(self.tokens))
        return Verdict(Trouble.LOOP, found[0]) if len(found) > self._most_grams else None

    def _length_verdict(self) -> Verdict | None:
        length = self._length
        return None if length is None or len(self.tokens) <= length.longest else self._long(length)

    def _long(self, length: SpeechLength) -> Verdict:
        """Judge an answer that did not end: most likely its text ends in the pause next to the usual length."""
        usual = min(length.usual, len(self.tokens))
        pauses = [at for at, token_id in enumerate(self.tokens) if token_id in self._silent]
        near = [at for at in pauses if usual <= at <= usual + SILENCE_TOKENS]
        return Verdict(Trouble.LONG, near[0] if near else usual)


class HeldAnswer:
    """Gives the tokens of one answer out as late as its listener allows."""

    def __init__(self, stream_tokens: int, free_tokens: int, usual_tokens: int | None) -> None:
        """Begin before the first token of the answer.

        Args:
            stream_tokens: given out before it in the stream.
            free_tokens: see `held_tokens`.
            usual_tokens: of such a text; what goes beyond, and beyond the first chunk, waits for the answer's end.
                None: the text goes on.
        """
        self._stream_tokens = stream_tokens
        self._free_tokens = free_tokens
        self.usual_tokens = usual_tokens
        self.given = 0

    def next_given(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Return the tokens that may be spoken now, of all tokens of the answer so far."""
        free = self._free(len(tokens))
        if self.usual_tokens is not None:
            free = min(free, max(self.usual_tokens, self._free_tokens - self._stream_tokens))
        return self._up_to(tokens, free)

    def waiting(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Return what may be spoken now that the LLM waits for text: all, if it makes a first chunk."""
        is_first = self._stream_tokens + len(tokens) < self._free_tokens
        return () if is_first else self._up_to(tokens, len(tokens))

    def rest(self, tokens: Sequence[int], end: int | None = None) -> tuple[int, ...]:
        """Return all that was not given out, up to `end` (all by default): the answer is over."""
        return self._up_to(tokens, len(tokens) if end is None else end)

    def _free(self, count: int) -> int:
        position = self._stream_tokens + count
        if position < self._free_tokens:
            return 0  # NOTE: the first chunk is not complete, so nothing waits for these
        return max(position - held_tokens(position, self._free_tokens), self._free_tokens) - self._stream_tokens

    def _up_to(self, tokens: Sequence[int], end: int) -> tuple[int, ...]:
        given, self.given = self.given, max(self.given, min(end, len(tokens)))
        return tuple(tokens[given : self.given])
