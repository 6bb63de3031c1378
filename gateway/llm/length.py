"""Bounds the speech of a segment by its letters and the voice's own pace, so that a babbling LLM is ended soon. Pure.

    longest  = 40 + 1.5 * pace * (letters + what symbols, capitals, pauses and sounds add)
    long     = 24 + 1.5 * pace * (the same)
    usual    = 10 + pace * letters
    shortest = 0.5 * pace * letters that are not part of tags, symbols or pauses - 10
    sounding = min(0.55 * the prompt's sounding tokens over its own such letters, 1) * the same letters
    slowest  = 20 + pace * (letters + what symbols, capitals, pauses and sounds add)

The pace is that of the voice's prompt, in speech tokens (25 Hz) a letter. Measured on the bundled voices: of 180
held-out sentences that ended by themselves the longest took 0.79 of its bound, and of one-word texts `Yes.` took up to
40 of 63 tokens; of 25 texts without a full stop 23 babbled past it. Of 866 answers of `default`, whose prompt has 1.5
sounding tokens a letter, none has less than 1.19. Of 540 answers to held-out sentences and fragments in five voices,
by the silence in their audio, four that ended after some words have 0.64 to 0.68, the others 1.04 or more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import lru_cache

from gateway.text.breaks import spoken_length

_START_TOKENS = 40
"""Tokens added to `longest_speech`, 1.6 s: silence around a word, and the time of a word alone."""
_MARGIN = 1.5
_LEAST_SHARE = 0.5
_LEAST_SOUNDING_SHARE, _MOST_SOUNDING_ASKED = 0.55, 1.0
"""Of the prompt's sounding tokens a letter, the share that every answer has; and the most that is asked for, as a
transcript may lack some of what the prompt says."""
_LONG_TOKENS = 24
"""Tokens added to `SpeechLength.longest`. Of 264 segments of the bundled voice 262 took at most 0.7 of this bound;
two ran past it with words of their own."""
_SLOWEST_TOKENS = 20
_END_TOKENS = 10
"""Tokens of silence at both ends of a usual answer, 0.4 s."""
_SLOWEST, _FASTEST = 4.0, 1.25
"""Bounds of tokens a letter; a prompt outside has pauses or a wrong transcript."""
_RUSHED = 0.8
"""Fewest tokens a letter of anybody, 31 letters a second; a transcript with more belongs to another recording."""
_PROMPT_EDGE_TOKENS = 12
_SOUND = re.compile(r"\[[a-z_-]{1,20}\]")
_SOUND_LETTERS = 30
_SYMBOL = re.compile(r"[%$€£¥₩&@#+=/°<>^*~|\\§©®™×÷]")
_SYMBOL_LETTERS = 8
_SPELLED = re.compile(r"[A-Z]{2,}")
_SPELLED_LETTERS = 2
_PAUSE = re.compile(r"[.,;:!?…—–\n]+|[、。，；：！？]+")
_PAUSE_LETTERS = 6
_VOICES_KEPT = 64
"""Voices whose pace is kept: each segment asks for it."""


_SPOKEN = re.compile(r"\w")
_TAG = re.compile(r"<[^<>]*>")


@dataclass(frozen=True)
class SpeechLength:
    """Speech tokens (25 Hz) of one text."""

    shortest: int
    """Fewer tokens can't speak the text; 0 if unknown."""
    usual: int
    longest: int
    """More tokens speak something else. Below `longest_speech`, as a longer answer is asked for again, not lost."""
    least_sounding: int = 0
    """Fewer tokens that are no silence can't speak the text either; 0 if unknown."""
    slowest: int | None = None
    """An answer that ended by itself with more tokens has most likely said something twice; None if unknown. Of 541
    answers of the bundled voice in which a recogniser heard no word too much, two have more; of 59 with one, seven."""


def usual_speech(
    text: str, reference_text: str, reference_tokens: Sequence[int], silent_tokens: Set[int] = frozenset()
) -> SpeechLength:
    """Return how many speech tokens (25 Hz) saying a text takes.

    Args:
        text: see `longest_speech`, as for the prompt.
        silent_tokens: those of 6561 that sound as silence; empty: not known, so neither is what others there are, nor
            how evenly the voice speaks.
    """
    prompt = tuple(reference_tokens)
    pace = _pace(reference_text, prompt)
    letters = _spoken_letters(text)
    shortest = int(_LEAST_SHARE * pace * letters) - _END_TOKENS
    usual = int(_END_TOKENS + pace * spoken_length(text.strip()))
    sounding = int(_least_sounding(reference_text, prompt, frozenset(silent_tokens)) * letters)
    whole = pace * _letters(text)
    slowest = int(_SLOWEST_TOKENS + whole) if silent_tokens else None
    return SpeechLength(max(0, shortest), usual, int(_LONG_TOKENS + _MARGIN * whole), sounding, slowest)


def longest_speech(text: str, reference_text: str, reference_tokens: Sequence[int]) -> int:
    """Return the most speech tokens (25 Hz) that saying a text may take.

    Args:
        text: as the LLM gets it.
        reference_text: what the voice's prompt says; empty if unknown.
        reference_tokens: its speech tokens.
    """
    return int(_START_TOKENS + _MARGIN * _pace(reference_text, tuple(reference_tokens)) * _letters(text))


def speech_of_any_pace(text: str) -> tuple[int, int]:
    """Return the fewest and the most speech tokens (25 Hz) of a recording that says a text, whoever says it."""
    fewest = int(_RUSHED * _spoken_letters(text)) - _PROMPT_EDGE_TOKENS
    return max(fewest, 0), int(_SLOWEST * _letters(text)) + _PROMPT_EDGE_TOKENS


@lru_cache(maxsize=_VOICES_KEPT)
def _pace(reference_text: str, reference_tokens: tuple[int, ...]) -> float:
    letters = spoken_length(reference_text.strip())
    if not letters or not reference_tokens:
        return _SLOWEST / 2
    return min(max(len(reference_tokens) / letters, _FASTEST), _SLOWEST)


@lru_cache(maxsize=_VOICES_KEPT)
def _least_sounding(reference_text: str, reference_tokens: tuple[int, ...], silent_tokens: frozenset[int]) -> float:
    """Return the sounding tokens that a letter takes at least."""
    letters = _spoken_letters(reference_text)
    if not letters or not silent_tokens:
        return 0.0
    sounding = sum(token_id not in silent_tokens for token_id in reference_tokens)
    return min(_LEAST_SOUNDING_SHARE * sounding / letters, _MOST_SOUNDING_ASKED)


def _spoken_letters(text: str) -> float:
    """Return the letters of a text that are not part of tags, symbols or pauses."""
    return spoken_length("".join(_SPOKEN.findall(_SOUND.sub("", _TAG.sub("", text)))))


def _letters(text: str) -> float:
    """Return the letters of a text, with what takes longer to say than to write."""
    more = _SOUND_LETTERS * len(_SOUND.findall(text)) + _SYMBOL_LETTERS * len(_SYMBOL.findall(text))
    more += _SPELLED_LETTERS * sum(map(len, _SPELLED.findall(text))) + _PAUSE_LETTERS * len(_PAUSE.findall(text))
    return spoken_length(text.strip()) + more
