"""Where a text may be cut, and how well: after a paragraph, a sentence, a clause, a word, or anywhere.

Reads a text from left to right in small chunks. What it says of a chunk depends on the text up to the first character
behind it (behind an abbreviation or a number with a full stop: the first word; in a list: the number of the next item),
and on nothing later; so the answers are the same however the text arrives. Knows nothing of the lengths wanted.

`ended` gives a segment the end that speech LLMs know from training: a mark that ends a sentence, nothing behind it.

    Please bring the blue folder   ->  Please bring the blue folder.
    He said "Yes."                 ->  He said "Yes".

Without one a model may not know that it is done and goes on with words of its own. Measured on the bundled voice: it
babbles behind a bare word, a dash, a quote, a comma, and now and then behind an ellipsis; not behind `. ! ?`.

`SentencexRules` tell whether a full stop ends a sentence. `spoken_length` is the unit of all bounds on segments: how
long a text is when spoken, in letters of an alphabet.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from enum import IntEnum

from gateway.text.alignment import NormalizedText, replaced, unchanged
from gateway.text.sentences import SentencexRules, is_abbreviation, list_markers
from gateway.text.tags import InlineTags

# Source: Unicode's properties Sentence_Terminal and Terminal_Punctuation; differs in that only scripts in daily use
# are here. Narrow marks end something only with blank space behind them (3.14, 12:30, example.com), wide ones always.
NARROW_TERMINATORS = ".!?…։؟۔।॥၊။።፧៕‼⁇⁈⁉"
WIDE_TERMINATORS = "。！？｡．"
NARROW_CLAUSE_MARKS = ",;:،؛՝፣፤–"
WIDE_CLAUSE_MARKS = "，、；：､—…"
_WIDE_ENDS, _NARROW_ENDS = tuple(WIDE_TERMINATORS), tuple(NARROW_TERMINATORS)
_WIDE_CLAUSE_ENDS, _NARROW_CLAUSE_ENDS = tuple(WIDE_CLAUSE_MARKS), tuple(NARROW_CLAUSE_MARKS)
CLOSERS = "\"'”’»›)]}）］｝〉》」』】〕＂＇"
CLOSERS_AND_BLANKS = CLOSERS + "“‘ \t\n"
ALL_MARKS = frozenset(NARROW_TERMINATORS + WIDE_TERMINATORS + NARROW_CLAUSE_MARKS + WIDE_CLAUSE_MARKS)
# German quotes close with the mark that opens English ones; French ones close behind a space.
_STRIPPED = CLOSERS + "“‘" + " \u00a0\u202f"
# What is before one of these belongs to it. Straight quotes and dashes are left out: they may open something.
_NO_BREAK_BEFORE = (ALL_MARKS | frozenset(CLOSERS)) - frozenset("\"'–—")
_PARAGRAPH_LINE_BREAKS = 2
_ZERO_WIDTH_JOINER = "\u200d"
_EMOJI_SKIN_TONES = range(0x1F3FB, 0x1F400)
_ANY_SENTENCE_START = "A"

_TITLE_QUOTES = (("《", "》"), ("〈", "〉"), ("『", "』"), ("“", "”"))
_OPENS_TITLE = re.compile('[《〈『“"]')
_MAY_BE_LISTED = re.compile(r"(?:(?<=\s)|^|[•⁃])(?:\d{1,2}|[a-z])\.?[.)]")
_LONGEST_TITLE = 40
"""Characters of a quotation that is taken for a title; a longer one is somebody's speech."""
_SCALE = re.compile(
    r"(?<![$€£¥\d.,])\d[\d.,]{0,12} ?(?:hundred|thousand|million|billion|trillion|[万亿萬億])$"
    r"|(?<!\w)(?<!\d )(?:two|three|four|five|six|seven|eight|nine|ten|twenty|thirty|forty|fifty|sixty|seventy|eighty"
    r"|ninety|hundred|thousand|million|billion|point)$"
)
"""The end of a number that has more than digits; what is counted follows, unless a currency stands before."""
_LONGEST_SCALE = 25
_NAME = re.compile(r"(?<!\w)[A-Z][\w'’.&-]*$")
_NUMBERED = re.compile(r"(?<!\w)(?:chapter|part|page|section|scene|act|step|volume|book)$")

# Bounds of a chunk's parts and of the look-ahead, in characters.
_MAX_BODY = 12
_MAX_JOINED = 20
_MAX_MARKS = 4
_MAX_SPACE = 16
_NEXT_WORD = re.compile(r"\w{1,16}")
_LONGEST_NEXT_WORD = 16

# Each of these is spoken as about three letters are: a syllable, or the word of a digit.
_SYLLABLE_OR_DIGIT = re.compile(
    "[0-9０-９々\u1100-\u11ff\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)
LONGEST_CHARACTER = 3
"""Spoken length of a digit, an ideograph, a kana or a Hangul syllable; every other character counts as one."""


def spoken_length(text: str) -> int:
    """Return the length of a text as spoken, in letters; never less than its characters."""
    return len(text) + (LONGEST_CHARACTER - 1) * len(_SYLLABLE_OR_DIGIT.findall(text))


class Strength(IntEnum):
    """How good a place to cut is."""

    BOUND = 1
    """A place within what is read as one: a name, a number and its unit, a title, an item and its number."""
    ANYWHERE = 2
    """A place between two characters of one word, or before a mark that belongs to the word."""
    SPACE = 3
    CLAUSE = 4
    SENTENCE = 5
    PARAGRAPH = 6
    """A blank line, or the end of the text."""


@dataclass(frozen=True)
class Break:
    """A place to cut: behind the last character of a chunk, its blank space included."""

    end: int
    strength: Strength


class BreakFinder:
    """Finds the breaks of texts; has no state of its own.

    A chunk is one tag, or  `body  </tag>  marks  closers  </tag>  space`  with every part optional and bounded.
    """

    def __init__(self, rules: SentencexRules, tags: InlineTags) -> None:
        """Keep what tells the ends of sentences, and the tags, which are never cut."""
        self._rules = rules
        self.tags = tags
        wide, closers = re.escape(WIDE_TERMINATORS + WIDE_CLAUSE_MARKS), re.escape(CLOSERS)
        closing_tag = rf"(?:{tags.closing_pattern})?"
        letters = LONGEST_CHARACTER * (_MAX_BODY + _MAX_JOINED)
        self.longest_chunk = letters + 2 * tags.longest_tag + 2 * _MAX_MARKS + _MAX_SPACE
        """Spoken length that no chunk passes."""
        self._chunk = re.compile(
            rf"(?:{tags.pattern})|(?:(?!{tags.pattern})[^\s{wide}]){{0,{_MAX_BODY}}}{closing_tag}"
            rf"[{wide}]{{0,{_MAX_MARKS}}}[{closers}]{{0,{_MAX_MARKS}}}{closing_tag}\s{{0,{_MAX_SPACE}}}"
        )

    def next_break(self, text: str, at: int, *, is_complete: bool) -> Break | None:
        """Return the break that ends the chunk beginning at `at`.

        Args:
            text: from the beginning of the segment to as far as it is known.
            at: end of the chunk before; 0 for the first.
            is_complete: no more text follows.

        Returns:
            None if there is no further chunk, or more text is needed to know its end or what that is worth.
        """
        known = len(text) if is_complete else self.tags.unfinished_from(text)
        match = self._chunk.match(text, at, known)
        if match is None or match.end() == at:
            return None
        end = match.end()
        if end < known and not (text[end - 1] == " " and text[end].isascii()):
            end = _joined_end(text, end, known)
        if end < known:
            return self._judged(text, at, end, None if is_complete else known)
        return Break(end, Strength.PARAGRAPH) if is_complete else None

    def _judged(self, text: str, at: int, end: int, known: int | None) -> Break | None:
        """Judge the break at `end`, which has text behind it; `known` is None if that text is complete."""
        chunk = text[at:end]
        space = chunk[len(chunk.rstrip()) :]
        if space.count("\n") >= _PARAGRAPH_LINE_BREAKS:
            return Break(end, Strength.PARAGRAPH)
        before = self.tags.removed(text[:end]).rstrip()
        if _MAY_BE_LISTED.search(before) and (markers := [*list_markers(before)]):
            marker = markers[-1]  # of the item that the text is in
            if marker.end == len(before):
                return Break(end, Strength.BOUND)
            if space and (is_next := _is_at(marker.following, text, end, known)) is not False:
                return None if is_next is None else Break(end, Strength.SENTENCE)
        if _OPENS_TITLE.search(before) and _is_within_title(before):
            return Break(end, Strength.BOUND)
        strength = self._strength(text, before, end, space, known)
        return None if strength is None else Break(end, strength)

    def _strength(self, text: str, before: str, end: int, space: str, known: int | None) -> Strength | None:
        """Judge a break by the marks before it; None if more text must tell."""
        if text[end] in _NO_BREAK_BEFORE:
            return Strength.ANYWHERE
        bare = before.rstrip(_STRIPPED)
        if bare.endswith(_WIDE_ENDS) or (space and bare.endswith(_NARROW_ENDS)):
            after = self._word_after(bare, text, end, known)
            if after is None:
                return None
            if (strength := self._terminator_strength(bare, after, is_quoted=len(bare) < len(before))) is not None:
                return strength
        if bare.endswith(_WIDE_CLAUSE_ENDS) or (space and bare.endswith(_NARROW_CLAUSE_ENDS)) or "\n" in space:
            return Strength.CLAUSE
        if _are_read_as_one(before, text[end]):
            return Strength.BOUND
        return Strength.SPACE if space else Strength.ANYWHERE

    def _terminator_strength(self, bare: str, after: str, *, is_quoted: bool) -> Strength | None:
        """Judge a mark that may end a sentence; None if it ends nothing."""
        is_short = bare.endswith(".") and is_abbreviation(bare)
        if after[0].islower() and (is_quoted or bare.endswith(".")):
            return Strength.BOUND if is_short else Strength.CLAUSE  # approx. five; "Stop!" she said
        if self._rules.is_sentence_end(bare, after):
            return Strength.SENTENCE
        return Strength.BOUND if is_short else None

    def _word_after(self, bare: str, text: str, end: int, known: int | None) -> str | None:
        """Return what the sentence rules need of the text behind a mark; None if it may go on beyond what is known.

        The first character does, but for abbreviations and numbers: whether `5.` is an ordinal is told by the word
        behind it.
        """
        if not text[end].isalnum():
            return _ANY_SENTENCE_START
        is_number = bare.endswith(".") and bare[:-1][-1:].isdigit()
        if not is_number and not (bare.endswith(".") and is_abbreviation(bare)):
            return text[end]
        word = _NEXT_WORD.match(text, end, len(text) if known is None else known)
        if word is None:
            return text[end]
        is_cut_off = word.end() == known and len(word[0]) < _LONGEST_NEXT_WORD
        return None if is_cut_off else word[0]


def _is_at(marker: str, text: str, end: int, known: int | None) -> bool | None:
    """Tell whether the marker of an item, and a blank, stand at a position; None if more text must tell."""
    there = text[end : end + len(marker) + 1]
    if there.startswith(marker) and there[len(marker) :].isspace():
        return True
    may_go_on = known is not None and known <= end + len(marker)
    return None if may_go_on and marker.startswith(text[end:known]) else False


def _is_within_title(before: str) -> bool:
    """Tell whether a title or a short quotation was opened and not closed."""
    for opening, closing in _TITLE_QUOTES:
        start = before.rfind(opening)
        if start > before.rfind(closing) and len(before) - start <= _LONGEST_TITLE:
            return True
    start = before.rfind('"')
    is_open = start >= 0 and before.count('"') % 2 == 1 and not before[:start][-1:].isdigit()  # but 6'2" is a height
    return is_open and len(before) - start <= _LONGEST_TITLE


def _are_read_as_one(before: str, behind: str) -> bool:
    """Tell whether what ends here and what begins behind it, with or without a blank, are read as one."""
    if before[-1:].isdigit() or behind.isdigit() or _SCALE.search(before, max(0, len(before) - _LONGEST_SCALE)):
        return True
    pattern = _NAME if behind.isupper() else _NUMBERED if behind in "ivx" else None
    return pattern is not None and pattern.search(before, max(0, len(before) - _MAX_JOINED)) is not None


def _joined_end(text: str, end: int, known: int) -> int:
    """Move an end out of a word, an accented letter or a joined emoji, as far as the bound allows."""
    limit = min(known, end + _MAX_JOINED)
    while 0 < end < limit and _belong_together(text[end - 1], text[end]):
        end += 1
    return end


def _belong_together(left: str, right: str) -> bool:
    if unicodedata.category(right).startswith("M") or _ZERO_WIDTH_JOINER in (left, right):
        return True
    return ord(right) in _EMOJI_SKIN_TONES or (is_of_word(left) and is_of_word(right))


def is_of_word(character: str) -> bool:
    """Tell letters that are spelled into words, and digits, from syllables and ideographs."""
    return character.isdigit() or (character.isalnum() and spoken_length(character) == 1)


_ELLIPSES = "…‥"
_MARKS = "".join(mark for mark in NARROW_TERMINATORS + WIDE_TERMINATORS if mark not in _ELLIPSES)
_CLAUSE_MARKS = ",;:，、；：،؛՝፣፤"
_OPEN_ENDS = _ELLIPSES + "-–—~～"
_CLOSERS = CLOSERS.replace("]", "") + "“‘"
_TAIL_CHARACTERS = frozenset(_MARKS + _CLAUSE_MARKS + _OPEN_ENDS + _CLOSERS)
_CLOSING_TAG = re.compile(r"</[a-z]{1,20}>$")
_EAST_ASIAN = re.compile("[\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef]")
_STOPS = {"zh": "。", "ja": "。", "hi": "।", "mr": "।", "ne": "।", "bn": "।", "pa": "।", "ur": "۔", "hy": "։"}
_STOPS |= {"am": "።", "ti": "።", "my": "။", "km": "។"}
_DEFAULT_STOP = "."
_LONGEST_TAG = 24


def full_stop(text: str, language: str | None) -> str:
    """Return the mark that ends a statement behind a text.

    Args:
        text: what the mark is put behind.
        language: primary subtag of BCP 47; None if unknown.
    """
    if text and _EAST_ASIAN.match(text[-1]):
        return "。"
    stop = _STOPS.get(language or "", _DEFAULT_STOP)
    return _DEFAULT_STOP if text[-1:].isascii() else stop


def ended(text: str, language: str | None, *, is_last: bool) -> NormalizedText:
    """Return a segment that ends in a mark; blank space at its end stays.

    Args:
        text: as it is to be spoken.
        language: see `full_stop`.
        is_last: nothing follows, or the LLM knows whole texts only, so that a comma is no end either.
    """
    body = text.rstrip()
    words, closers, marks = _without_tail(body)
    if not any(map(str.isalnum, words)):
        return unchanged(text)
    end = closers + (_mark_of(marks, is_last) or full_stop(words, language))
    return unchanged(text) if words + end == body else replaced(text, [(len(words), len(body), end)])


def _without_tail(body: str) -> tuple[str, str, str]:
    """Return what is spoken, what closes behind it (quotes, brackets, tags) and the marks among that."""
    words, closers, marks = body, "", ""
    while words:
        tag = _CLOSING_TAG.search(words, max(0, len(words) - _LONGEST_TAG))
        part = tag[0] if tag else words[-1]
        if tag or part in _CLOSERS:
            closers = part + closers
        elif part in _TAIL_CHARACTERS:
            marks = part + marks
        elif not part.isspace():
            break
        words = words[: -len(part)]
    return words, closers, marks


def _mark_of(marks: str, is_last: bool) -> str:
    """Return the mark to end with out of those there were; empty if none will do."""
    ends = "".join(mark for mark in marks if mark in _MARKS)
    if ends:
        return ends[0] if len(set(ends)) == 1 else ends
    is_pause = marks and not is_last and all(mark in _CLAUSE_MARKS for mark in marks)
    return marks if is_pause else ""
