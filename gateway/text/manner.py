"""How a text says that it is spoken: the language, pace, volume and style of a stretch, and silence behind it. Pure.

<prosody rate="80%" volume="+6dB">   <break time="300ms"/>   <break strength="strong"/>   <break/>
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gateway.errors import InvalidRequestError

MIN_RATE, MAX_RATE = 0.25, 4.0
MIN_VOLUME_DB, MAX_VOLUME_DB = -40.0, 12.0
_RATES = {"x-slow": 0.5, "slow": 0.75, "medium": 1.0, "default": 1.0, "fast": 1.25, "x-fast": 1.5}
_VOLUMES_DB = {"x-soft": -12.0, "soft": -6.0, "medium": 0.0, "default": 0.0, "loud": 4.0, "x-loud": 8.0}
_SILENT = "silent"
_PERCENT = re.compile(r"(?P<sign>[+-])?(?P<number>\d{1,4}(?:\.\d{1,4})?)%")
_FACTOR = re.compile(r"\d{1,2}(?:\.\d{1,4})?")
_DECIBEL = re.compile(r"[+-]\d{1,3}(?:\.\d{1,4})?dB", re.IGNORECASE)
_PERCENTS = 100.0
_DB_A_DECADE = 20.0


@dataclass(frozen=True)
class Manner:
    """How a stretch is spoken."""

    language: str | None = None
    """Primary subtag of BCP 47; None: the language of the rest of the text."""
    rate: float = 1.0
    """Speed relative to normal, at the same pitch: 0.25 to 4."""
    gain: float = 1.0
    """Factor that samples are multiplied by, 0 to 4."""
    style: str | None = None
    """Style as in `styles.Style.words`; None: the style of the rest of the text."""


PLAIN = Manner()


def rate_of(value: str) -> float:
    """Read the `rate` of a `prosody`: a name, a factor such as 0.8, or a percentage such as 80% or -20%.

    Raises:
        ValueError: it is none of these, or out of range.
    """
    text, rate = value.strip().lower(), None
    if text in _RATES:
        rate = _RATES[text]
    elif percent := _PERCENT.fullmatch(text):
        number = float(percent["number"]) / _PERCENTS
        rate = {None: number, "+": 1 + number, "-": 1 - number}[percent["sign"]]
    elif _FACTOR.fullmatch(text):
        rate = float(text)
    if rate is None or not MIN_RATE <= rate <= MAX_RATE:
        expected = f"expected {', '.join(_RATES)}, or {MIN_RATE:.0%} to {MAX_RATE:.0%}"
        raise ValueError(f"got the rate {value[:40]!r}, {expected}")
    return rate


def gain_of(value: str) -> float:
    """Read the `volume` of a `prosody`: a name, or decibels such as +6dB.

    Raises:
        ValueError: it is neither, or out of range.
    """
    text = value.strip()
    if text.lower() == _SILENT:
        return 0.0
    decibels = _VOLUMES_DB.get(text.lower())
    if decibels is None and _DECIBEL.fullmatch(text):
        decibels = float(text[:-2])
    if decibels is None or not MIN_VOLUME_DB <= decibels <= MAX_VOLUME_DB:
        expected = f"expected {_SILENT}, {', '.join(_VOLUMES_DB)}, or {MIN_VOLUME_DB:+g}dB to {MAX_VOLUME_DB:+g}dB"
        raise ValueError(f"got the volume {value[:40]!r}, {expected}")
    return float(10.0 ** (decibels / _DB_A_DECADE))


MAX_PAUSE_S = 10.0
"""Longest pause that one tag may ask for, in seconds."""
MAX_PAUSES_S = 600.0
"""Most seconds of pauses in a text, or between two flushes: asking for silence costs a caller nothing."""
STRENGTHS_S = {"none": 0.0, "x-weak": 0.25, "weak": 0.5, "medium": 0.75, "strong": 1.0, "x-strong": 1.25}
"""Seconds for each strength that SSML names; SSML leaves the lengths to the server."""
_USUAL_STRENGTH = "medium"
_MS_PER_S = 1000.0
_BREAK = re.compile(r"<break(?P<attributes>(?:\s[^<>]{0,400})?)/?>", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"([\w:.-]{1,40})\s?=\s?(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'/>]+))")
_TIME = re.compile(r"\+?(\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})(ms|s)")


def read_break(attributes: str) -> float:
    """Return the seconds of silence that a tag asks for; `time` goes before `strength`.

    Args:
        attributes: the tag without its name and brackets.

    Raises:
        InvalidRequestError: a time or strength that can't be read, or a time that is too long.
    """
    named = {name.lower(): "".join(values) for name, *values in _ATTRIBUTE.findall(attributes)}
    return pause_of(named.get("time"), named.get("strength"))


def pause_of(time: str | None, strength: str | None) -> float:
    """Return the seconds of silence for the attributes of a break; see `read_break`."""
    if time is not None:
        return _seconds(time.strip().lower())
    name = _USUAL_STRENGTH if strength is None else strength.strip().lower()
    if name not in STRENGTHS_S:
        known = ", ".join(STRENGTHS_S)
        raise InvalidRequestError(f"got a break of strength {strength!r}, expected one of {known}", param="input")
    return STRENGTHS_S[name]


def check_breaks(text: str) -> None:
    """Refuse a whole text for a break that can't be had, before any of it is spoken.

    Raises:
        InvalidRequestError: see `read_break`; or all of them are too long together.
    """
    check_sum(sum(read_break(found["attributes"]) for found in _BREAK.finditer(text)))


def check_sum(seconds: float) -> None:
    """Refuse more silence than a text may have.

    Raises:
        InvalidRequestError: it is more than `MAX_PAUSES_S`.
    """
    if seconds > MAX_PAUSES_S:
        got = f"the breaks of the text last {seconds:g} s together, the limit is {MAX_PAUSES_S:g} s"
        raise InvalidRequestError(f"{got}; shorten them, or send the text in parts", param="input")


def _seconds(time: str) -> float:
    found = _TIME.fullmatch(time)
    if found is None:
        expected = 'expected a number with its unit such as "300ms" or "1.5s"'
        raise InvalidRequestError(f"got a break with time {time!r}, {expected}", param="input")
    seconds = float(found[1]) / (_MS_PER_S if found[2] == "ms" else 1.0)
    if seconds > MAX_PAUSE_S:
        raise InvalidRequestError(f"got a break of {time}, the longest is {MAX_PAUSE_S:g}s", param="input")
    return seconds
