"""Abbreviations, titles and streets, Roman numerals, and marks that stand for words.

A full stop of an abbreviation goes, unless the sentence ends with it: `on Ocean Dr.` -> `on Ocean Drive.` Those who cut
a text ask here, too: `in the U.S. However, ...` is two sentences, `the U.S. Government` part of one.
"""

from __future__ import annotations

import re

from gateway.text.english.words import any_of, cardinal, digits, ordinal, pairs
from gateway.text.rules import rule

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


TITLES = {
    "Mr": "Mister", "Mrs": "Missus", "Ms": "Miz", "Dr": "Doctor", "Prof": "Professor", "Gen": "General",
    "Sen": "Senator", "Rep": "Representative", "Gov": "Governor", "Capt": "Captain", "Lt": "Lieutenant",
    "Sgt": "Sergeant", "Col": "Colonel", "Cmdr": "Commander", "Maj": "Major", "Adm": "Admiral", "Rev": "Reverend",
    "Hon": "Honorable", "Pres": "President", "St": "Saint", "Mt": "Mount", "Ft": "Fort", "Fr": "Father", "Sr": "Sister",
}  # fmt: skip
STREET_WORDS = {"St": "Street", "Dr": "Drive", "Ave": "Avenue", "Blvd": "Boulevard", "Rd": "Road", "Ln": "Lane"}
STREET_WORDS |= {"Ct": "Court", "Pl": "Place", "Sq": "Square", "Pkwy": "Parkway", "Hwy": "Highway", "Ter": "Terrace"}
STREET_WORDS |= {"Expy": "Expressway", "Fwy": "Freeway", "Cir": "Circle"}
_QUARTERS = {"NW": "northwest", "NE": "northeast", "SW": "southwest", "SE": "southeast"}
_SIDES = {"N": "North", "S": "South", "E": "East", "W": "West"} | {
    short: name.capitalize() for short, name in _QUARTERS.items()
}
_STATES = {
    "AL": "Alabama", "AK": "Alaska", "AZ": "Arizona", "AR": "Arkansas", "CA": "California", "CO": "Colorado",
    "CT": "Connecticut", "DE": "Delaware", "FL": "Florida", "GA": "Georgia", "HI": "Hawaii", "ID": "Idaho",
    "IL": "Illinois", "IN": "Indiana", "IA": "Iowa", "KS": "Kansas", "KY": "Kentucky", "LA": "Louisiana", "ME": "Maine",
    "MD": "Maryland", "MA": "Massachusetts", "MI": "Michigan", "MN": "Minnesota", "MS": "Mississippi", "MO": "Missouri",
    "MT": "Montana", "NE": "Nebraska", "NV": "Nevada", "NH": "New Hampshire", "NJ": "New Jersey", "NM": "New Mexico",
    "NY": "New York", "NC": "North Carolina", "ND": "North Dakota", "OH": "Ohio", "OK": "Oklahoma", "OR": "Oregon",
    "PA": "Pennsylvania", "RI": "Rhode Island", "SC": "South Carolina", "SD": "South Dakota", "TN": "Tennessee",
    "TX": "Texas", "UT": "Utah", "VT": "Vermont", "VA": "Virginia", "WA": "Washington", "WV": "West Virginia",
    "WI": "Wisconsin", "WY": "Wyoming", "DC": "DC",
}  # fmt: skip
BEHIND_NAMES = {"Jr": "Junior", "Sr": "Senior", "Inc": "Incorporated", "Ltd": "Limited", "Co": "Company"}
BEHIND_NAMES |= {"Corp": "Corporation", "Bros": "Brothers", "Esq": "Esquire"}
BEFORE_NUMBERS = {
    "No": "Number", "no": "number", "Nos": "Numbers", "nos": "numbers", "p": "page", "pp": "pages", "Fig": "Figure",
    "fig": "figure", "Figs": "Figures", "Vol": "Volume", "vol": "volume", "Ch": "Chapter", "ch": "chapter",
    "Sec": "Section", "sec": "section", "Eq": "Equation", "eq": "equation", "est": "established", "max": "maximum",
    "min": "minimum", "Min": "Minimum", "Apt": "Apartment", "apt": "apartment", "approx": "approximately",
    "Approx": "Approximately", "ca": "circa", "Rm": "Room",
    "Ste": "Suite", "vs": "versus", "c": "circa",
}  # fmt: skip
ANYWHERE = {
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
INITIALS = (
    "U.S.A U.S U.K E.U U.N D.C B.C A.D Ph.D P.S L.A N.Y R.S.V.P M.D B.A M.A B.Sc M.Sc P.O C.E.O B.C.E C.E I.D T.V "
    "Q.E.D I.Q"
).split()
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
_ORDINAL = r"\d{1,4}(?:st|nd|rd|th)"
_STREET = rf"(?:{any_of(STREET_WORDS)})"
# The name of a street, before a word for streets such as `St.`; small letters do behind a number (`1st st`).
_STREET_NAME = rf"(?P<name>(?:(?<!\w){_CAPITAL_WORD}|(?<!\w){_ORDINAL}|(?<!\w)[A-Z]))"
# Whatever follows `St.` and the like, it is no name: a mark, the end, small letters, or a part of an address.
_NO_NAME = r"(?=[,;:]|\s+[a-z\d(]|\s+(?:[NS][EW]|Apt|Suite|Unit)\b|[\"'”’)]{0,3}\s*$)"


def _stopped(words: str, match: re.Match[str]) -> str:
    """Return words for an abbreviation, with the sentence's full stop if it ends with it."""
    return f"{words}." if match[0].endswith(".") and ends_before(match.string[match.end() :]) else words


def _anywhere(match: re.Match[str]) -> str:
    is_end = ends_before_capital if match[0] == "etc." else is_last
    return ANYWHERE[match[0]] + "." * (match[0].endswith(".") and is_end(match.string[match.end() :]))


def _title(match: re.Match[str]) -> str:
    return TITLES[match["title"].capitalize()]


def _street(match: re.Match[str]) -> str:
    return f"{match['name']} {_stopped(STREET_WORDS[match['street'].capitalize()], match)}"


def _house(match: re.Match[str]) -> str:
    number = match["number"]
    letter = f" {match['letter']}" if match["letter"] else ""
    spoken = cardinal(number[:2]) + " hundred" if len(number) == 4 and number[2:] == "00" else pairs(number)
    return f"{spoken}{letter}"


def _state(match: re.Match[str]) -> str:
    code = ", ".join(map(digits, match["zip"].split("-")))
    return f", {_STATES[match['state']]} {code}"


def _roman_value(roman: str) -> int:
    values = [_ROMAN_VALUES[letter] for letter in roman.upper()]
    pairs_of = zip(values, [*values[1:], 0], strict=True)
    return sum(-value if value < following else value for value, following in pairs_of)


def _king(match: re.Match[str]) -> str:
    return f"{match['name']} the {ordinal(_roman_value(match['roman']))}" if match["roman"] else match[0]


def _numbered(match: re.Match[str]) -> str:
    return f"{match['name']} {cardinal(_roman_value(match['roman']))}" if match["roman"] else match[0]


MAY_BE_SHORT = re.compile(rf"\w[./]|[IVX]\b|#|\b(?:vs|aka|ext|Ctrl|Dr|Mrs?|Ms|Prof|hwy|[ivx]+|{_STREET})\b")
"""What a text without numbers has if any rule here may change it."""
STREETS = (
    rule(rf"(?<![\w.])(?P<short>{any_of(BEFORE_NUMBERS)})\. ?(?=\$?#?\d)", lambda m: f"{BEFORE_NUMBERS[m['short']]} "),
    rule(
        rf"(?<!\w)(?P<side>[NS][EW]|[NSEW])\.?"
        rf"(?= (?:{_ORDINAL}|(?:{_CAPITAL_WORD} )?{_CAPITAL_WORD}) (?i:{_STREET})\b)",
        lambda m: _SIDES[m["side"]],
    ),
    rule(rf"{_STREET_NAME} (?P<street>{_STREET})\.?(?![\w.'’-])(?! and Mr){_NO_NAME}", _street),
    rule(rf"(?P<name>(?<!\w){_ORDINAL}) (?P<street>(?i:{_STREET}))\.?(?![\w.'’-])", _street),
    rule(rf"(?P<name>(?<!\w){_CAPITAL_WORD}) (?P<street>hwy|blvd|pkwy|expy|fwy)\.?(?![\w.'’-])", _street),
    rule(
        rf"(?P<name>(?:(?<!\w)\d{{1,4}}|\b(?i:on|at|near|from|to|along|down|off|across)) (?:{_CAPITAL_WORD} ){{0,2}}"
        rf"{_CAPITAL_WORD}) (?P<street>{_STREET})\.(?=\s+[\"'“‘]?[A-Z])",
        _street,
    ),
    rule(
        r"(?P<road>Avenue|Street|Boulevard|Road|Drive) (?P<quarter>NW|NE|SW|SE)(?!\w)",
        lambda m: f"{m['road']} {_QUARTERS[m['quarter']]}",
    ),
    rule(
        rf"(?<![\w.,$€£#:/-])(?P<number>[1-9]\d{{0,3}})(?P<letter>[A-D])?"
        rf"(?= (?:(?:{_CAPITAL_WORD}|[NSEW]|{_ORDINAL}) ){{1,4}}"
        rf"(?:{any_of([*STREET_WORDS, *STREET_WORDS.values()])})\b)",
        _house,
    ),
    rule(r"(?<!\w)(?P<short>Apt|Ste|Rm|Fig|Vol)(?= #?\d)", lambda m: BEFORE_NUMBERS[m["short"]]),
    # `in order ID 90210` names no state.
    rule(
        rf"(?<=[a-z])(?:, |(?! (?:ID|IN|OR|ME|HI|OK)\b) )(?P<state>{any_of(_STATES)}),? "
        r"(?P<zip>\d{5}(?:-\d{4})?)(?![\w-])",
        _state,
    ),
)
ABBREVIATIONS = (
    rule(rf"(?<![\w.])(?P<title>{any_of(TITLES)}|dr|mr|mrs|ms|prof)\.(?= ?[A-Z][\w.'’])", _title),
    rule(r"(?<![\w.])(?P<title>Dr|Mr|Mrs|Ms|Prof)(?= [A-Z][a-z])", _title),
    rule(
        rf"(?P<name>[\w'’&]\.?,? )(?P<short>{any_of(BEHIND_NAMES)})\.(?!\w)",
        lambda m: f"{m['name']}{_stopped(BEHIND_NAMES[m['short']], m)}",
    ),
    rule(
        rf"(?<![\w.])(?:{any_of(INITIALS)})\.(?!\w)", lambda m: _stopped(m[0].replace(".", "").replace("Ph", "PH"), m)
    ),
    rule(r"(?<![\w#&])#(?=[A-Za-z]\w)", lambda _: "hashtag "),
    rule(r"(?<!\w)(?P<letter>[CF])#(?!\w)", lambda m: f"{m['letter']} sharp"),
    rule(r"(?<!\w)(?P<key>Ctrl|Alt|Shift|Cmd|Option|Win)\+(?=\w)", lambda m: f"{m['key']} "),
    rule(rf"(?<![\w.])(?:{any_of(ANYWHERE)})(?!\w)", _anywhere),
    rule(rf"(?<![\w/])(?:{any_of(_SLASHES)})(?![\w/])", lambda m: _SLASHES[m[0]]),
    rule(r"(?<![\w.])ext\.? (?P<number>\d{1,6})(?!\w)", lambda m: f"extension {digits(m['number'])}"),
)
ROMAN_NUMERALS = (
    rule(rf"(?P<name>\b(?:{_KINGS})) (?!I\b(?! of\b| and [A-Z]|\s*(?:[.,;:!?)—]|--|$))){_ROMAN}", _king),
    rule(rf"(?P<name>\b(?:{_NUMBERED})) {_ROMAN}", _numbered),
    rule(rf"(?P<name>\b(?:Scene|scene|chapter|part|page|section|step)) {_ROMAN_SMALL}", _numbered),
)
