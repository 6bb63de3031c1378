"""Where a text may be cut, and how well: after a paragraph, a sentence, a clause, a word, or anywhere.

Reads a text from left to right in small chunks. What it says of a chunk depends on the text up to the first character
behind it (behind a number with a full stop: the first word), and on nothing later; so the answers are the same however
the text arrives. Knows nothing of the lengths wanted.

`SentenceRules` tell whether a full stop ends a sentence, by the abbreviations and habits of a language. `spoken_length`
is the unit of all bounds on segments: how long a text is when spoken, in letters of an alphabet.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import sentencex

from gateway.text.tags import InlineTags

# Source: Unicode's properties Sentence_Terminal and Terminal_Punctuation; differs in that only scripts in daily use
# are here. Narrow marks end something only with blank space behind them (3.14, 12:30, example.com), wide ones always.
NARROW_TERMINATORS = ".!?…։؟۔।॥၊။።፧៕‼⁇⁈⁉"
WIDE_TERMINATORS = "。！？｡．"
NARROW_CLAUSE_MARKS = ",;:،؛՝፣፤–"
WIDE_CLAUSE_MARKS = "，、；：､—…"
CLOSERS = "\"'”’»›)]}）］｝〉》」』】〕＂＇"
# German quotes close with the mark that opens English ones; French ones close behind a space.
_STRIPPED = CLOSERS + "“‘" + " \u00a0\u202f"
# What is before one of these belongs to it. Straight quotes and dashes are left out: they may open something.
_NO_BREAK_BEFORE = frozenset(
    NARROW_TERMINATORS + WIDE_TERMINATORS + NARROW_CLAUSE_MARKS + WIDE_CLAUSE_MARKS + CLOSERS
) - frozenset("\"'–—")
_PARAGRAPH_LINE_BREAKS = 2
_ZERO_WIDTH_JOINER = "\u200d"
_EMOJI_SKIN_TONES = range(0x1F3FB, 0x1F400)
_ANY_SENTENCE_START = "A"

# Bounds of a chunk's parts and of the look-ahead, in characters.
_MAX_BODY = 12
_MAX_JOINED = 20
_MAX_MARKS = 4
_MAX_SPACE = 16
_NEXT_WORD = re.compile(r"\w{1,16}")
_LONGEST_NEXT_WORD = 16

_RULES_OF_UNKNOWN_LANGUAGES = "en"
# Each of these is spoken as about three letters are: a syllable, or the word of a digit.
_SYLLABLE_OR_DIGIT = re.compile(
    "[0-9０-９々\u1100-\u11ff\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)
LONGEST_CHARACTER = 3
"""Spoken length of a digit, an ideograph, a kana or a Hangul syllable; every other character counts as one."""


def spoken_length(text: str) -> int:
    """Return the length of a text as spoken, in letters; never less than its characters."""
    return len(text) + (LONGEST_CHARACTER - 1) * len(_SYLLABLE_OR_DIGIT.findall(text))


class SentenceRules(Protocol):
    """What the search for breaks asks at each mark that may end a sentence."""

    def is_sentence_end(self, before: str, after: str) -> bool:
        """Tell whether a sentence ends between two pieces of text.

        Args:
            before: the text so far, ending with the mark; without tags and the quotes that close behind the mark.
            after: the first letter or digit behind it, or the first word.
        """
        ...


class SentencexRules:
    """Rules of some 300 languages, by the library sentencex; offline."""

    def __init__(self, language: str | None, guess_language: Callable[[str], str | None]) -> None:
        """Fix the language, or the way to guess it from the text before each mark.

        Args:
            language: primary subtag of BCP 47; None to guess.
            guess_language: pure; None from it means unknown.
        """
        self._language = language
        self._guess_language = guess_language
        self._guessed_of = ""
        self._guessed: str | None = None

    def is_sentence_end(self, before: str, after: str) -> bool:
        """See `SentenceRules`."""
        language = self._language or self._guess(before) or _RULES_OF_UNKNOWN_LANGUAGES
        last_sentence: str = sentencex.segment(language, f"{before} {after}")[-1]
        return last_sentence == after

    def _guess(self, before: str) -> str | None:
        """Guess the language, but not at every mark: an earlier guess holds until the text is twice as long."""
        is_known = before.startswith(self._guessed_of) and len(before) < 2 * len(self._guessed_of)
        if not is_known:
            self._guessed_of, self._guessed = before, self._guess_language(before)
        return self._guessed


class Strength(IntEnum):
    """How good a place to cut is."""

    ANYWHERE = 1
    """A place between two characters of one word, or before a mark that belongs to the word."""
    SPACE = 2
    CLAUSE = 3
    SENTENCE = 4
    PARAGRAPH = 5
    """A blank line, or the end of the text."""


@dataclass(frozen=True)
class Break:
    """A place to cut: behind the last character of a chunk, its blank space included."""

    end: int
    strength: Strength


class BreakFinder:
    """Finds the breaks of texts; has no state of its own.

    A chunk is one tag, or  `body  </tag>  marks  closers  </tag>  space`  with every part optional and bounded.
    """

    def __init__(self, rules: SentenceRules, tags: InlineTags) -> None:
        """Keep what tells the ends of sentences, and the tags, which are never cut."""
        self._rules = rules
        self.tags = tags
        wide, closers = re.escape(WIDE_TERMINATORS + WIDE_CLAUSE_MARKS), re.escape(CLOSERS)
        closing_tag = rf"(?:{tags.closing_pattern})?"
        self._chunk = re.compile(
            rf"(?:{tags.pattern})|(?:(?!{tags.pattern})[^\s{wide}]){{0,{_MAX_BODY}}}{closing_tag}"
            rf"[{wide}]{{0,{_MAX_MARKS}}}[{closers}]{{0,{_MAX_MARKS}}}{closing_tag}\s{{0,{_MAX_SPACE}}}"
        )

    @property
    def longest_chunk(self) -> int:
        """Spoken length that no chunk passes."""
        letters = LONGEST_CHARACTER * (_MAX_BODY + _MAX_JOINED)
        return letters + 2 * self.tags.longest_tag + 2 * _MAX_MARKS + _MAX_SPACE

    def next_break(self, text: str, at: int, *, is_complete: bool) -> Break | None:
        """Return the break that ends the chunk beginning at `at`.

        Args:
            text: from the beginning of the segment to as far as it is known.
            at: end of the chunk before; 0 for the first.
            is_complete: no more text follows.

        Returns:
            None if there is no further chunk, or more text is needed to know its end or what that is worth.
        """
        known = len(text) if is_complete else self.tags.unfinished_from(text)
        match = self._chunk.match(text, at, known)
        if match is None or match.end() == at:
            return None
        end = _joined_end(text, match.end(), known)
        if end < known:
            return self._judged(text, at, end, None if is_complete else known)
        return Break(end, Strength.PARAGRAPH) if is_complete else None

    def _judged(self, text: str, at: int, end: int, known: int | None) -> Break | None:
        """Judge the break at `end`, which has text behind it; `known` is None if that text is complete."""
        chunk = text[at:end]
        space = chunk[len(chunk.rstrip()) :]
        if space.count("\n") >= _PARAGRAPH_LINE_BREAKS:
            return Break(end, Strength.PARAGRAPH)
        if text[end] in _NO_BREAK_BEFORE:
            return Break(end, Strength.ANYWHERE)
        before = self.tags.removed(text[:end]).rstrip()
        bare = before.rstrip(_STRIPPED)
        if _ends_with(bare, WIDE_TERMINATORS) or (space and _ends_with(bare, NARROW_TERMINATORS)):
            after = _word_after(bare, text, end, known)
            if after is None:
                return None
            if (strength := self._terminator_strength(bare, after, is_quoted=len(bare) < len(before))) is not None:
                return Break(end, strength)
        if _ends_with(bare, WIDE_CLAUSE_MARKS) or (space and _ends_with(bare, NARROW_CLAUSE_MARKS)) or "\n" in space:
            return Break(end, Strength.CLAUSE)
        return Break(end, Strength.SPACE if space else Strength.ANYWHERE)

    def _terminator_strength(self, bare: str, after: str, *, is_quoted: bool) -> Strength | None:
        """Judge a mark that may end a sentence; None if it ends nothing."""
        if after[0].islower() and (is_quoted or bare.endswith(".")):
            return Strength.CLAUSE  # "Stop!" she said; approx. five
        return Strength.SENTENCE if self._rules.is_sentence_end(bare, after) else None


def _ends_with(text: str, marks: str) -> bool:
    return bool(text) and text[-1] in marks


def _word_after(bare: str, text: str, end: int, known: int | None) -> str | None:
    """Return what the sentence rules need of the text behind a mark; None if it may go on beyond what is known.

    The first character does, but for numbers: whether `5.` is an ordinal is told by the word behind it.
    """
    if not text[end].isalnum():
        return _ANY_SENTENCE_START
    if not (bare.endswith(".") and bare[:-1][-1:].isdigit()):
        return text[end]
    word = _NEXT_WORD.match(text, end, len(text) if known is None else known)
    if word is None:
        return text[end]
    is_cut_off = word.end() == known and len(word[0]) < _LONGEST_NEXT_WORD
    return None if is_cut_off else word[0]


def _joined_end(text: str, end: int, known: int) -> int:
    """Move an end out of a word, an accented letter or a joined emoji, as far as the bound allows."""
    limit = min(known, end + _MAX_JOINED)
    while 0 < end < limit and _belong_together(text[end - 1], text[end]):
        end += 1
    return end


def _belong_together(left: str, right: str) -> bool:
    if unicodedata.category(right).startswith("M") or _ZERO_WIDTH_JOINER in (left, right):
        return True
    return ord(right) in _EMOJI_SKIN_TONES or (_is_of_word(left) and _is_of_word(right))


def _is_of_word(character: str) -> bool:
    """Tell letters that are spelled into words, and digits, from syllables and ideographs."""
    return character.isdigit() or (character.isalnum() and spoken_length(character) == 1)
