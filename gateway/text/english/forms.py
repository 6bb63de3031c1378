"""Turns the written forms of English into words that the grammar misreads or can't read; the rest stays for it.

written            the grammar alone               by the rules
24/7               twenty four sevenths            twenty four seven
$3.50              three point five dollars        three dollars and fifty cents
5:45 p.m.          five forty five PM              five forty five PM.
on Ocean Dr.       on Ocean doctor                 on Ocean Drive.
Henry VIII         Henry VIII                      Henry the eighth

The order of the rules matters: the more a form says of itself, the earlier it is read. Pure but for num2words.
"""

from __future__ import annotations

import re

from gateway.text.english import abbreviations, codes, dates, quantities
from gateway.text.english.words import applied

_HAS_NUMBER = re.compile(r"[\d½¼¾⅓⅔⅛⅜⅝⅞⅕⅖⅗⅘⅙⅚²³]")
_MAY_BE_SHORT = re.compile(r"\w[./]|[IVX]\b|\b(?:vs|aka|ext|Ctrl|[ivx]+)\b")
_MAY_BE_RANGE = re.compile(r"[a-z][-–][MTWFSJAOND]")
_MAY_BE_SUM = re.compile(r"[=+÷≠^]")

_BEFORE_NUMBERS = (*abbreviations.STREETS, *abbreviations.ABBREVIATIONS, *abbreviations.ROMAN_NUMERALS)
_NUMBERS = (
    *quantities.SPECIAL_FRACTIONS,
    *dates.TIMES,
    *dates.DATES,
    *codes.NETWORKS_AND_VERSIONS,
    *codes.TELEPHONES_AND_CODES,
    *codes.CALLED_IN_PAIRS,
    *quantities.RANGES,
    *quantities.SIGNS,
    *quantities.AMOUNTS,
    *quantities.FRACTIONS,
    *quantities.NUMBERS,
)


def english_forms(text: str) -> str:
    """Return the text with the forms that the rules know in words.

    Args:
        text: at most a segment.
    """
    has_number = _HAS_NUMBER.search(text) is not None
    if has_number or _MAY_BE_SHORT.search(text):
        text = applied(_BEFORE_NUMBERS, text)
    if not has_number and _MAY_BE_RANGE.search(text):
        text = applied(dates.DATES, text)
    if has_number:
        return applied(_NUMBERS, text)
    return applied(quantities.SIGNS, text) if _MAY_BE_SUM.search(text) else text
