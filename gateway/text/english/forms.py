"""Turns the written forms of English into words that the grammar misreads or can't read; the rest stays for it.

written            the grammar alone               by the rules
24/7               twenty four sevenths            twenty four seven
$3.50              three point five dollars        three dollars and fifty cents
5:45 p.m.          five forty five PM              five forty five PM.
on Ocean Dr.       on Ocean doctor                 on Ocean Drive.
Henry VIII         Henry VIII                      Henry the eighth

The order of the rules matters: the more a form says of itself, the earlier it is read. Pure but for num2words.

`read_english` puts right what WeText's grammar is known to misread of what is left to it:

written            the grammar alone                        as read here
1,234              thousand two hundred and thirty four     one thousand two hundred and thirty four
1000               ten hundred                              one thousand
on TV.             on Television.                           on TV.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gateway.text.english import abbreviations, amounts, codes, dates, quantities
from gateway.text.rules import applied, noted
from gateway.text.sentences import list_markers

_HAS_NUMBER = re.compile(r"[\d½¼¾⅓⅔⅛⅜⅝⅞⅕⅖⅗⅘⅙⅚²³]")
_MAY_BE_RANGE = re.compile(r"[a-z][-–][MTWFSJAOND]")

_BEFORE_NUMBERS = (*abbreviations.STREETS, *abbreviations.ABBREVIATIONS, *abbreviations.ROMAN_NUMERALS)
_SUMS = (*quantities.EQUATIONS, *quantities.SIGNS, *quantities.POWERS)
_NUMBERS = (
    *quantities.GROUPED,
    *quantities.SPECIAL_FRACTIONS,
    *dates.TIMES,
    *dates.DATES,
    *codes.NETWORKS_AND_VERSIONS,
    *codes.TELEPHONES_AND_CODES,
    *codes.CALLED_IN_PAIRS,
    *amounts.SIDES,
    *amounts.MONEY_RANGES,
    *quantities.EQUATIONS,
    *quantities.RANGES,
    *quantities.SIGNS,
    *amounts.MONEY,
    *amounts.MEASURES,
    *quantities.POWERS,
    *amounts.SCALED,
    *quantities.FRACTIONS,
    *quantities.NUMBERS,
)

# Words alone, without abbreviations: the grammar takes milliseconds to change nothing.
_WORD = r"(?:[A-Z]?[a-z]+(?:['’-][A-Za-z]?[a-z]*)*|[AI])"
_PLAIN = re.compile(rf"{_WORD}(?:(?:[,;:?!]? |\. (?=[A-Z])){_WORD})*[.?!,;:]?")
# Words that short abbreviations could be taken for; the grammar was seen to leave each as it is.
_SHORT_WORDS = frozenset(
    "a i am an as at be by do go he hi if in is it me my of oh ok on or ox so to up us we act add age ago aid aim "
    "air all and any are arm art ask ate bad bag bar bat bay bed bee bet big bit box boy bus but buy bye can car "
    "cat cow cry cup cut dad day did die dig dog dot dry due ear eat egg end eye fan far fat few fit fix fly fog "
    "for fox fun gap gas get god got gun guy had has hat her hey him his hit hot how ice ill its jam job joy key "
    "kid lab law lay leg let lie lip log lot low mad man map may men met mix mom mud net new nor not now nut odd "
    "off oil old one our out own pan pay pen pet pie pig pin pop pot put ran raw red rid row run sad saw say sea "
    "see set sex she shy sir sit six sky son sum tax tea ten the tie tip toe too top toy try two use van war was "
    "way wet who why win won yes yet you zoo".split()
)
_SHORTENED = {
    each.strip(".").lower()
    for table in (abbreviations.TITLES, abbreviations.STREET_WORDS, abbreviations.BEHIND_NAMES)
    for each in (*table, *abbreviations.BEFORE_NUMBERS, *abbreviations.ANYWHERE)
} | set("dept corp assoc sept".split())
_READ_IN_SMALL_LETTERS = frozenset(
    "mon tue tues wed thur thurs fri sat sun jan feb mar apr jun jul aug sep sept oct nov dec "
    "dr mr mrs st jr sr vs".split()
)
_READ_AS_WRITTEN = frozenset(("Ms", "Prof", "aka", "ext", "Ctrl", "hwy", *abbreviations.STREET_WORDS))
_SMALL_ROMAN = frozenset("ivx")
_SHORT = 3
_NUMBERED_I = re.compile(r"[A-Z]\w* I\b")
_WORD_AND_STOP = re.compile(r"([A-Za-z]+)(\.?)")
_THOUSAND = re.compile(r"(?:(?P<multiplier>\w+) )?\bthousand\b")
_UNITS = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
_TENS = "eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred"
_MULTIPLIERS = frozenset(f"{_UNITS} {_TENS}".split())


def is_plain(text: str) -> bool:
    """Tell whether a text is words alone, which are read as they are written."""
    if _PLAIN.fullmatch(text.strip()) is None or _MAY_BE_RANGE.search(text) or _NUMBERED_I.search(text):
        return False
    return not any(_may_be_read(word, stop) for word, stop in _WORD_AND_STOP.findall(text))


def _may_be_read(word: str, stop: str) -> bool:
    """Tell whether the rules here or the grammar may read something in a word among words alone."""
    small = word.lower()
    is_read = small in _READ_IN_SMALL_LETTERS or word in _READ_AS_WRITTEN or _SMALL_ROMAN.issuperset(word)
    is_short = len(word) <= _SHORT and small not in _SHORT_WORDS
    return is_read or (bool(stop) and (is_short or small in _SHORTENED))


def english_forms(text: str) -> str:
    """Return the text with the forms that the rules know in words.

    Args:
        text: at most a segment.
    """
    text = noted("forms.with_items", text, _with_items(text))
    if quantities.MAY_BE_FORMULA.search(text):
        text = applied(quantities.LATEX, text)
    has_number = _HAS_NUMBER.search(text) is not None
    if has_number or abbreviations.MAY_BE_SHORT.search(text):
        text = applied(_BEFORE_NUMBERS, text)
    if not has_number and _MAY_BE_RANGE.search(text):
        text = applied(dates.DATES, text)
    if has_number:
        return applied(_NUMBERS, text)
    return applied(_SUMS, text) if quantities.MAY_BE_FORMULA.search(text) else text


def _with_items(text: str) -> str:
    """Return a text with the numbers of list items set off by commas, and the items from each other: `one, apples;`."""
    parts, at = list[str](), 0
    for marker in list_markers(text):
        if not text[marker.end :].strip():
            break
        before = text[at : marker.start]
        if at and before.rstrip()[-1:].isalnum():
            before = before.rstrip() + "; "
        parts += [before, f"{marker.number.upper()},"]
        at = marker.end
    return "".join(parts) + text[at:]


def read_english(grammar: Callable[[str], str]) -> Callable[[str], str]:
    """Return a reader of English by the grammar, with its mistakes mended."""

    def read(text: str) -> str:
        if is_plain(text):
            return text
        spoken = grammar(text)
        if "Television" not in text:
            spoken = spoken.replace("Television", "TV")
        return spoken if "thousand" in text else _THOUSAND.sub(_with_multiplier, spoken)

    return read


def _with_multiplier(match: re.Match[str]) -> str:
    multiplier = match["multiplier"]
    if multiplier is None:
        return "one thousand"
    return match[0] if multiplier in _MULTIPLIERS else f"{multiplier} one thousand"
