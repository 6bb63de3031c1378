"""Gives a segment the end that speech LLMs know from training: a mark that ends a sentence, and nothing behind it.

    Please bring the blue folder   ->  Please bring the blue folder.
    He said "Yes."                 ->  He said "Yes".
    But I—                         ->  But I.
    Well...                        ->  Well.

Without one a model may not know that it is done and goes on with words of its own. Measured on the bundled voice: it
babbles behind a bare word, a dash, a quote, a comma, and now and then behind an ellipsis; not behind `. ! ?`.
"""

from __future__ import annotations

import re

from gateway.text.alignment import Alignment, NormalizedText, SpokenStretch, unchanged
from gateway.text.segments.breaks import CLOSERS, NARROW_TERMINATORS, WIDE_TERMINATORS

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
    if words + end == body:
        return unchanged(text)
    spans = (SpokenStretch(len(words), len(words)), SpokenStretch(len(body) - len(words), len(end)))
    space = Alignment.identity(len(text) - len(body))
    return NormalizedText(words + end + text[len(body) :], Alignment((*spans, *space.spans)))


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
