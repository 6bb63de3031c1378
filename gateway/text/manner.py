"""How a stretch of text is spoken where the text says so: its language, pace, volume and style. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

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
