"""Reads SSML as it arrives: a strict subset, of which everything is obeyed or refused with its line and column.

    <speak>
      <p>Wait <break time="300ms"/> for <sub alias="doctor">Dr.</sub> Who.</p>
      <p><prosody rate="slow">Room <say-as interpret-as="digits">42</say-as>.</prosody></p>
    </speak>

speak, p, s, break, sub, say-as, phoneme, prosody (rate, volume) and lang are known; everything else is refused, and
phoneme where the LLM reads words only.
Text that does not begin with <speak> is taken for what stands in one. Gives `Stretch`es as `MarkupReader` does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec

from gateway.errors import InvalidRequestError
from gateway.text.aliases import MAX_ALIAS, NO_PHONEMES
from gateway.text.breaks import ALL_MARKS, CLOSERS_AND_BLANKS, full_stop
from gateway.text.cleaning import cleaned
from gateway.text.manner import MAX_RATE, MIN_RATE, PLAIN, Manner, check_sum, gain_of, pause_of, rate_of
from gateway.text.normalization.language import primary_language
from gateway.text.normalization.say_as import CHINESE, LANGUAGES, said_as
from gateway.text.phonemes import IPA, phoneme_tags
from gateway.text.stretches import Stretch
from gateway.text.tags import InlineTags
from gateway.text.xml import OpenDocument, XmlProblem

Normalize = Callable[[str, str], str]
"""Takes a text and its language; returns it in words."""
MAX_SAID_AS = 200
"""Characters between the tags of a `say-as`."""
_SLICE = 256
"""Characters read in one step."""
_ROOT = "speak"
_BEGINS = re.compile(r"\s*(?:<\?xml|<speak[\s/>]|<!doctype)", re.IGNORECASE)
_MAY_BEGIN = re.compile(r"\s*(?:<(?:\?|\?x|\?xm|s|sp|spe|spea|speak)?)?", re.IGNORECASE)
_BLOCKS = {"p": "\n\n", "s": " "}
_WORDS = re.compile(r"\s+|\S+(?: \S+)*")
_HAN = re.compile("[\u3400-\u9fff]")
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,8})*")
_SILENT_ATTRIBUTES = ("version", "xml:lang", "onlangfailure", "xml:base")
_ATTRIBUTES = {
    "break": ("time", "strength"),
    "sub": ("alias",),
    "phoneme": ("alphabet", "ph"),
    "say-as": ("interpret-as", "format", "detail"),
    "prosody": ("rate", "volume"),
    "lang": ("xml:lang", "onlangfailure"),
    "p": ("xml:lang",),
    "s": ("xml:lang",),
}
_REPLACED = ("say-as", "sub", "phoneme")
"""Elements that are spoken in other words than they hold."""
_KNOWN = ", ".join((_ROOT, *_ATTRIBUTES))


@dataclass(frozen=True)
class _Element:
    name: str
    attributes: dict[str, str]
    manner: Manner
    """Manner of the text inside the element."""


class SsmlReader:
    """Reads one text. Holds what is not certain yet: an unfinished tag, or what a `say-as` has not closed."""

    def __init__(
        self, tags: InlineTags, language: str | None, normalize: Normalize, *, takes_phonemes: bool = False
    ) -> None:
        """Begin a text.

        Args:
            tags: the model's own, which stay; pairs such as <strong> are elements.
            language: of the whole text, if the request says it.
            normalize: see `Normalize`.
            takes_phonemes: whether the LLM reads phonemes.
        """
        self._takes_phonemes = takes_phonemes
        self._own_tag = re.compile(tags.pattern)
        self._language = language
        self._normalize = normalize
        self._document: OpenDocument | None = None
        self._begun = ""
        """Text received before it is known whether the text begins with <speak>."""
        self._text, self._from = "", 0
        """Text that was read but not returned yet, and its start position."""
        self._next = Stretch("", "")
        """The stretch that begins at `_from`; it ends where the next event begins."""
        self._stack: list[_Element] = []
        self._inner = ""
        """Text inside the open `say-as` or `sub`."""
        self._ready: list[Stretch] = []
        self._problem: InvalidRequestError | None = None
        self._last_spoken = ""
        """Last spoken character; empty at the beginning and behind a break, where no blank is wanted."""
        self._mark = ""
        """The last character since a border that is neither blank nor a closing mark."""

    def reading(self, piece: str) -> Iterator[list[Stretch]]:
        """See `TextReader.reading`."""
        for at in range(0, len(piece), _SLICE):
            yield self._done(partial(self._feed, piece[at : at + _SLICE]))
        self._check()

    def finishing(self) -> Iterator[list[Stretch]]:
        """See `TextReader.finishing`; elements may stay open, a tag may not."""
        yield self._done(self._end_part)
        self._check()

    def finish(self) -> None:
        """Say that the text is over: elements may not stay open."""
        if self._document is not None:
            self._document.finish()

    def _check(self) -> None:
        if self._problem is not None:  # nothing behind it is read
            raise self._problem

    def _start(self, name: str, attributes: dict[str, str], at: int) -> None:
        if self._stack and self._stack[-1].name in (*_REPLACED, "break"):
            raise XmlProblem(f"<{self._stack[-1].name}> may hold no other element")
        above = self._stack[-1].manner if self._stack else PLAIN
        element = _Element(name, attributes, self._manner_of(name, attributes, above))
        self._stack.append(element)
        self._inner = ""
        if self._own_tag.fullmatch(f"<{name}>"):
            self._note(at, f"<{name}>")
        elif name == "break":
            self._note(at, "", pause_of(attributes.get("time"), attributes.get("strength")))
        elif name in _REPLACED:
            self._note(at, "")
        else:
            self._note(at, *self._border(name, element.manner != above))

    def _end(self, name: str, at: int) -> None:
        element = self._stack.pop()
        manner = self._stack[-1].manner if self._stack else PLAIN
        if self._own_tag.fullmatch(f"</{name}>"):
            self._note(at, f"</{name}>")
        elif name in _REPLACED:
            self._said(element)
        elif name != "break":
            self._note(at, *self._border(name, element.manner != manner), manner=element.manner)

    def _heard(self, text: str, at: int) -> None:
        text = cleaned(text)
        within = self._stack[-1].name if self._stack else ""
        if within == "break" and text.strip():
            raise XmlProblem("<break> may hold no text; write <break/>")
        if within in _REPLACED:
            self._inner += text
            if len(self._inner) > MAX_SAID_AS:
                raise XmlProblem(f"<{within}> holds more than {MAX_SAID_AS} characters; take less into it")
            return
        for part in _WORDS.finditer(text):
            self._note(at + part.start(), " " if part[0].isspace() else part[0])

    def _done(self, step: Callable[[], None]) -> list[Stretch]:
        """Take a step, unless something is wrong already; return what is certain and new."""
        if self._problem is None:
            try:
                step()
            except InvalidRequestError as error:
                self._problem = error
        ready, self._ready = self._ready, []
        return ready

    def _feed(self, piece: str) -> None:
        self._text += piece
        if self._document is not None:
            self._document.feed(piece)
            return
        self._begun += piece
        if not _MAY_BEGIN.fullmatch(self._begun):
            self._open()

    def _open(self) -> None:
        begun, self._begun = self._begun, ""
        self._document = OpenDocument(self._start, self._end, self._heard, None if _BEGINS.match(begun) else _ROOT)
        self._document.feed(begun)

    def _end_part(self) -> None:
        if self._document is None and self._begun.strip():
            self._open()
        is_held, text = bool(self._stack) and self._stack[-1].name in _REPLACED, self._text
        if is_held or text.rfind("<") > text.rfind(">") or text.rfind("&") > text.rfind(";"):
            assert self._document is not None
            raise self._document.refusal("the text ends within a tag, a say-as or a sub")
        self._note(self._from + len(text), "")

    def _note(self, at: int, spoken: str, pause: float | None = None, manner: Manner | None = None) -> None:
        """Note what is spoken from a position on; what was noted before ends there."""
        if spoken == " " and (not self._last_spoken or self._last_spoken.isspace()):
            spoken = ""
        size = at - self._from
        written, self._text, self._from = self._text[:size], self._text[size:], at
        if written or self._next.spoken or self._next.pause is not None:
            self._ready.append(replace(self._next, written=written))
        manner = manner or (self._stack[-1].manner if self._stack else PLAIN)
        self._next = Stretch("", spoken, pause, None if manner == PLAIN else manner)
        self._last_spoken = "" if pause is not None else spoken[-1:] or self._last_spoken
        self._mark = spoken.rstrip(CLOSERS_AND_BLANKS)[-1:] or self._mark

    def _border(self, name: str, is_other_manner: bool) -> tuple[str, float | None]:
        """Return what is spoken at the border of an element, and whether the text is cut there."""
        cut = 0.0 if is_other_manner else None
        mark, self._mark = self._mark, "" if name in _BLOCKS else self._mark
        if name not in _BLOCKS or not mark:
            return "", cut
        if self._next.spoken == " ":
            self._next = replace(self._next, spoken="")
        return ("" if mark in ALL_MARKS else full_stop(mark, None)) + _BLOCKS[name], cut

    def _said(self, element: _Element) -> None:
        """Have an element spoken in other words than it holds."""
        inner = " ".join(self._inner.split())
        if element.name == "sub":
            spoken = element.attributes["alias"].strip()
        elif element.name == "phoneme":
            spoken = _tags_of(element.attributes)
        else:
            spoken = self._said_as(inner, element)
        self._next = replace(self._next, spoken=spoken)
        self._last_spoken = spoken[-1:] or self._last_spoken
        self._mark = spoken.rstrip(CLOSERS_AND_BLANKS)[-1:] or self._mark

    def _said_as(self, inner: str, element: _Element) -> str:
        language = element.manner.language or self._language
        if language not in LANGUAGES:
            language = CHINESE if _HAN.search(inner) else LANGUAGES[0]
        kind, form = element.attributes["interpret-as"], element.attributes.get("format")
        return said_as(inner, kind, form, language, lambda text: self._normalize(text, language))

    def _manner_of(self, name: str, attributes: dict[str, str], above: Manner) -> Manner:
        self._check_element(name, attributes)
        manner = above
        if "xml:lang" in attributes:
            manner = replace(manner, language=_language_of(attributes["xml:lang"]))
        if "rate" in attributes:
            manner = replace(manner, rate=manner.rate * rate_of(attributes["rate"]))
        if "volume" in attributes:
            manner = replace(manner, gain=manner.gain * gain_of(attributes["volume"]))
        if not MIN_RATE <= manner.rate <= MAX_RATE:
            raise XmlProblem(
                f"the rates of <prosody> within each other make {manner.rate:.0%}; stay within 25% to 400%"
            )
        if manner.rate != 1 and find_spec("av") is None:
            raise XmlProblem("another rate needs the extra audio on the server; leave it out")
        return manner

    def _check_element(self, name: str, attributes: dict[str, str]) -> None:
        if name == "phoneme" and not self._takes_phonemes:
            raise XmlProblem(f"<phoneme>: {NO_PHONEMES}")
        if self._own_tag.fullmatch(f"<{name}>") and self._stack:
            return
        is_root = not self._stack
        if is_root != (name == _ROOT) or (not is_root and name not in _ATTRIBUTES):
            raise XmlProblem(f"<{name}> is not known here; known are {_KNOWN}, and <{_ROOT}> is the outermost")
        known = _SILENT_ATTRIBUTES if is_root else _ATTRIBUTES[name]
        unknown = [each for each in attributes if each not in known and not each.startswith(("xmlns", "xsi:"))]
        if unknown:
            raise XmlProblem(f"<{name}> has the attribute {unknown[0][:40]!r}, known are {', '.join(known)}")
        needed = {"sub": "alias", "say-as": "interpret-as", "lang": "xml:lang", "phoneme": "ph"}.get(name)
        if needed and not attributes.get(needed, "").strip():
            raise XmlProblem(f"<{name}> lacks the attribute {needed}")
        if len(attributes.get("alias", "")) > MAX_ALIAS:
            raise XmlProblem(f"the alias has more than {MAX_ALIAS} characters")
        if name == "phoneme":
            _tags_of(attributes)


def check_ssml(text: str, language: str | None, *, takes_phonemes: bool = False) -> None:
    """Refuse a whole text before any of it is spoken.

    Raises:
        InvalidRequestError: it is no SSML, or asks for what can't be had.
    """
    reader = SsmlReader(InlineTags(), language, lambda text, _: text, takes_phonemes=takes_phonemes)
    read = [*reader.reading(text), *reader.finishing()]
    reader.finish()
    check_sum(sum(stretch.pause for part in read for stretch in part if stretch.pause is not None))


def _tags_of(attributes: dict[str, str]) -> str:
    return phoneme_tags(attributes["ph"], attributes.get("alphabet", IPA))


def _language_of(tag: str) -> str:
    if not _LANGUAGE.fullmatch(tag):
        raise XmlProblem(f"got xml:lang {tag[:40]!r}, expected a BCP 47 tag such as en or zh-CN")
    return primary_language(tag)
