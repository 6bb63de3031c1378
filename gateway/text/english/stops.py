"""Tells which full stops are an abbreviation's, and whether a sentence ends with one, for who cuts a text.

Knows the abbreviations that the rules write out, so that none of them is cut from what it belongs to.
"""

from __future__ import annotations

import re

from gateway.text.english.abbreviations import ANYWHERE, BEFORE_NUMBERS, BEHIND_NAMES, INITIALS, STREET_WORDS, TITLES
from gateway.text.english.sentences import begins_sentence, is_starter, may_follow_time

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
    short, begins = found["short"], is_starter(after)
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
