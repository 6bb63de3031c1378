"""The engine's phones as class numbers; supervision of the speech tokenizer, never seen at inference."""

from __future__ import annotations

PAUSE = "pau"
PHONES = (
    PAUSE,
    *("aa", "ae", "ah", "ao", "aw", "ax", "axr", "ay", "b", "ch", "d", "dh", "dx", "eh", "el", "em", "en", "er", "ey"),
    *("f", "g", "hh", "hv", "ih", "iy", "jh", "k", "l", "m", "n", "nx", "ng", "ow", "oy", "p", "r", "s", "sh", "t"),
    *("th", "uh", "uw", "v", "w", "y", "z", "zh"),
)
"""The radio phone set that flite's and Festival's American voices share."""

_NUMBERS = {phone: number for number, phone in enumerate(PHONES)}


def phone_number(phone: str) -> int:
    """Return a phone's class.

    Raises:
        KeyError: no such phone.
    """
    if phone not in _NUMBERS:
        raise KeyError(f"got phone {phone!r}, expected one of {PHONES}")
    return _NUMBERS[phone]
