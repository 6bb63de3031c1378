"""Puts right what WeText's English grammar is known to misread. Pure.

written      the grammar alone                               with the repairs
1,234        thousand two hundred and thirty four            one thousand two hundred and thirty four
1000         ten hundred                                     one thousand
"""

from __future__ import annotations

import re
from collections.abc import Callable

# Words alone, without abbreviations: the grammar takes milliseconds to change nothing.
_WORD = r"(?:[A-Z]?[a-z]+(?:['’-][A-Za-z]?[a-z]*)*|[AI])"
_FULL_STOP = r"(?<=[a-z]{4})\."
_PLAIN = re.compile(rf"{_WORD}(?:(?:[,;:?!]? |{_FULL_STOP} (?=[A-Z])){_WORD})*(?:{_FULL_STOP}|[?!,;:])?")
_SHORT = re.compile(
    r"\b(?:prof|dept|corp|capt|approx|messrs|govt|assoc|univ|blvd|sept)\."
    r"|\b(?:mon|tues?|wed|thurs?|fri|sat|sun|dr|mr|mrs|ms|st|jr|sr|vs|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec)\b",
    re.IGNORECASE,
)
_THOUSAND = re.compile(r"(?:(?P<multiplier>\w+) )?\bthousand\b")
_UNITS = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
_TENS = "eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred"
_MULTIPLIERS = frozenset(f"{_UNITS} {_TENS}".split())


def read_english(grammar: Callable[[str], str]) -> Callable[[str], str]:
    """Return a reader of English by the grammar, with its mistakes mended."""

    def read(text: str) -> str:
        if _PLAIN.fullmatch(text) and not _SHORT.search(text):
            return text
        spoken = grammar(text)
        return spoken if "thousand" in text else _THOUSAND.sub(_with_multiplier, spoken)

    return read


def _with_multiplier(match: re.Match[str]) -> str:
    multiplier = match["multiplier"]
    if multiplier is None:
        return "one thousand"
    return match[0] if multiplier in _MULTIPLIERS else f"{multiplier} one thousand"
