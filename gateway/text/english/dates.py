"""Dates, times of day, years and decades."""

from __future__ import annotations

import re

from gateway.text.english.abbreviations import begins_sentence, ends_before_capital, is_last
from gateway.text.english.amounts import MEASURE
from gateway.text.english.words import cardinal, digits, ordinal, two_digits, year
from gateway.text.rules import rule

_MONTHS = "January February March April May June July August September October November December".split()
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_MONTH = (
    r"(?P<month>Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?"
    r"|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)"
)
_DAY = r"(?P<day>[1-9]|[12]\d|3[01])"
_YEAR = r"(?P<year>1[1-9]\d\d|20\d\d)"
_DECADES = "tens twenties thirties forties fifties sixties seventies eighties nineties".split()
_NO_NUMBER = r"(?![\w%]|[.,:/-]\d)"
_MONTHS_IN_A_YEAR = 12
_LATE_HOUR, _LAST_HOUR = 13, 24


def _stop(match: re.Match[str]) -> str:
    """Return the sentence's full stop where a month's abbreviation has taken it."""
    if not match[0].endswith("."):
        return ""
    return "." if ends_before_capital(match.string[match.end() :]) or match["month"] in _MONTHS else ""


def _month(written: str) -> str:
    return next(name for name in _MONTHS if name.startswith(written[:3]))


def _day_of_month(match: re.Match[str]) -> str:
    named_year = f", {year(int(match['year']))}" if match["year"] else ""
    return f"{_month(match['month'])} {ordinal(int(match['day']))}{named_year}"


def _british(match: re.Match[str]) -> str:
    article = "" if match["article"] else "the "
    spoken = (
        f"{match['article'] or ''}{match['on'] or ''}{article}{ordinal(int(match['day']))} of {_month(match['month'])}"
    )
    return f"{spoken} {year(int(match['year']))}" if match["year"] else spoken + _stop(match)


def _numeric(match: re.Match[str]) -> str:
    """Month first, as in the United States; day first where that can't be, and between dots."""
    first, second = int(match["first"]), int(match["second"])
    is_day_first = match[0].count(".") == 2 or first > _MONTHS_IN_A_YEAR
    month, day = (second, first) if is_day_first else (first, second)
    return _date(month, day, match["year"]) or _date(day, month, match["year"]) or match[0]


def _iso(match: re.Match[str]) -> str:
    return _date(int(match["month"]), int(match["day"]), match["year"]) or match[0]


def _date(month: int, day: int, written_year: str | None) -> str | None:
    if not (1 <= month <= _MONTHS_IN_A_YEAR and 1 <= day <= 31):
        return None
    spoken = f"{_MONTHS[month - 1]} {ordinal(day)}"
    if not written_year:
        return spoken
    return f"{spoken}, {year(int(written_year)) if len(written_year) == 4 else two_digits(written_year)}"


def _day_of_year(match: re.Match[str]) -> str:
    """A date without its year, where the words around it tell that it is no fraction."""
    return match[0] if match[0] == "9/11" else _date(int(match["month"]), int(match["day"]), None) or match[0]


def _years(match: re.Match[str]) -> str:
    last = match["last"]
    spoken = year(int(last)) if len(last) == 4 else two_digits(last)
    return f"{year(int(match['year']))} to {spoken}"


def _decade(match: re.Match[str]) -> str:
    century, decade = match["century"], int(match["decade"])
    if century and not decade:
        return "two thousands" if century == "20" else f"{cardinal(century)} hundreds"
    if not decade:
        return match[0]
    return f"{cardinal(century)} {_DECADES[decade - 1]}" if century else _DECADES[decade - 1]


def _time(match: re.Match[str]) -> str:
    hour, minute = int(match["hour"]), match["minute"]
    if hour > _LAST_HOUR or (minute and int(minute) > 59):
        return match[0]
    half = _half(match)
    if minute in (None, "00"):
        return f"{_whole_hour(match, hour)}{half}"
    return f"{cardinal(hour)} {two_digits(minute)}{half}"


def _whole_hour(match: re.Match[str], hour: int) -> str:
    if match["half"]:
        return cardinal(hour)
    if match["minute"] is None:
        return match[0]
    return f"{cardinal(hour)} o'clock" if 0 < hour < _LATE_HOUR else f"{cardinal(hour)} hundred hours"


def _half(match: re.Match[str]) -> str:
    """Return the half of the day and the time zone."""
    zone = (match.groupdict().get("zone") or "").replace(".", "").upper()
    return (f" {match['half'][0].upper()}M" if match["half"] else "") + (f" {zone}" if zone else "")


def _seconds(match: re.Match[str]) -> str:
    """A time of day, or a duration if the hours have one digit and no half of the day is named."""
    hour, minute, second = (int(match[part]) for part in ("hour", "minute", "second"))
    if len(match["hour"]) == 1 and not match["half"]:
        return f"{_counted(hour, 'hour')} {_counted(minute, 'minute')} and {_counted(second, 'second')}"
    if not second:
        return f"{cardinal(hour)}{' ' + two_digits(match['minute']) if minute else ''}{_half(match)}"
    time = two_digits(match["minute"]) if minute else "o'clock"
    return f"{cardinal(hour)} {time} and {_counted(second, 'second')}{_half(match)}"


def _counted(number: int, noun: str) -> str:
    return f"{cardinal(number)} {noun}{'s' * (number != 1)}"


def _lap(match: re.Match[str]) -> str:
    minutes, seconds = _counted(int(match["minute"]), "minute"), cardinal(int(match["second"]))
    return f"{minutes} {seconds} point {digits(match['fraction'])} seconds"


def _stop_of_half(match: re.Match[str]) -> str:
    """The stop of `p.m.` is its own within a sentence, and the sentence's too at its end."""
    behind = match.string[match.end() :]
    is_end = is_last(behind) or (ends_before_capital(behind) and not begins_sentence(match.string[: match.start()]))
    return "." if match["stop"] and not match["zone"] and is_end else ""


def _weekday(match: re.Match[str]) -> str:
    return next(name for name in _DAYS if name.startswith(match["weekday"][:3]))


def _names_to(match: re.Match[str]) -> str:
    names = _DAYS if match["first"] in {name[:3] for name in _DAYS} else _MONTHS
    first, last = (next(name for name in names if name.startswith(match[part])) for part in ("first", "last"))
    return f"{first} to {last}"


_THREE_DAYS = "Mon|Tue|Wed|Thu|Fri|Sat|Sun"
_SHORT_DAYS = "Mon|Tues?|Tu|Weds?|Thurs?|Thu|Fri|Sat|Sun"
_THREE_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_DAY_NAME = rf"(?:{'|'.join(_DAYS)})"
_CLOCK = r"\d{1,2}(?:[:.][0-5]\d)?"
_ZONE = r"(?: ?(?P<zone>(?i:[ECMP]\.?[SD]\.?T|GMT|UTC|CET|BST))\b)?"
_HALF = r"(?P<half>[aApP]\.?[mM])(?:(?<=\.[mM])(?P<stop>\.))?"
_DATE_FOLLOWS = rf"(?=,? (?:the |0?{_DAY}(?:st|nd|rd|th)? )?(?:of )?{_MONTH}\b)"
_TIME_FOLLOWS = r"(?=,? \(?\d{1,2}(?:/\d{1,2}\b|[:.]\d\d\b| ?[aApP]\.?[mM]\b))"

DATES = (
    rule(r"(?<![\w./-])(?P<year>\d{4})(?P<mark>[-/.])(?P<month>\d\d?)(?P=mark)(?P<day>\d\d?)(?![\w/-]|\.\d)", _iso),
    rule(r"(?<![\w./-])(?P<first>\d{1,2})/(?P<second>\d{1,2})/(?P<year>\d{4}|\d{2})(?![\w/])", _numeric),
    rule(
        r"(?<![\w./-])(?P<first>\d\d?)(?P<mark>[-.])(?P<second>\d\d?)(?P=mark)(?P<year>(?:19|20)\d\d)(?![\w-]|\.\d)",
        _numeric,
    ),
    rule(rf"(?<!\w)(?P<first>{_THREE_DAYS})\.?[-–](?P<last>{_THREE_DAYS})(?!\w)", _names_to),
    rule(rf"(?<!\w)(?P<first>{_THREE_MONTHS})\.?[-–](?P<last>{_THREE_MONTHS})(?!\w)", _names_to),
    rule(rf"(?<!\w)(?P<weekday>{_SHORT_DAYS})\.?(?:{_DATE_FOLLOWS}|{_TIME_FOLLOWS})", _weekday),
    rule(rf"(?<!\w)(?P<weekday>{_SHORT_DAYS})\.(?=,? [A-Za-z\d])", _weekday),
    rule(
        rf"(?P<on>\b(?i:on|since|until|till|before|after|due|starting) |\b{_DAY_NAME},? \(?)"
        r"(?P<month>1[0-2]|0?[1-9])/(?P<day>3[01]|[12]\d|0?[1-9])(?![\w/-]|[.,]\d)"
        rf"(?! (?:of|the|an?|people|cups?|hours?|minutes?|days?|years?|miles?|way|{MEASURE})\b)",
        lambda m: m["on"] + _day_of_year(m),
    ),
    rule(
        rf"(?<!\w)(?P<article>[Tt]he )?(?P<on>(?i:on|by|until|since|before|after|from) )?(?<![\d.,/-])"
        rf"0?{_DAY}(?:st|nd|rd|th)? (?:of )?{_MONTH}\b\.?(?:,? {_YEAR}\b)?"
        r"(?!\s\d{1,2}(?:st|nd|rd|th|,)?\b)",
        _british,
    ),
    rule(
        rf"(?<!\w){_MONTH}\.? {_DAY}[-–](?P<last>[12]?\d|3[01])(?![\w%-]|[.,:/]\d)",
        lambda m: f"{_month(m['month'])} {ordinal(int(m['day']))} to {ordinal(int(m['last']))}",
    ),
    rule(
        rf"(?<!\w){_MONTH}(?:\.? |-)0?{_DAY}(?:st|nd|rd|th)?{_NO_NUMBER}(?:,? {_YEAR}{_NO_NUMBER})?",
        _day_of_month,
    ),
    rule(
        r"(?<!\w)(?P<month>Jan|Feb|Mar|Apr|Aug|Sept?|Oct|Nov|Dec)\.(?= ['‘’]?\d| [a-z]|,)", lambda m: _month(m["month"])
    ),
    rule(rf"(?<![\w.,/$€£:-]){_YEAR}[-–](?P<last>1[1-9]\d\d|20\d\d|\d\d)(?![\w%/-]|[.,:]\d| ?{MEASURE}\b)", _years),
    rule(r"(?<=\d0s) ?[-–] ?(?=['‘’]?(?:1[1-9]|20)?\d0s)", lambda _: " to "),
    rule(r"(?<![\w.,])['‘’]?(?P<century>1[1-9]|20)(?P<decade>\d)0['’]?s(?!\w)", _decade),
    rule(r"(?<![\w.,$€£])['‘’]?(?P<century>)(?P<decade>\d)0['’]?s(?!\w)", _decade),
    rule(r"(?<!\w)['‘’](?P<year>\d\d)(?![\w'’])(?=\W|$)", lambda m: two_digits(m["year"])),
)
_BIBLE = (
    "Genesis|Exodus|Leviticus|Deuteronomy|Joshua|Judges|Ruth|Samuel|Kings|Chronicles|Job|Psalms?|Proverbs|Isaiah"
    "|Jeremiah|Ezekiel|Daniel|Matthew|Mark|Luke|John|Acts|Romans|Corinthians|Galatians|Ephesians|Philippians|Hebrews"
    "|James|Peter|Revelation|Surah?"
)
TIMES = (
    rule(
        rf"\b(?P<book>{_BIBLE}) (?P<chapter>\d{{1,3}}):(?P<verse>\d{{1,3}})(?![\d:])",
        lambda m: f"{m['book']} {cardinal(m['chapter'])} {cardinal(m['verse'])}",
    ),
    rule(
        rf"(?<![\w.,:/$€£-])(?P<from>noon|midnight|{_CLOCK}(?: ?[aApP]\.?[mM]\.?)?)"
        rf" ?[-–] ?(?={_CLOCK} ?[aApP]\.?[mM]\b|\d{{1,2}}:[0-5]\d(?![\d:]))",
        lambda m: f"{m['from']} to ",
    ),
    rule(r"(?<![\w.:/])(?P<minute>\d{1,2}):(?P<second>[0-5]\d)\.(?P<fraction>\d{1,3})(?![\w:])", _lap),
    rule(
        r"(?<![\w.:/])(?P<hour>\d{1,2}):(?P<minute>[0-5]\d):(?P<second>[0-5]\d)"
        rf"(?: ?{_HALF})?{_ZONE}(?![\w:])",
        lambda m: _seconds(m) + _stop_of_half(m),
    ),
    rule(
        r"(?<![\w.:/])(?P<hour>\d{1,2})(?:[:.](?P<minute>[0-5]\d))? ?" + _HALF + _ZONE + r"(?!\w)",
        lambda m: _time(m) + _stop_of_half(m),
    ),
    rule(
        rf"(?<![\w.:/])(?P<hour>\d{{1,2}}):(?P<minute>[0-5]\d)(?P<half>){_ZONE}(?![\w:]|\.\d)",
        _time,
    ),
)
