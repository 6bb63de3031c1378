"""Writes numbers out in over thirty languages, by the library num2words; offline.

Deliberately shy: only whole numbers and decimals that stand alone, written as the language writes them. Signs, money,
percentages, dates, times, versions and ordinals stay as they are, for a wrong word is worse than a digit, which the
model can read too. Korean is left out: which of its two sets of numerals is right depends on what is counted.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from gateway.text.alignment import NormalizedText, replaced, unchanged
from gateway.text.rules import noted

_NARROW_SPACES = "\u00a0\u202f"
_MAX_DIGITS = 15
_YEARS = range(1100, 2000)
_DIGIT = re.compile(r"\d")
# Characters that, directly before or behind a number, make it part of something else.
_CURRENCIES = "$€£¥₽₴₹₺₫%‰°"
_NOT_BEFORE = rf"(?<![\w.,:/+\-−–@#{_CURRENCIES}])(?<!\d['’])(?<![{_CURRENCIES}]\s)"
_NOT_BEHIND = rf"(?![\w²³]|[.,:/\-−–+'’]\w|\s?[{_CURRENCIES}])"
_NOT_ORDINAL = r"(?!\.\s+\w)"
# The library's converters store the current number's precision in themselves.
_library_lock = threading.Lock()


@dataclass(frozen=True)
class NumberStyle:
    """How a language writes numbers."""

    decimal_mark: str
    group_marks: str
    has_dotted_ordinals: bool = False
    """Whether `5.` may mean fifth."""
    has_year_words: bool = False
    """Whether years are read in pairs: 1984 is nineteen hundred and eighty-four, or the like."""


_POINT = NumberStyle(".", ",")
_COMMA = NumberStyle(",", ". " + _NARROW_SPACES)
_COMMA_ORDINAL = NumberStyle(",", ". " + _NARROW_SPACES, has_dotted_ordinals=True)
_SWISS = NumberStyle(",", "' " + _NARROW_SPACES)

NUMBER_STYLES: Mapping[str, NumberStyle] = {
    **dict.fromkeys(("ja", "th", "he"), _POINT),
    "en": NumberStyle(".", ",", has_year_words=True),
    "de": NumberStyle(",", ". " + _NARROW_SPACES, has_dotted_ordinals=True, has_year_words=True),
    **dict.fromkeys(("fr", "es", "it", "pt", "pt-br", "nl", "ru", "uk", "ro", "sv", "ca", "vi", "id", "eo"), _COMMA),
    "fr-be": _COMMA,
    "fr-ch": _SWISS,
    **dict.fromkeys(("pl", "cs", "sk", "sl", "sr", "da", "no", "fi", "hu", "tr", "lt", "lv", "is"), _COMMA_ORDINAL),
}
"""Styles by BCP 47 tag in lower case. Source: Unicode CLDR's number symbols; differs in that ordinary spaces group
too."""


class NumberNormalizer:
    """Writes out the numbers of one language."""

    def __init__(self, language: str) -> None:
        """Load the language's rules.

        Args:
            language: a key of `NUMBER_STYLES`.
        """
        from num2words import num2words

        self._num2words = num2words
        self._style = NUMBER_STYLES[language]
        self._library_name = _library_name(language)
        self._number = _number_pattern(self._style)

    def normalize(self, text: str) -> NormalizedText:
        """See `Normalizer`."""
        if not _DIGIT.search(text):
            return unchanged(text)
        found = [(*match.span(), self._spoken(match)) for match in self._number.finditer(text)]
        normalized = replaced(text, [(start, end, words) for start, end, words in found if words is not None])
        noted("numbers", text, normalized.text)
        return normalized

    def words(self, number: int | Decimal, form: str = "cardinal") -> str | None:
        """Return a number's words; None if the library has none.

        Args:
            number: at least 0.
            form: `cardinal`, `ordinal` or `year`.
        """
        with _library_lock:
            try:
                words: str = self._num2words(number, lang=self._library_name, to=form)
            except (ArithmeticError, LookupError, NotImplementedError, TypeError, ValueError):
                return None
        return words

    def _spoken(self, match: re.Match[str]) -> str | None:
        whole, fraction = match["whole"], match["fraction"]
        if whole.isdigit() and fraction is None and self._style.has_year_words and int(whole) in _YEARS:
            return self.words(int(whole), "year")
        digits = "".join(filter(str.isdigit, whole))
        if len(digits) > _MAX_DIGITS or (len(digits) > 1 and digits.startswith("0")):
            return None
        return self.words(int(digits) if fraction is None else Decimal(f"{digits}.{fraction}"))


def _number_pattern(style: NumberStyle) -> re.Pattern[str]:
    groups, decimal_mark = re.escape(style.group_marks), re.escape(style.decimal_mark)
    whole = rf"(?P<whole>\d{{1,3}}(?:[{groups}]\d{{3}})+|\d{{1,{_MAX_DIGITS}}})"
    fraction = rf"(?:{decimal_mark}(?P<fraction>\d{{1,6}}))?"
    not_ordinal = _NOT_ORDINAL if style.has_dotted_ordinals else ""
    return re.compile(_NOT_BEFORE + whole + fraction + _NOT_BEHIND + not_ordinal)


def _library_name(language: str) -> str:
    primary, _, region = language.partition("-")
    return f"{primary}_{region.upper()}" if region else primary
