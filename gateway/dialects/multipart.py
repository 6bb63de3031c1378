"""Reads a multipart/form-data body into memory, bounded on every side.

In memory, and not in temporary files, because forms carry recordings of people. Knows no field by name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from gateway.errors import InvalidRequestError

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

MEDIA_TYPE = "multipart/form-data"


class FormTooLargeError(Exception):
    """The body passes the limit; what that means to a caller depends on the form."""


@dataclass
class FormPart:
    """One field of a form."""

    name: str = ""
    is_file: bool = False
    media_type: str = ""
    data: bytearray = field(default_factory=bytearray)

    def text(self) -> str:
        """Decode the field.

        Raises:
            InvalidRequestError: it is not UTF-8.
        """
        try:
            return self.data.decode("utf-8")
        except UnicodeDecodeError as error:
            got = f"{self.name} is not UTF-8 (byte {error.start})"
            raise InvalidRequestError(f"{got}; encode it as UTF-8", param=self.name) from error


async def read_form(content_type: str, body: AsyncIterator[bytes], max_bytes: int, max_parts: int) -> list[FormPart]:
    """Read a whole form.

    Args:
        content_type: the request's header, with the boundary.
        body: its pieces as they come.
        max_bytes: of the body.
        max_parts: fields at most.

    Raises:
        InvalidRequestError: not a form, damaged, cut, or of too many fields.
        FormTooLargeError: too many bytes; the rest of the body is left unread.
    """
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind.decode("latin-1") != MEDIA_TYPE or not boundary:
        raise InvalidRequestError(f"got content type {content_type!r}, expected {MEDIA_TYPE} with a boundary")
    reader = _Reader(max_parts)
    left = max_bytes
    try:
        parser = MultipartParser(boundary, reader.callbacks())
        async for piece in body:
            left -= len(piece)
            if left < 0:
                raise FormTooLargeError(f"the form passes {max_bytes} bytes")
            parser.write(piece)
    except FormParserError as error:
        raise InvalidRequestError(f"the form is damaged ({error}); send {MEDIA_TYPE}") from error
    if not reader.has_ended:
        raise InvalidRequestError("the form is cut: its closing boundary is missing; send all of it")
    return reader.parts


class _Reader:
    """Collects what the parser finds."""

    def __init__(self, max_parts: int) -> None:
        self.parts: list[FormPart] = []
        self.has_ended = False
        self._max_parts = max_parts
        self._header = (bytearray(), bytearray())

    def callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._begin_part,
            "on_part_data": lambda data, start, end: self.parts[-1].data.extend(data[start:end]),
            "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
            "on_header_end": self._end_header,
            "on_headers_finished": self._check_part,
            "on_end": self._end,
        }

    def _begin_part(self) -> None:
        if len(self.parts) == self._max_parts:
            raise InvalidRequestError(f"the form has more than {self._max_parts} fields; send fewer")
        self.parts.append(FormPart())

    def _end_header(self) -> None:
        name, value = (part.decode("latin-1").strip() for part in self._header)
        self._header = (bytearray(), bytearray())
        if name.lower() == "content-type":
            self.parts[-1].media_type = value
        if name.lower() == "content-disposition":
            _, options = parse_options_header(value)
            self.parts[-1].name = options.get(b"name", b"").decode("utf-8", "replace")
            self.parts[-1].is_file = b"filename" in options

    def _check_part(self) -> None:
        if not self.parts[-1].name:
            raise InvalidRequestError("a field of the form has no name; send each with Content-Disposition and a name")

    def _end(self) -> None:
        self.has_ended = True
