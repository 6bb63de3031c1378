"""Tells whether a mark ends a sentence, and what numbers an item of a list.

Of a list within running text: `1. Apples 2. Pears`, `a) stay b) go`, `• 9. ... • 10. ...`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import sentencex

from gateway.text.english.abbreviations import (
    ANYWHERE,
    BEFORE_NUMBERS,
    BEHIND_NAMES,
    INITIALS,
    STARTERS,
    STREET_WORDS,
    TITLES,
    begins_sentence,
    may_follow_time,
)

_RULES_OF_UNKNOWN_LANGUAGES = "en"
_WITH_ENGLISH_WORDS = ("en", "zh")
"""Languages in whose texts English abbreviations are."""
_LOUD = "!?"


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

    def is_sentence_end(self, before: str, after: str) -> bool:
        """Tell whether a sentence ends between two pieces of text.

        Args:
            before: the text so far, ending with the mark; without tags and the quotes that close behind the mark.
            after: the first letter or digit behind it; behind an abbreviation or a number, the first word.
        """
        language = self._language or self._guess(before) or _RULES_OF_UNKNOWN_LANGUAGES
        if language in _WITH_ENGLISH_WORDS:
            if before[-1] in _LOUD and before[-2:-1] in _LOUD and after[0].isupper():
                return True  # Really?! Yes.
            if (known := ends_sentence(before, after)) is not None:
                return known
        last_sentence: str = sentencex.segment(language, f"{before} {after}")[-1]
        return last_sentence == after

    def _guess(self, before: str) -> str | None:
        """Guess the language, but not at every mark: an earlier guess holds until the text is twice as long."""
        is_known = before.startswith(self._guessed_of) and len(before) < 2 * len(self._guessed_of)
        if not is_known:
            self._guessed_of, self._guessed = before, self._guess_language(before)
        return self._guessed


_DOTTED = frozenset(each.removesuffix(".") for each in ANYWHERE if each.endswith("."))
_NEVER_LAST = frozenset(
    {*TITLES, "dr", "mr", "mrs", "ms", "prof", "e.g", "E.g", "i.e", "I.e", "vs", "cf", "a.k.a", "approx", "Approx"}
    | {"incl", "excl", "Messrs", "attn", "Attn", "ca", "est"}
)
_DAYS_AND_MONTHS = frozenset("Mon Tue Tues Wed Thu Thur Thurs Fri Jan Feb Apr Jun Jul Aug Sep Sept Oct Nov Dec".split())
_MAY_BE_LAST = (
    frozenset({*BEHIND_NAMES, *STREET_WORDS, *INITIALS, "co", "inc", "ltd", "corp", "st", "ave", "blvd", "rd", "oz"})
    | {"lbs", "hr", "hrs", "mins", "secs", "yrs", "ft"}
    | (_DOTTED - _NEVER_LAST)
    | _DAYS_AND_MONTHS
)
_BEFORE_NUMBERS = frozenset(BEFORE_NUMBERS)
_TIMES = frozenset({"a.m", "p.m", "A.M", "P.M"})
_NUMBER_BEFORE = re.compile(r"[\d:.]{1,8} ?$")
_LAST_WORD = re.compile(r"(?P<name>\b[A-Z0-9][\w'’]*,? )?(?<![\w.])(?P<short>[\w.&]{1,12})\.$")
_REACH = 40
"""Characters before a stop that are looked at."""


def is_abbreviation(before: str) -> bool:
    """Tell whether the full stop at the end of a text is an abbreviation's, and maybe a sentence's, too."""
    found = _LAST_WORD.search(before[-_REACH:])
    if found is None:
        return False
    short = found["short"]
    return short in _NEVER_LAST or short in _MAY_BE_LAST or short in _TIMES or _is_initial(short)


def ends_sentence(before: str, after: str) -> bool | None:
    """Tell whether a sentence ends behind an abbreviation; None if it is none, or nobody can tell.

    Args:
        before: the text so far, ending with the mark.
        after: the first word behind it.
    """
    found = _LAST_WORD.search(before[-_REACH:])
    if found is None:
        return None
    short, begins = found["short"], after in STARTERS
    if short in _BEFORE_NUMBERS and after[0].isdigit():
        return False
    if _is_initial(short):
        return begins and after != "A"
    if short in _NEVER_LAST:
        # A street and a junior stand behind a name: on Elm St.
        return begins and found["name"] is not None and (short in STREET_WORDS or short in BEHIND_NAMES)
    if short == "etc":
        return after[0].isupper()
    if short in _TIMES:
        is_first = begins_sentence(_NUMBER_BEFORE.sub("", before[: -len(short) - 1]))
        return after[0].isupper() and not may_follow_time(after) and not is_first
    return begins if short in _MAY_BE_LAST else None


def _is_initial(short: str) -> bool:
    return len(short) == 1 and short.isupper()


_LIST_MARKER = re.compile(r"(?:(?<=\s)|^)(?P<bullet>[•⁃]\s?)?(?P<number>\d{1,2}|[a-z])(?P<style>\.\)|[.)])(?!\S|\s+\d)")
_BEFORE_FIRST = ":;.!?。：；！？\n"
"""What stands before the first item of a list, if anything does."""


@dataclass(frozen=True)
class ListMarker:
    """What numbers an item: `2.`"""

    start: int
    end: int
    bullet: str
    number: str
    style: str

    @property
    def following(self) -> str:
        """The marker of the next item."""
        last = self.number
        number = str(int(last) + 1) if last.isdecimal() else chr(ord(last) + 1)
        return f"{self.bullet}{number}{self.style}"


def list_markers(text: str) -> Iterator[ListMarker]:
    """Yield the markers of a list's items; a number with a full stop that has no place in a list is none.

    The one at the beginning may have any number, as a longer list may have been cut there. Elsewhere a list begins with
    1 or a, behind a mark; each further item counts on from the one before.
    """
    last: ListMarker | None = None
    for found in _LIST_MARKER.finditer(text):
        before = text[: found.start()].rstrip(" ")
        is_first = not before or (before[-1] in _BEFORE_FIRST and found["number"] in ("1", "a"))
        marker = ListMarker(found.start(), found.end(), found["bullet"] or "", found["number"], found["style"])
        if is_first or (last is not None and found[0] == last.following):
            last = marker
            yield marker
