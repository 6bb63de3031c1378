"""Tells whether an abbreviation with a full stop ends its sentence: `in the U.S. However, ...`, `the U.S. Government`.

Both those who write abbreviations out and those who cut the text ask here. Pure; tables only.
"""

from __future__ import annotations

import re

STARTERS = frozenset(
    (
        "A About After All Also Although An And Another Any Are As At Because Before Both But By Can Could Did Do Does "
        "Don During Each Either Every Everyone Few Finally First For From Furthermore Given Had Has Have He Hence Her "
        "Here His How However I If In Indeed Instead Is It Its Just Last Later Let Many Maybe Meanwhile More Moreover "
        "Most Much My Neither Next No Nobody None Nor Not Nothing Now Of Often On Once One Only Or Other Others Our "
        "Perhaps Please Several She Should Since So Some Someone Sometimes Soon Still Such Suddenly Thanks That The "
        "Their Then There Therefore These They This Those Though Thus To Today Together Tomorrow Under Unfortunately "
        "Unless Until Was We Were What When Where Whether Which While Who Whose Why Will With Within Without Would Yes "
        "Yesterday Yet You Your"
    ).split()
)
"""Words that begin a sentence if a capital follows an abbreviation; any other capital may be a name's."""
_NO_STARTERS = frozenset(
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday Eastern Central Mountain Pacific".split()
)
_CLOSERS = "\"'”’)]"
_NEXT_WORD = re.compile(rf"[{re.escape(_CLOSERS)}]{{0,3}}\s+[\"'“‘(]?(?P<word>[A-Z][a-z]*)(?![A-Za-z])")
_CLOSED = re.compile(rf"[{re.escape(_CLOSERS)}]{{1,3}}\s")
_FIRST_WORDS = re.compile(
    r"(?:^|[.!?…]\s+)\W{0,3}(?:(?:At|By|Around|About|Before|After|Until|Till|Since|From|Near) )?$"
)
_REACH = 40
"""Characters beside an abbreviation that are looked at."""


def is_last(behind: str) -> bool:
    """Tell whether nothing is said after an abbreviation, by the text behind it."""
    return not behind[:_REACH].strip(_CLOSERS + " \n\t")


def begins_sentence(before: str) -> bool:
    """Tell whether what follows a text is a sentence's first adverbial: `At` 5 p.m. Mr. Smith left."""
    return _FIRST_WORDS.search(before[-_REACH:]) is not None


def ends_before(behind: str) -> bool:
    """Tell whether a sentence ends with an abbreviation, by the text behind it."""
    behind = behind[:_REACH]
    if is_last(behind) or _CLOSED.match(behind):
        return True
    found = _NEXT_WORD.match(behind)
    return found is not None and found["word"] in STARTERS


def may_follow_time(word: str) -> bool:
    """Tell whether a word with a capital belongs to the time before it: 5 p.m. Friday."""
    return word in _NO_STARTERS


def ends_before_capital(behind: str) -> bool:
    """Do what `ends_before` does for an abbreviation that no name follows (`etc.`, `p.m.`): most capitals will do."""
    found = _NEXT_WORD.match(behind[:_REACH])
    return ends_before(behind) or (found is not None and not may_follow_time(found["word"]))
