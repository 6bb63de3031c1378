"""Reads the XML of SSML: no document types, entities or files of others; bounded in depth and size.

Tells what it reads with positions in the text, and what is wrong with line and column. Knows no vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from xml.parsers import expat

from gateway.errors import InvalidRequestError

MAX_DEPTH = 32
"""Most levels of nested elements."""


class XmlProblem(Exception):
    """A reader's complaint about a document; `OpenDocument` adds the position.

    To a ValueError or an InvalidRequestError of a reader it adds the element as well.
    """


class OpenDocument:
    """A document that arrives in pieces."""

    def __init__(
        self,
        on_start: Callable[[str, dict[str, str], int], None],
        on_end: Callable[[str, int], None],
        on_text: Callable[[str, int], None],
        root: str | None = None,
    ) -> None:
        """Begin a document.

        Args:
            on_start: is told of an element's beginning: name, attributes and position; may raise `XmlProblem`.
            on_end: is told of its end, of an empty one at its own beginning.
            on_text: is told of text, with character references read; of one stretch maybe in parts.
            root: an element that is put around what comes; None: it has one of its own.
        """
        self._on_start, self._on_end, self._on_text, self._root = on_start, on_end, on_text, root
        self._prefix = "" if root is None else f"<{root}>"
        self._data = bytearray()
        """Bytes received since the last event."""
        self._byte, self._character, self._depth = 0, -len(self._prefix), 0
        self._element = ""
        """Name of the element whose beginning or end was read last."""
        self._read_at = (1, 0)
        """Line (from 1) and column (from 0) of the character read last."""
        self._parser = self._made_parser()
        if root is not None:
            self.feed(self._prefix)

    def feed(self, piece: str) -> None:
        """Read more of it.

        Raises:
            InvalidRequestError: it is no XML, holds what is not taken, or the reader has something against it.
        """
        self._parse(piece.encode("utf-8", "replace"), is_end=False)

    def finish(self) -> None:
        """Say that it is over.

        Raises:
            InvalidRequestError: as by `feed`; or elements are open.
        """
        self._parse(b"" if self._root is None else f"</{self._root}>".encode(), is_end=True)

    def refusal(self, problem: str) -> InvalidRequestError:
        """Make the error for a problem at the place that was read last."""
        return self._refusal(problem, *self._read_at)

    def _parse(self, data: bytes, *, is_end: bool) -> None:
        self._data += data
        try:
            self._parser.Parse(data, is_end)
        except expat.ExpatError as error:
            raise self._refusal(expat.ErrorString(error.code), error.lineno, error.offset) from error
        except XmlProblem as error:
            raise self.refusal(str(error)) from error
        except (ValueError, InvalidRequestError) as error:
            raise self.refusal(f"<{self._element}>: {error}") from error

    def _refusal(self, problem: str, line: int, column: int) -> InvalidRequestError:
        column += 1 - (len(self._prefix) if line == 1 else 0)
        place = f"line {line}, column {max(column, 1)}"
        return InvalidRequestError(f"the SSML can't be read at {place}: {problem}", param="input")

    def _place(self) -> int:
        """Return the position in the text of what is read now."""
        self._note_place()
        size = self._parser.CurrentByteIndex - self._byte
        self._character += len(self._data[:size].decode("utf-8", "replace"))
        self._byte += size
        del self._data[:size]
        return self._character

    def _note_place(self) -> None:
        # NOTE: when a handler's exception arrives here, the parser has read further.
        self._read_at = (self._parser.CurrentLineNumber, self._parser.CurrentColumnNumber)

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        self._element = name
        self._note_place()
        if self._depth > MAX_DEPTH:
            raise XmlProblem(f"<{name}> lies within {MAX_DEPTH} others, the most there may be")
        self._on_start(name, attributes, max(self._place(), 0))

    def _end(self, name: str) -> None:
        self._depth -= 1
        self._element = name
        self._on_end(name, self._place())

    def _made_parser(self) -> expat.XMLParserType:
        def refuse_doctype(*_: object) -> None:
            self._note_place()
            raise XmlProblem("document types and entities are not taken; leave <!DOCTYPE> out")

        parser = expat.ParserCreate("utf-8")
        if hasattr(parser, "SetReparseDeferralEnabled"):
            # NOTE: a long tag in many pieces takes quadratic time; the size of one text bounds it.
            parser.SetReparseDeferralEnabled(False)
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = lambda text: self._on_text(text, self._place())
        parser.StartDoctypeDeclHandler = refuse_doctype
        parser.EntityDeclHandler = refuse_doctype
        return parser
