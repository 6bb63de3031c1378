"""Abbreviations, titles and streets, Roman numerals, and marks that stand for words.

A full stop of an abbreviation goes, unless the sentence ends with it: `on Ocean Dr.` -> `on Ocean Drive.`
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gateway.text.english.words import cardinal, digits, ordinal, pairs, rule

_TITLES = {
    "Mr": "Mister", "Mrs": "Missus", "Ms": "Miz", "Dr": "Doctor", "Prof": "Professor", "Gen": "General",
    "Sen": "Senator", "Rep": "Representative", "Gov": "Governor", "Capt": "Captain", "Lt": "Lieutenant",
    "Sgt": "Sergeant", "Col": "Colonel", "Cmdr": "Commander", "Maj": "Major", "Adm": "Admiral", "Rev": "Reverend",
    "Hon": "Honorable", "Pres": "President", "St": "Saint", "Mt": "Mount", "Ft": "Fort", "Fr": "Father", "Sr": "Sister",
}  # fmt: skip
_STREETS = {"St": "Street", "Dr": "Drive", "Ave": "Avenue", "Blvd": "Boulevard", "Rd": "Road", "Ln": "Lane"}
_STREETS |= {"Ct": "Court", "Pl": "Place", "Sq": "Square", "Pkwy": "Parkway", "Hwy": "Highway", "Ter": "Terrace"}
_QUARTERS = {"NW": "northwest", "NE": "northeast", "SW": "southwest", "SE": "southeast"}
_SIDES = {"N": "North", "S": "South", "E": "East", "W": "West"}
_BEHIND_NAMES = {"Jr": "Junior", "Sr": "Senior", "Inc": "Incorporated", "Ltd": "Limited", "Co": "Company"}
_BEHIND_NAMES |= {"Corp": "Corporation", "Bros": "Brothers", "Esq": "Esquire"}
_BEFORE_NUMBERS = {
    "No": "Number", "no": "number", "Nos": "Numbers", "nos": "numbers", "p": "page", "pp": "pages", "Fig": "Figure",
    "fig": "figure", "Figs": "Figures", "Vol": "Volume", "vol": "volume", "Ch": "Chapter", "ch": "chapter",
    "Sec": "Section", "sec": "section", "Eq": "Equation", "eq": "equation", "est": "established", "max": "maximum",
    "min": "minimum", "Min": "Minimum", "Apt": "Apartment", "apt": "apartment", "approx": "approximately",
    "Approx": "Approximately", "ca": "circa", "Rm": "Room",
    "Ste": "Suite", "vs": "versus", "c": "circa",
}  # fmt: skip
_ANYWHERE = {
    "e.g.": "for example", "E.g.": "For example", "i.e.": "that is", "I.e.": "That is", "etc.": "et cetera",
    "vs.": "versus", "vs": "versus", "approx.": "approximately", "dept.": "department", "Dept.": "Department",
    "misc.": "miscellaneous", "cf.": "compare", "a.k.a.": "also known as", "aka": "also known as",
    "govt.": "government", "Govt.": "Government",
    "assn.": "association", "Assn.": "Association", "univ.": "university", "Univ.": "University",
    "incl.": "including", "excl.": "excluding", "hrs.": "hours",
    "yrs.": "years", "qty.": "quantity", "attn.": "attention", "Attn.": "Attention",
    "Messrs.": "Messieurs", "ave.": "avenue", "blvd.": "boulevard", "tel.": "telephone", "Tel.": "Telephone",
    "intl.": "international", "Intl.": "International", "ext.": "extension", "Ctrl": "control",
}  # fmt: skip
_SLASHES = {"and/or": "and or", "he/she": "he or she", "she/he": "she or he", "his/her": "his or her"}
_SLASHES |= {"him/her": "him or her", "s/he": "she or he", "yes/no": "yes or no", "either/or": "either or"}
_SLASHES |= {"w/": "with", "w/o": "without", "b/c": "because"}
_INITIALS = "|".join(("U.S.A", "U.S", "U.K", "E.U", "U.N", "D.C", "B.C", "A.D", "Ph.D", "P.S", "L.A", "N.Y", "R.S.V.P"))
_INITIALS += "|" + "|".join(
    ("M.D", "B.A", "M.A", "B.Sc", "M.Sc", "P.O", "C.E.O", "B.C.E", "C.E", "I.D", "T.V", "Q.E.D", "I.Q")
)
_SENTENCE_END = re.compile(r"[\"'”’)\]]{0,3}(?:\s*$|\s+[\"'“‘(]?[A-Z][a-z]*\s)|[\"'”’)\]]{1,3}\s")
_ROMAN = r"(?!L\b)(?=[IVXL]{1,7}\b)(?P<roman>(?:XL|L?X{0,3})(?:IX|IV|V?I{0,3}))(?![\w'’])"
_ROMAN_SMALL = r"(?=[ivx]{1,5}\b)(?P<roman>x{0,3}(?:ix|iv|v?i{0,3}))(?![\w'’])"
_KINGS = (
    r"King|Queen|Pope|Emperor|Prince|Tsar|Czar|Kaiser|Henry|Louis|Edward|George|Charles|William|James|Richard|John|Paul"
    r"|Elizabeth|Mary|Philip|Peter|Catherine|Nicholas|Alexander|Frederick|Napoleon|Benedict|Pius|Gregory|Leo|Clement"
    r"|Innocent|Boniface|Ferdinand|Francis|Ivan|Otto|Ramses|Ramesses|Thutmose|Ptolemy|Cleopatra|Harald|Olaf|Gustav"
    r"|Christian|Leopold|Albert|Victor|Margaret|Margrethe|Rudolf|Maximilian|Joseph|Xerxes|Darius|Mehmed|Suleiman"
)
_NUMBERED = (
    r"War|Chapter|Part|Act|Scene|Volume|Vol\.|Book|Section|Article|Title|Type|Phase|Stage|Level|Class|Grade|Division"
    r"|Bowl|Rocky|Rambo|Saw|Final Fantasy|Civilization|Episode|Appendix|Annex|Table|Figure|Unit|Module|Lesson|Apollo"
    r"|Schedule|Tier|Category|Theft|Quest|Diablo|Starcraft|StarCraft|Souls"
)
_ROMAN_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50}
_CAPITAL_WORD = r"[A-Z][\w'’]{1,24}"
# The name of a street, before a word for streets such as `St.`
_STREET_NAME = rf"(?P<name>(?:(?<!\w){_CAPITAL_WORD}|(?<!\w)\d{{1,4}}(?:st|nd|rd|th)|(?<!\w)[A-Z]))"


def _ends_sentence(match: re.Match[str], may_end: Callable[[str], bool] = lambda _: True) -> bool:
    behind = match.string[match.end() :][:40]
    return not behind.strip("\"'”’)] \n\t") or (_SENTENCE_END.match(behind) is not None and may_end(behind))


def _stopped(words: str, match: re.Match[str]) -> str:
    """Return words for an abbreviation, with the sentence's full stop if it ends with it."""
    return f"{words}." if match[0].endswith(".") and _ends_sentence(match) else words


def _is_at_end(match: re.Match[str]) -> bool:
    return not match.string[match.end() :][:40].strip("\"'”’)] \n\t")


def _anywhere(match: re.Match[str]) -> str:
    words = _ANYWHERE[match[0]]
    return f"{words}." if (match[0].endswith(".") and _is_at_end(match)) or _ends_like_etc(match) else words


def _ends_like_etc(match: re.Match[str]) -> bool:
    return match[0] == "etc." and _ends_sentence(match)


def _street(match: re.Match[str]) -> str:
    return f"{match['name']} {_stopped(_STREETS[match['street']], match)}"


def _house(match: re.Match[str]) -> str:
    number = match["number"]
    letter = f" {match['letter']}" if match["letter"] else ""
    spoken = cardinal(number[:2]) + " hundred" if len(number) == 4 and number[2:] == "00" else pairs(number)
    return f"{spoken}{letter}"


def _initials(match: re.Match[str]) -> str:
    return _stopped(match[0].replace(".", "").replace("Ph", "PH"), match)


def _behind_name(match: re.Match[str]) -> str:
    return f"{match['name']}{_stopped(_BEHIND_NAMES[match['short']], match)}"


def _roman_value(roman: str) -> int:
    values = [_ROMAN_VALUES[letter] for letter in roman.upper()]
    pairs_of = zip(values, [*values[1:], 0], strict=True)
    return sum(-value if value < following else value for value, following in pairs_of)


def _king(match: re.Match[str]) -> str:
    return f"{match['name']} the {ordinal(_roman_value(match['roman']))}" if match["roman"] else match[0]


def _numbered(match: re.Match[str]) -> str:
    return f"{match['name']} {cardinal(_roman_value(match['roman']))}" if match["roman"] else match[0]


def _any_of(words: object) -> str:
    return "|".join(sorted(map(re.escape, words), key=len, reverse=True))  # type: ignore[call-overload]


STREETS = (
    rule(
        rf"(?<!\w)(?P<side>[NSEW])\.(?= (?:\d{{1,3}}(?:st|nd|rd|th)|{_CAPITAL_WORD}) (?:{_any_of(_STREETS)})\b)",
        lambda m: _SIDES[m["side"]],
    ),
    rule(
        rf"{_STREET_NAME} (?P<street>{_any_of(_STREETS)})\.(?! and Mr)"
        r"(?=[,;:]|\s+[a-z\d(]|\s+(?:[NS][EW]|Apt|Suite|Unit)\b|[\"'”’)]{0,3}\s*$)",
        _street,
    ),
    rule(
        rf"(?P<name>(?:(?<!\w)\d{{1,4}}|\b(?i:on|at|near|from|to|along|down|off|across)) (?:{_CAPITAL_WORD} ){{0,2}}"
        rf"{_CAPITAL_WORD}) (?P<street>{_any_of(_STREETS)})\.(?=\s+[\"'“‘]?[A-Z])",
        _street,
    ),
    rule(
        r"(?P<road>Avenue|Street|Boulevard|Road|Drive) (?P<quarter>NW|NE|SW|SE)(?!\w)",
        lambda m: f"{m['road']} {_QUARTERS[m['quarter']]}",
    ),
    rule(
        rf"(?<![\w.,$€£#:/-])(?P<number>[1-9]\d{{0,3}})(?P<letter>[A-D])?(?= (?:[NSEW]\.? )?(?:{_CAPITAL_WORD} ){{1,3}}"
        rf"(?:{_any_of(_STREETS)}|{_any_of(_STREETS.values())})\b)",
        _house,
    ),
)
ABBREVIATIONS = (
    rule(rf"(?<![\w.])(?P<title>{_any_of(_TITLES)})\.(?= ?[A-Z][\w.'’])", lambda m: _TITLES[m["title"]]),
    rule(rf"(?P<name>[\w'’&]\.?,? )(?P<short>{_any_of(_BEHIND_NAMES)})\.(?!\w)", _behind_name),
    rule(
        rf"(?<![\w.])(?P<short>{_any_of(_BEFORE_NUMBERS)})\. ?(?=\$?#?\d)", lambda m: f"{_BEFORE_NUMBERS[m['short']]} "
    ),
    rule(rf"(?<![\w.])(?:{_INITIALS})\.(?!\w)", _initials),
    rule(rf"(?<![\w.])(?:{_any_of(_ANYWHERE)})(?!\w)", _anywhere),
    rule(rf"(?<![\w/])(?:{_any_of(_SLASHES)})(?![\w/])", lambda m: _SLASHES[m[0]]),
    rule(r"(?<![\w.])ext\.? (?P<number>\d{1,6})(?!\w)", lambda m: f"extension {digits(m['number'])}"),
)
ROMAN_NUMERALS = (
    rule(rf"(?P<name>\b(?:{_KINGS})) (?!I\b(?! of\b| and [A-Z]|\s*(?:[.,;:!?)]|$))){_ROMAN}", _king),
    rule(rf"(?P<name>\b(?:{_NUMBERED})) {_ROMAN}", _numbered),
    rule(rf"(?P<name>\b(?:Scene|scene|chapter|part|page|section|step)) {_ROMAN_SMALL}", _numbered),
)
