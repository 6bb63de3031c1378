"""What SSML's `say-as` asks to be read in a certain way, in English and Chinese words. Pure.

    digits                42          four two                              四二
    date, format dmy      3/5/2024    May third, twenty twenty four         二零二四年五月三日

Dates, times and amounts are written in a form that the language's normaliser reads one way only, and given to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gateway.text.chinese import words as chinese
from gateway.text.english import words as english

Normalize = Callable[[str], str]
"""Turns a text into words by the rules of its language."""
CHINESE = "zh"
LANGUAGES = ("en", CHINESE)
_MONTHS = "January February March April May June July August September October November December".split()
_DATE_PARTS = {"d": (1, 31), "m": (1, 12), "y": (1, 9999)}
_DATE_FORMATS = ("mdy", "dmy", "ymd", "md", "dm", "ym", "my", "d", "m", "y")
_USUAL_DATE = {"en": "mdy", CHINESE: "ymd"}
_TIME = re.compile(r"(?P<hour>\d{1,2})(?::(?P<minute>\d{2}))?(?::(?P<second>\d{2}))?\s?(?P<half>[ap]\.?m\.?)?", re.I)
_AMOUNT = re.compile(r"(?P<before>[A-Z]{3}|\D)?\s?(?P<number>\d[\d,]*(?:\.\d{1,2})?)\s?(?P<behind>[A-Z]{3}|\D)?")
_SIGNS = {"USD": "$", "EUR": "€", "GBP": "£", "JPY": "¥", "CNY": "¥", "KRW": "₩", "INR": "₹"}
_CHINESE_NAMES = {"$": "美元", "€": "欧元", "£": "英镑", "¥": "元", "₩": "韩元", "₹": "卢比"}
_ENGLISH_NAMES = {"CNY": "yuan"}
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")
_TELEPHONE = re.compile(r"\+?[\d\s().-]{2,30}")


def said_as(text: str, kind: str, form: str | None, language: str, normalize: Normalize) -> str:
    """Return what is spoken.

    Args:
        text: what stands between the tags, without blanks at its ends.
        kind: `interpret-as`.
        form: `format`; None: the usual one of the language.
        language: one of `LANGUAGES`.
        normalize: see `Normalize`.

    Raises:
        ValueError: the text is not of that kind, or there is no such kind or format.
    """
    reader = _READERS.get(kind.lower())
    if reader is None:
        raise ValueError(f"got interpret-as {kind[:40]!r}, expected one of {', '.join(sorted(_READERS))}")
    if not text:
        raise ValueError(f"there is nothing to read as {kind}")
    return reader(text, (form or "").lower(), language, normalize)


def _digits(text: str, form: str, language: str, normalize: Normalize) -> str:
    _expect(re.fullmatch(r"[\d\s.,-]*\d[\d\s.,-]*", text), text, "digits")
    return _one_by_one(text, language)


def _characters(text: str, form: str, language: str, normalize: Normalize) -> str:
    spelled = [_one_by_one(each, language) if each.isdecimal() else each.upper() for each in text if each.isalnum()]
    _expect(spelled, text, "characters")
    return " ".join(spelled)


def _cardinal(text: str, form: str, language: str, normalize: Normalize) -> str:
    _expect(_NUMBER.fullmatch(text), text, "a number")
    plain = text.replace(",", "")
    if language == CHINESE:
        return normalize(plain)
    return ("minus " if plain[0] == "-" else "") + english.cardinal(plain.lstrip("+-"))


def _ordinal(text: str, form: str, language: str, normalize: Normalize) -> str:
    number = re.fullmatch(r"(?:第)?(\d{1,9})(?:st|nd|rd|th)?", text.replace(",", ""), re.I)
    _expect(number, text, "an ordinal such as 3 or 3rd")
    assert number is not None
    return normalize(f"第{number[1]}") if language == CHINESE else english.ordinal(int(number[1]))


def _telephone(text: str, form: str, language: str, normalize: Normalize) -> str:
    _expect(_TELEPHONE.fullmatch(text), text, "a telephone number")
    parts = [_one_by_one(part, language, is_telephone=True) for part in re.findall(r"\d+", text)]
    plus = {"en": "plus ", CHINESE: "加"}[language] if text.startswith("+") else ""
    return plus + ("，" if language == CHINESE else ", ").join(parts)


def _date(text: str, form: str, language: str, normalize: Normalize) -> str:
    form = form or _USUAL_DATE[language]
    if form not in _DATE_FORMATS:
        raise ValueError(f"got the format {form[:20]!r} of a date, expected one of {', '.join(_DATE_FORMATS)}")
    numbers = [int(number) for number in re.findall(r"\d{1,4}", text)]
    is_plain = re.fullmatch(r"\d{1,4}(?:[-/. ]\d{1,4}){0,2}", text) and len(numbers) == len(form)
    parts = dict(zip(form, numbers, strict=False))
    is_real = all(_DATE_PARTS[part][0] <= number <= _DATE_PARTS[part][1] for part, number in parts.items())
    _expect(is_plain and is_real, text, f"a date of the format {form}")
    return _chinese_date(parts, normalize) if language == CHINESE else _english_date(parts)


def _chinese_date(parts: dict[str, int], normalize: Normalize) -> str:
    units = (("y", "年"), ("m", "月"), ("d", "日"))
    return normalize("".join(f"{parts[part]}{unit}" for part, unit in units if part in parts))


def _english_date(parts: dict[str, int]) -> str:
    day = english.ordinal(parts["d"]) if "d" in parts else ""
    month = _MONTHS[parts["m"] - 1] if "m" in parts else ""
    year = english.year(parts["y"]) if "y" in parts else ""
    front = f"{month} {day}".strip()
    return ", ".join(filter(None, (front, year))) if day else f"{front} {year}".strip()


def _time(text: str, form: str, language: str, normalize: Normalize) -> str:
    time = _TIME.fullmatch(text)
    is_real = time and int(time["hour"]) < 25 and int(time["minute"] or 0) < 60 and int(time["second"] or 0) < 60
    _expect(is_real, text, "a time such as 14:30 or 2:30 pm")
    assert time is not None
    hour, minute, second = int(time["hour"]), int(time["minute"] or 0), int(time["second"] or 0)
    half = (time["half"] or "").replace(".", "").lower()
    if language == CHINESE:
        name = {"am": "上午", "pm": "下午"}.get(half, "")
        return name + normalize(f"{hour}点" + (f"{minute}分" if minute else "整") + (f"{second}秒" if second else ""))
    words = [english.cardinal(hour), english.two_digits(f"{minute:02}") if minute else "" if half else "hundred"]
    seconds = f"and {english.cardinal(second)} seconds" if second else ""
    return " ".join(filter(None, (*words, seconds, " ".join(half.upper()))))


def _currency(text: str, form: str, language: str, normalize: Normalize) -> str:
    amount = _AMOUNT.fullmatch(text)
    named = [mark for mark in (amount["before"], amount["behind"]) if mark] if amount else []
    sign = _SIGNS.get(named[0], named[0]) if len(named) == 1 else ""
    _expect(sign in _CHINESE_NAMES, text, f"an amount such as $3.50 or 3.50 EUR ({', '.join(_SIGNS)})")
    assert amount is not None
    number = amount["number"].replace(",", "")
    if language == CHINESE:
        name = "日元" if named[0] == "JPY" else _CHINESE_NAMES[sign]
        return normalize(number) + name
    if named[0] in _ENGLISH_NAMES:
        return f"{english.cardinal(number)} {_ENGLISH_NAMES[named[0]]}"
    return normalize(f"{sign}{number}")


def _one_by_one(text: str, language: str, *, is_telephone: bool = False) -> str:
    if language != CHINESE:
        return english.digits(text)
    return chinese.digits("".join(filter(str.isdecimal, text)), "幺" if is_telephone else "一")


def _expect(is_right: object, text: str, expected: str) -> None:
    if not is_right:
        raise ValueError(f"got {text[:40]!r}, expected {expected}")


_READERS: dict[str, Callable[[str, str, str, Normalize], str]] = {
    "digits": _digits,
    "characters": _characters,
    "spell-out": _characters,
    "verbatim": _characters,
    "cardinal": _cardinal,
    "number": _cardinal,
    "ordinal": _ordinal,
    "telephone": _telephone,
    "date": _date,
    "time": _time,
    "currency": _currency,
}
