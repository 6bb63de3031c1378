"""Cleans a text's characters before any rule reads it: one character for each meaning, and none that nobody sees.

    written   New(U+00A0)York, we`re ﬁne, Cafe(U+0301), １２０㎡, H₂O, 10⁵
    clean     New York, we're fine, Café, 120m², H2O, 10^5

Based on Unicode's NFKC, less what would lose a meaning: Chinese punctuation, fractions, exponents, signs. What becomes
of a character depends on the few before it and the one behind it, so that the result is the same however the text is
divided into pieces. Pure.
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache

from gateway.text.stretches import Stretch, TextReader

Change = tuple[str, str]
"""A stretch as it is written, and clean."""

_INVISIBLE = (
    "\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f"
    "\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\uffff\U000e0000-\U000e0fff"
)
_STRUCK = "\u0334-\u0338\u20d2\u20d3\u20dd-\u20e5"
"""Marks that strike a letter through or stand around it."""
# They join letters of these scripts, and emoji, which are not spoken.
_JOINED = "\u0600-\u109f\u1780-\u18af"
_BLANKS = "\xa0\u1680\u2000-\u200a\u202f\u205f\u3000"
_LINE_ENDS = {"\x0b": "\n", "\x0c": "\n", "\x85": "\n", "\u2028": "\n", "\u2029": "\n\n"}
_SIGNS = {"´": "’", "‛": "‘", "‟": "“", "❛": "‘", "❜": "’", "❝": "“", "❞": "”", "〝": "“", "〞": "”", "〟": "”"}
_SIGNS |= {"‐": "-", "‑": "-", "‒": "-", "⁃": "-", "―": "—", "⁄": "/", "∕": "/", "∶": ":", "․": ".", "⁎": "*"}
_SIGNS |= dict.fromkeys("⋅∙", "·")
# Marks of Chinese and Japanese, and signs that the rules of a language know.
_KEPT = "！（），．：；？～＜＞［＼］｛｜｝｟｠…‥″‴ªº™℃℉№¼½¾\u0e33\u0eb3"
_KEPT_RANGES = ((0x2150, 0x215F), (0x3131, 0x318F))
"""Fractions, and the letters that Korean laughs with."""
_RANGES = (
    (0xA0, 0x3400),
    (0xA640, 0xA800),
    (0xAB5B, 0xAB6A),
    (0xF900, 0x10000),
    (0x1D400, 0x1D800),
    (0x2F800, 0x2FA20),
)
"""Where there are characters that NFKC changes; Hangul syllables are none of them."""
_LONGEST = 6
"""Most characters that stand for one, so that no text grows much: ㌖ has six, and Arabic has one of 18."""
_SPACED_MARK = "<compat> 0020 "
_ONE_STEP = ("<square>", "<wide>", "<narrow>")
"""Kinds of characters that are made of others, which mean more than what NFKC makes of those: ㎡ is m²."""
_LETTER = "A-Za-z\u00c0-\u024f\u0370-\u0523\u1e00-\u1fff"
_APOSTROPHES = "`´’‘‛ʼʻʹ＇ꞌ՚"
_EXPONENT = "⁰¹²³⁴-⁹⁺⁻ⁿⁱ"
_NOTED = r"(?<=[a-z]{4})|(?<=[.,;:!?\"”’。，！？」”\u4e00-\u9fff])"
"""Behind these, small raised digits are the number of a note, which is not spoken."""
_MOST_MARKS = 8
_CONTEXT = 8
"""Characters before a text that its beginning depends on."""
_SLICE = 1024


def _clean_character(character: str) -> str:
    """Return what stands for a character that is clean or not."""
    if character in _KEPT or any(first <= ord(character) < end for first, end in _KEPT_RANGES):
        return character
    if (sign := _SIGNS.get(character)) is not None:
        return sign
    kind, *parts = unicodedata.decomposition(character).split() or [""]
    if kind in _ONE_STEP:
        return "".join(chr(int(part, 16)) for part in parts)
    is_mark_alone = unicodedata.decomposition(character).startswith(_SPACED_MARK) and len(parts) > 1
    clean = unicodedata.normalize("NFKC", character)
    return character if is_mark_alone or len(clean) > _LONGEST else clean


def _tables() -> tuple[dict[str, str], str]:
    """Return what is put for each character that is not clean, and the marks that belong to the letter before them."""
    characters = [chr(code) for first, end in _RANGES for code in range(first, end)]
    handled = re.compile(f"[{_EXPONENT}{_BLANKS}]")
    clean = {each: _clean_character(each) for each in characters if not handled.match(each)}
    pairs = (unicodedata.decomposition(each).split() for each in characters)
    marks = {chr(int(pair[1], 16)) for pair in pairs if len(pair) == 2 and pair[0][0] != "<"}
    jamo = [*map(chr, range(0x1161, 0x1176)), *map(chr, range(0x11A8, 0x11C3))]
    changed = {each: put for each, put in clean.items() if put != each and not unicodedata.combining(each)}
    return changed | _LINE_ENDS, "".join(sorted({*marks, *jamo, "ﾞ", "ﾟ"}))


_CLEAN, _MARKS = _tables()
_OTHER = re.escape("".join(each for each in _CLEAN if each <= "\uffff")) + "\U0001d400-\U0001d7ff\U0002f800-\U0002fa1f"
"""Characters of `_CLEAN`; beyond the first plane as ranges, which `re` finds faster."""
_LETTER_BEFORE_MARKS = r"[^\W\d_\u3400-\u9fff]"
_NOTABLE = re.compile(f"[{_BLANKS}{_INVISIBLE}{_STRUCK}\u200c\u200d{_EXPONENT}{_APOSTROPHES}{_MARKS}{_OTHER}]")
"""Only here may there be something to clean."""
_UNCLEAN = re.compile(
    rf"(?P<marked>{_LETTER_BEFORE_MARKS}[{_MARKS}]{{1,{_MOST_MARKS}}})"
    rf"|(?P<blank>[{_BLANKS}])"
    rf"|(?P<gone>[{_INVISIBLE}{_STRUCK}]|(?<![{_JOINED}])[\u200c\u200d])"
    rf"|(?P<note>(?:{_NOTED})[⁰¹²³⁴-⁹]{{1,{_MOST_MARKS}}})"
    rf"|(?P<exponent>[{_EXPONENT}]{{1,{_MOST_MARKS}}})"
    rf"|(?P<apostrophe>(?<=[{_LETTER}])[{_APOSTROPHES}](?=[{_LETTER}]))"
    rf"|(?P<other>[{_OTHER}])"
)
_UNFINISHED = re.compile(
    rf"(?:[{_EXPONENT}]{{1,{_MOST_MARKS - 1}}}|{_LETTER_BEFORE_MARKS}[{_MARKS}]{{0,{_MOST_MARKS - 1}}}"
    rf"|[{_APOSTROPHES}])\Z"
)
_ASCII_UNCLEAN = re.compile("[A-Za-z]`|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def _put(match: re.Match[str]) -> str:
    found, kind = match[0], match.lastgroup
    if kind == "exponent":
        return found if found in ("²", "³") else "^" + unicodedata.normalize("NFKC", found).replace("−", "-")
    if kind == "marked":
        # Half-width kana and their marks become full ones, which have accented forms.
        full = unicodedata.normalize("NFKC" if found[0] in _CLEAN else "NFC", found)
        return "".join(_CLEAN.get(each, each) for each in full)
    return {"blank": " ", "apostrophe": "'"}.get(kind or "") or (
        "" if kind in ("gone", "note") else _CLEAN.get(found, found)
    )


def changes(text: str, at: int = 0) -> Iterator[Change]:
    """Yield the text from `at` on, part by part: as it is written, and clean."""
    place = None if text.isascii() and not _ASCII_UNCLEAN.search(text) else _NOTABLE.search(text, at)
    while place is not None:
        start, end = place.start(), place.end()
        match = _UNCLEAN.match(text, start - 1) if place[0] in _MARKS and start > at else None
        if match is not None:
            start -= 1
        else:
            match = _UNCLEAN.match(text, start)
        if match is not None:
            if at < start:
                yield text[at:start], text[at:start]
            yield match[0], _put(match)
            at = end = match.end()
        place = _NOTABLE.search(text, end)
    if at < len(text):
        yield text[at:], text[at:]


def _certain(found: list[Change]) -> list[Change]:
    """Return what does not depend on the text that may follow."""
    if not found:
        return found
    *before, (written, clean) = found
    tail = _UNFINISHED.search(written, max(0, len(written) - _MOST_MARKS))
    if tail is None or (tail.start() and written != clean):
        return found
    return [*before, (written[: tail.start()],) * 2] if tail.start() else before


@lru_cache(maxsize=64)
def cleaned(text: str) -> str:
    """Return a whole text clean, such as the transcript of a voice, which each request in it asks for."""
    return "".join(clean for _, clean in changes(text))


class CleaningReader:
    """Cleans a text as it arrives and hands it to another reader; stretches tell what was written as it arrived."""

    def __init__(self, reader: TextReader) -> None:
        """Begin a text with what reads it when it is clean."""
        self._reader = reader
        self._text, self._at = "", 0
        """The text's end, and from where on it is not clean yet."""
        self._changes: deque[Change] = deque()
        """What was handed on and has not come back."""

    def reading(self, piece: str) -> Iterator[list[Stretch]]:
        """See `TextReader.reading`."""
        for at in range(0, len(piece), _SLICE):
            self._text += piece[at : at + _SLICE]
            yield from self._handed_on(_certain(list(changes(self._text, self._at))))

    def finishing(self) -> Iterator[list[Stretch]]:
        """See `TextReader.finishing`."""
        yield from self._handed_on(list(changes(self._text, self._at)))
        for stretches in self._reader.finishing():
            yield self._as_received(stretches)
        yield [Stretch(written, "") for written, _ in self._changes]
        self._text, self._at = "", 0
        self._changes.clear()

    def _handed_on(self, found: list[Change]) -> Iterator[list[Stretch]]:
        end = self._at + sum(len(written) for written, _ in found)
        self._at = min(end, _CONTEXT)
        self._text = self._text[end - self._at :]
        self._changes.extend(found)
        for stretches in self._reader.reading("".join(clean for _, clean in found)):
            yield self._as_received(stretches)

    def _as_received(self, stretches: Iterable[Stretch]) -> list[Stretch]:
        return [received for stretch in stretches for received in self._received(stretch)]

    def _received(self, stretch: Stretch) -> list[Stretch]:
        """Return a stretch of the clean text as stretches of the text as it arrived."""
        taken = list(self._taken(len(stretch.written)))
        if all(written == clean for written, clean in taken):
            return [stretch]
        if stretch.written != stretch.spoken:
            return [replace(stretch, written="".join(written for written, _ in taken))]
        *before, last = [replace(stretch, written=written, spoken=clean, pause=None) for written, clean in taken]
        return [*before, replace(last, pause=stretch.pause)]

    def _taken(self, missing: int) -> Iterator[Change]:
        """Take the next so many clean characters; of what was changed and is taken in part, all of it was written."""
        while missing:
            written, clean = self._changes.popleft()
            if len(clean) > missing:
                end = missing if written == clean else len(written)
                self._changes.appendleft((written[end:], clean[missing:]))
                written, clean = written[:end], clean[:missing]
            missing -= len(clean)
            yield written, clean
