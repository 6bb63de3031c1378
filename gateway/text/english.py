"""Puts right what WeText's English grammar is known to misread. Pure but for num2words.

written      the grammar alone                               with the repairs
1,234        thousand two hundred and thirty four            one thousand two hundred and thirty four
1000         ten hundred                                     one thousand
1005         ten zero five                                   one thousand and five
the 1990s    one thousand nine hundred and ninety seconds    nineteen nineties
No. 5        Number. five                                    number five
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gateway.text.numbers import NumberNormalizer

# Words alone, without capitals, abbreviations or contractions: the grammar takes milliseconds to change nothing.
_WORD = r"(?:[A-Z]?[a-z]{2,}|[AaI])"
_FULL_STOP = r"(?<=[a-z]{4})\."
_PLAIN = re.compile(rf"{_WORD}(?:(?:[,;?!]? |{_FULL_STOP} (?=[A-Z])){_WORD})*(?:{_FULL_STOP}|[?!])?")
_ABBREVIATIONS = re.compile(r"\b(?:prof|dept|corp|capt|approx|messrs|govt|assoc|univ|blvd|sept)\.", re.IGNORECASE)
# Standing alone: behind a currency or before a unit the grammar reads it well.
_FIRST_THOUSAND = re.compile(r"(?<![\w.,:/\-–$€£¥])100\d(?![\w%]|[.,:/\-–]\d)")
_DECADE = re.compile(r"(?<![\w.,])(?P<century>1[1-9]|20)(?P<decade>\d)0s(?!\w)")
_FIRST_DECADE = "2000s"
_DECADES = "hundreds tens twenties thirties forties fifties sixties seventies eighties nineties".split()
_NUMBER_ABBREVIATION = re.compile(r"(?<!\w)(?P<initial>[Nn])o\. (?=\d)")
_THOUSAND = re.compile(r"(?:(?P<multiplier>\w+) )?\bthousand\b")
_UNITS = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
_TENS = "eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred"
_MULTIPLIERS = frozenset(f"{_UNITS} {_TENS}".split())


class EnglishRepairs:
    """Reads English by a grammar, and writes out or mends what it misreads."""

    def __init__(self, grammar: Callable[[str], str]) -> None:
        """Keep the grammar and load English number words."""
        self._grammar = grammar
        self._numbers = NumberNormalizer("en")

    def read(self, text: str) -> str:
        """Return the text in words."""
        if _PLAIN.fullmatch(text) and not _ABBREVIATIONS.search(text):
            return text
        prepared = _FIRST_THOUSAND.sub(lambda match: self._words(int(match[0])), text)
        prepared = _DECADE.sub(self._decade, prepared)
        spoken = self._grammar(_NUMBER_ABBREVIATION.sub(r"\g<initial>umber ", prepared))
        return spoken if "thousand" in text else _THOUSAND.sub(_with_multiplier, spoken)

    def _decade(self, match: re.Match[str]) -> str:
        if match[0] == _FIRST_DECADE:
            return "two thousands"
        return f"{self._words(int(match['century']))} {_DECADES[int(match['decade'])]}"

    def _words(self, number: int) -> str:
        words = self._numbers.words(number)
        return str(number) if words is None else words.replace(",", "")


def _with_multiplier(match: re.Match[str]) -> str:
    multiplier = match["multiplier"]
    if multiplier is None:
        return "one thousand"
    return match[0] if multiplier in _MULTIPLIERS else f"{multiplier} one thousand"
