"""Reads `<break>` tags: how much silence a text asks for between two of its words. Pure.

    <break time="300ms"/>   <break time="1.5s"/>   <break strength="strong"/>   <break/>

Knows nothing of audio: who speaks the segments puts the silence between them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gateway.errors import InvalidRequestError

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


@dataclass(frozen=True)
class Pause:
    """Silence behind what was written before it."""

    seconds: float
    """Length in seconds, above 0 and at most `MAX_PAUSE_S`."""


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
