"""Turns the written forms of Chinese into words, by rules of our own alone.

written            WeText's grammar                 by the rules
5月2日             五月两日                         五月二日
10-20%             十月二日百分之零                 百分之十到百分之二十
COVID-19           COVID负十九                      COVID十九
验证码是482913     四十八万二千九百一十三           四八二九幺三
120次              幺二零次                         一百二十次

The order of the rules matters: the more a form says of itself, the earlier it is read. The last rules read any number.
"""

from __future__ import annotations

import re

from gateway.text.alignment import NormalizedText, align
from gateway.text.chinese import codes, dates, quantities
from gateway.text.rules import applied

_HAS_FORM = re.compile(r"\d|[½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞√²³^=≠≈≥≤÷×+]")
_RULES = (
    *quantities.SIGNS,
    *dates.DATES,
    *dates.TIMES,
    *codes.NETWORKS_AND_VERSIONS,
    *codes.TELEPHONES_AND_CODES,
    *quantities.MONEY,
    *quantities.SUMS,
    *codes.MODELS,
    *quantities.MINUS,
    *quantities.MEASURES,
    *quantities.NUMBERS,
)


def normalize_chinese(text: str) -> NormalizedText:
    """Normalise Chinese, without any library; see `Normalizer`."""
    spoken = chinese_forms(text)
    return NormalizedText(spoken, align(text, spoken))


def chinese_forms(text: str) -> str:
    """Return the text with the forms that the rules know in words.

    Args:
        text: at most a segment.
    """
    return applied(_RULES, text) if _HAS_FORM.search(text) else text
