"""How long a text is when spoken, in letters of an alphabet: the unit of all bounds on segments. Pure."""

from __future__ import annotations

import re

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
