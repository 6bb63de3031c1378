"""Dates, times of day, years and decades."""

from __future__ import annotations

import re

from gateway.text.english.words import cardinal, digits, ordinal, rule, two_digits, year

_MONTHS = "January February March April May June July August September October November December".split()
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_MONTH = (
    r"(?P<month>Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?"
    r"|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)"
)
_DAY = r"(?P<day>[1-9]|[12]\d|3[01])"
_YEAR = r"(?P<year>1[1-9]\d\d|20\d\d)"
_DECADES = "tens twenties thirties forties fifties sixties seventies eighties nineties".split()
_SENTENCE_END = re.compile(r"[\"'”’)\]]{0,3}(?:\s*$|\s+[A-Z])")
_NO_NUMBER = r"(?![\w%]|[.,:/-]\d)"
_MONTHS_IN_A_YEAR = 12
_LATE_HOUR, _LAST_HOUR = 13, 24


def _stop(match: re.Match[str]) -> str:
    """Return the sentence's full stop where a month's abbreviation has taken it."""
    if not match[0].endswith("."):
        return ""
    is_over = _SENTENCE_END.match(match.string, match.end()) is not None
    return "." if is_over or match["month"] in _MONTHS else ""


def _month(written: str) -> str:
    return next(name for name in _MONTHS if name.startswith(written[:3]))


def _day_of_month(match: re.Match[str]) -> str:
    return f"{_month(match['month'])} {ordinal(int(match['day']))}{_with_year(match)}"


def _with_year(match: re.Match[str]) -> str:
    return f", {year(int(match['year']))}" if match["year"] else ""


def _british(match: re.Match[str]) -> str:
    article = "" if match["article"] else "the "
    spoken = (
        f"{match['article'] or ''}{match['on'] or ''}{article}{ordinal(int(match['day']))} of {_month(match['month'])}"
    )
    return f"{spoken} {year(int(match['year']))}" if match["year"] else spoken + _stop(match)


def _numeric(match: re.Match[str]) -> str:
    """Month first, as in the United States; day first where it can't be a month."""
    first, second = int(match["first"]), int(match["second"])
    month, day = (first, second) if first <= _MONTHS_IN_A_YEAR else (second, first)
    if not (1 <= month <= _MONTHS_IN_A_YEAR and 1 <= day <= 31):
        return match[0]
    written = match["year"]
    return f"{_MONTHS[month - 1]} {ordinal(day)}, {year(int(written)) if len(written) == 4 else two_digits(written)}"


def _iso(match: re.Match[str]) -> str:
    month = _MONTHS[int(match["month"]) - 1]
    return f"{month} {ordinal(int(match['day']))}, {year(int(match['year']))}"


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
    half = f" {match['half'][0].upper()}M" if match["half"] else ""
    if minute in (None, "00"):
        return f"{_whole_hour(match, hour)}{half}"
    return f"{cardinal(hour)} {two_digits(minute)}{half}"


def _whole_hour(match: re.Match[str], hour: int) -> str:
    if match["half"]:
        return cardinal(hour)
    if match["minute"] is None:
        return match[0]
    return f"{cardinal(hour)} o'clock" if 0 < hour < _LATE_HOUR else f"{cardinal(hour)} hundred hours"


def _seconds(match: re.Match[str]) -> str:
    seconds = cardinal(match["second"].lstrip("0") or "0")
    return f"{cardinal(match['hour'])} {two_digits(match['minute'])} and {seconds} seconds"


def _lap(match: re.Match[str]) -> str:
    minutes = int(match["minute"])
    seconds = cardinal(match["second"].lstrip("0") or "0")
    return f"{cardinal(minutes)} minute{'s' * (minutes != 1)} {seconds} point {digits(match['fraction'])} seconds"


def _weekday(match: re.Match[str]) -> str:
    return next(name for name in _DAYS if name.startswith(match["weekday"][:3]))


def _names_to(match: re.Match[str]) -> str:
    names = _DAYS if match["first"] in {name[:3] for name in _DAYS} else _MONTHS
    first, last = (next(name for name in names if name.startswith(match[part])) for part in ("first", "last"))
    return f"{first} to {last}"


_THREE_DAYS = "Mon|Tue|Wed|Thu|Fri|Sat|Sun"
_SHORT_DAYS = "Mon|Tues?|Weds?|Thurs?|Thu|Fri|Sat|Sun"
_THREE_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_CLOCK = r"\d{1,2}(?::[0-5]\d)?"
_HALF = r"(?P<half>[aApP]\.?[mM])"
# The stop of "p.m." is its own within a sentence, and the sentence's too at its end.
_HALF_STOP = r"(?:(?<=\.[mM])\.(?!\s*$|\s+[\"'“‘(]?[A-Z][a-z]|[\"'”’)]+\s*$))?"

DATES = (
    rule(r"(?<![\w./-])(?P<year>\d{4})-(?P<month>0[1-9]|1[0-2])-(?P<day>0[1-9]|[12]\d|3[01])(?![\w/-])", _iso),
    rule(r"(?<![\w./-])(?P<first>\d{1,2})/(?P<second>\d{1,2})/(?P<year>\d{4}|\d{2})(?![\w/])", _numeric),
    rule(rf"(?<!\w)(?P<first>{_THREE_DAYS})\.?[-–](?P<last>{_THREE_DAYS})(?!\w)", _names_to),
    rule(rf"(?<!\w)(?P<first>{_THREE_MONTHS})\.?[-–](?P<last>{_THREE_MONTHS})(?!\w)", _names_to),
    rule(rf"(?<!\w)(?P<weekday>{_SHORT_DAYS})\.?(?=,? {_MONTH}\b)", _weekday),
    rule(rf"(?<!\w)(?P<weekday>{_SHORT_DAYS})\.(?=,? [A-Za-z\d])", _weekday),
    rule(
        rf"(?<!\w)(?P<article>[Tt]he )?(?P<on>(?i:on|by|until|since|before|after|from) )?(?<![\d.,/-])"
        rf"0?{_DAY}(?:st|nd|rd|th)? (?:of )?{_MONTH}\b\.?(?:,? {_YEAR}\b)?"
        r"(?!\s\d{1,2}(?:st|nd|rd|th|,)?\b)",
        lambda m: _british(m) if m["article"] or m["on"] or m["year"] or "of" in m[0] else m[0],
    ),
    rule(
        rf"(?<!\w){_MONTH}\.? 0?{_DAY}(?:st|nd|rd|th)?{_NO_NUMBER}(?:,? {_YEAR}{_NO_NUMBER})?",
        _day_of_month,
    ),
    rule(
        r"(?<!\w)(?P<month>Jan|Feb|Mar|Apr|Aug|Sept?|Oct|Nov|Dec)\.(?= ['‘’]?\d| [a-z]|,)", lambda m: _month(m["month"])
    ),
    rule(rf"(?<![\w.,/$€£:-]){_YEAR}[-–](?P<last>1[1-9]\d\d|20\d\d|\d\d)(?![\w%/-]|[.,:]\d)", _years),
    rule(r"(?<![\w.,])['‘’]?(?P<century>1[1-9]|20)(?P<decade>\d)0['’]?s(?!\w)", _decade),
    rule(r"(?<![\w.,$€£])['‘’]?(?P<century>)(?P<decade>\d)0['’]?s(?!\w)", _decade),
    rule(r"(?<!\w)['‘’](?P<year>\d\d)(?![\w'’])(?=\W|$)", lambda m: two_digits(m["year"])),
)
TIMES = (
    rule(
        rf"(?<![\w.,:/$€£-])(?P<from>noon|midnight|{_CLOCK}(?: ?[aApP]\.?[mM]\.?)?)"
        rf" ?[-–] ?(?={_CLOCK} ?[aApP]\.?[mM]\b|\d{{1,2}}:[0-5]\d(?![\d:]))",
        lambda m: f"{m['from']} to ",
    ),
    rule(r"(?<![\w.:/])(?P<minute>\d{1,2}):(?P<second>[0-5]\d)\.(?P<fraction>\d{1,3})(?![\w:])", _lap),
    rule(r"(?<![\w.:/])(?P<hour>\d{1,2}):(?P<minute>[0-5]\d):(?P<second>[0-5]\d)(?![\w:])", _seconds),
    rule(
        r"(?<![\w.:/])(?P<hour>\d{1,2})(?::(?P<minute>[0-5]\d))? ?" + _HALF + r"(?!\w)" + _HALF_STOP,
        _time,
    ),
    rule(r"(?<![\w.:/])(?P<hour>\d{1,2}):(?P<minute>[0-5]\d)(?P<half>)(?![\w:]|\.\d)", _time),
)
