"""Tells whether a mark ends a sentence, by the abbreviations and habits of a language."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import sentencex

from gateway.text.english.stops import ends_sentence, is_abbreviation

_ENGLISH = "en"
_RULES_OF_UNKNOWN_LANGUAGES = _ENGLISH
_LOUD = "!?"


class SentenceRules(Protocol):
    """What the search for breaks asks at each mark that may end a sentence."""

    def is_abbreviation(self, before: str) -> bool:
        """Tell whether a full stop is an abbreviation's; then the word behind it tells whether a sentence ends, too."""
        ...

    def is_sentence_end(self, before: str, after: str) -> bool:
        """Tell whether a sentence ends between two pieces of text.

        Args:
            before: the text so far, ending with the mark; without tags and the quotes that close behind the mark.
            after: the first letter or digit behind it; behind an abbreviation or a number, the first word.
        """
        ...


class SentencexRules:
    """Rules of some 300 languages, by the library sentencex, and our own for English abbreviations; offline."""

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

    def is_abbreviation(self, before: str) -> bool:
        """See `SentenceRules`."""
        return is_abbreviation(before)

    def is_sentence_end(self, before: str, after: str) -> bool:
        """See `SentenceRules`."""
        language = self._language or self._guess(before) or _RULES_OF_UNKNOWN_LANGUAGES
        if language == _ENGLISH and (known := self._english(before, after)) is not None:
            return known
        last_sentence: str = sentencex.segment(language, f"{before} {after}")[-1]
        return last_sentence == after

    def _english(self, before: str, after: str) -> bool | None:
        if before[-1] in _LOUD and before[-2:-1] in _LOUD and after[0].isupper():
            return True  # Really?! Yes.
        return ends_sentence(before, after)

    def _guess(self, before: str) -> str | None:
        """Guess the language, but not at every mark: an earlier guess holds until the text is twice as long."""
        is_known = before.startswith(self._guessed_of) and len(before) < 2 * len(self._guessed_of)
        if not is_known:
            self._guessed_of, self._guessed = before, self._guess_language(before)
        return self._guessed
