"""Reads XML that callers send: no document types, entities or files of others; bounded in depth and size.

Tells what it reads with positions in the text, and what is wrong with line and column. Knows no vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol
from xml.parsers import expat

from gateway.errors import InvalidRequestError

MAX_DEPTH = 32
"""Elements within each other."""


class XmlReader(Protocol):
    """Is told of a document from its beginning to its end."""

    def start(self, name: str, attributes: dict[str, str], at: int) -> None:
        """Note that an element begins; raise `XmlProblem` if it may not."""
        ...

    def end(self, name: str, at: int) -> None:
        """Note that an element ends; of an empty one at its own beginning."""
        ...

    def text(self, text: str, at: int) -> None:
        """Note text, with character references read; of one stretch maybe in parts."""
        ...


class XmlProblem(Exception):
    """What a reader has against a document; `read_xml` adds the place."""


@dataclass
class _Place:
    """A position in bytes and in characters, moved on as the parser goes."""

    data: bytes
    byte: int = 0
    character: int = 0

    def moved_to(self, byte: int) -> int:
        self.character += len(self.data[self.byte : byte].decode("utf-8", "replace"))
        self.byte = byte
        return self.character


def read_xml(text: str, reader: XmlReader, kind: str, param: str, max_characters: int) -> None:
    """Read a document.

    Args:
        text: all of it.
        reader: is told of everything.
        kind: what the document is called in errors.
        param: what the field is called that brought it.
        max_characters: the longest taken.

    Raises:
        InvalidRequestError: it is no XML, holds what is not taken, or the reader has something against it.
    """
    if len(text) > max_characters:
        got = f"the {kind} has {len(text)} characters, the limit is {max_characters}"
        raise InvalidRequestError(f"{got}; send less", param=param)
    data = text.encode("utf-8", "replace")
    parser = _parser(reader, _Place(data))
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        problem, line, column = expat.ErrorString(error.code), error.lineno, error.offset
        raise InvalidRequestError(_told(kind, problem, line, column), param=param) from error
    except XmlProblem as error:
        line, column = parser.CurrentLineNumber, parser.CurrentColumnNumber
        raise InvalidRequestError(_told(kind, str(error), line, column), param=param) from error


def _told(kind: str, problem: str, line: int, column: int) -> str:
    return f"the {kind} can't be read at line {line}, column {column + 1}: {problem}"


def _parser(reader: XmlReader, place: _Place) -> expat.XMLParserType:
    parser = expat.ParserCreate("utf-8")
    depth = 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > MAX_DEPTH:
            raise XmlProblem(f"<{name}> lies within {MAX_DEPTH} others, the most there may be")
        reader.start(name, attributes, place.moved_to(parser.CurrentByteIndex))

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1
        reader.end(name, place.moved_to(parser.CurrentByteIndex))

    def refuse_doctype(*_: object) -> None:
        raise XmlProblem("document types and entities are not taken; leave <!DOCTYPE> out")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = lambda text: reader.text(text, place.moved_to(parser.CurrentByteIndex))
    parser.StartDoctypeDeclHandler = refuse_doctype
    parser.EntityDeclHandler = refuse_doctype
    return parser
