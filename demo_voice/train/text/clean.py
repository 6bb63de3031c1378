"""What may stand in a training text, and how texts are brought into that form. Pure."""

from __future__ import annotations

import re

MIN_CHARACTERS, MAX_CHARACTERS = 6, 220
"""About half a second to 15 s of speech."""
_ALLOWED = re.compile(r"[A-Za-z0-9 ,.;:?!'\"$%&/()\-]+")
_HAS_WORD = re.compile(r"[A-Za-z]{2}|\d")
_PARENTHESIS = re.compile(r"\s*\([^()]*\)")
_SPACES = re.compile(r"\s+")
_DASH = re.compile(r"\s*--\s*")
_ENDS = ".?!"


def as_sentence(text: str) -> str | None:
    """Return the text as one sentence, capital first and a stop at the end; None if it has what we don't train on."""
    plain = _SPACES.sub(" ", _PARENTHESIS.sub("", _DASH.sub(", ", text.replace("`", "'")))).strip(" ;,:-\"'")
    if not plain or not _ALLOWED.fullmatch(plain) or not _HAS_WORD.search(plain):
        return None
    sentence = plain[0].upper() + plain[1:]
    if sentence[-1] not in _ENDS:
        sentence += "."
    return sentence if MIN_CHARACTERS <= len(sentence) <= MAX_CHARACTERS else None
