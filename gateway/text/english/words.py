"""English words of numbers, by num2words: cardinals, ordinals, years, digits and the pairs that numbers are called by.

Plain words: no commas, no hyphens. All functions are pure; the library is loaded with the first call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from gateway.text.normalization.numbers import NumberNormalizer

_MOST_DIGITS = 33
_DIGIT_WORDS = "zero one two three four five six seven eight nine".split()
_FIRST_OF_MILLENNIUM = range(2000, 2010)
_HUNDRED = 100


NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d{1,15})(?:\.\d{1,9})?"
"""A number with or without group commas and decimals, as a pattern."""
START = r"(?<![\w.,:/$€£₹-])"
"""Where a number that is no part of something longer begins, as a pattern."""


def any_of(words: Iterable[str]) -> str:
    """Return the alternatives of a pattern, the longest first."""
    return "|".join(sorted(map(re.escape, words), key=len, reverse=True))


@lru_cache(maxsize=1)
def _library() -> NumberNormalizer:
    return NumberNormalizer("en")


def _plain(words: str) -> str:
    return words.replace(",", "").replace("-", " ")


def cardinal(written: str | int) -> str:
    """Return the words of a whole number or a decimal, group commas allowed; digits one by one if it is too long."""
    whole, _, fraction = str(written).replace(",", "").partition(".")
    if len(whole) > _MOST_DIGITS:
        spoken = digits(whole)
    else:
        spoken = _plain(_library().words(int(whole)) or digits(whole)) if whole else ""
    return f"{spoken} point {digits(fraction)}".strip() if fraction else spoken


def ordinal(number: int) -> str:
    """Return `twenty first` for 21."""
    return _plain(_library().words(number, "ordinal") or str(number))


def year(number: int) -> str:
    """Return a year as it is called: nineteen eighty four, two thousand five, twenty twenty four."""
    if number in _FIRST_OF_MILLENNIUM:
        return cardinal(number - number % _HUNDRED) + (f" {cardinal(number % 10)}" if number % 10 else "")
    return pairs(str(number))


def digits(written: str, zero: str = "zero") -> str:
    """Return the digits one by one; other characters are left out."""
    names = [zero, *_DIGIT_WORDS[1:]]
    return " ".join(names[int(digit)] for digit in written if digit.isdecimal())


def groups(written: str) -> str:
    """Return long runs of digits one by one, with a short pause after every three: one two three, four five six."""
    found = [written[at : at + 3] for at in range(0, len(written), 3)]
    if len(found) > 1 and len(found[-1]) == 1:
        found[-2:] = [found[-2] + found[-1]]
    return ", ".join(map(digits, found))


def pairs(written: str) -> str:
    """Return a number of two to four digits as rooms, flights and years are called: one oh one, fifteen forty nine."""
    if len(written) <= 2:
        return cardinal(written)
    first, last = written[:-2], written[-2:]
    if last == "00":
        return cardinal(written) if first[-1] == "0" else f"{cardinal(first)} hundred"
    return f"{cardinal(first)} {two_digits(last)}"


def two_digits(written: str) -> str:
    """Return `oh five` for 05, `forty five` for 45."""
    return f"oh {digits(written[1])}" if written[0] == "0" else cardinal(written)


def plural(noun: str) -> str:
    """Return the regular plural of a noun."""
    return f"{noun}es" if noun.endswith(("ch", "s", "x")) else f"{noun}s"
