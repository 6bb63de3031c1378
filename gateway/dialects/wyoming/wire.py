"""Wyoming's events on one TCP connection: bounded on the way in, held back by a slow reader on the way out.

    {"type": "...", "data_length": D, "payload_length": P}\n  D bytes of JSON  P bytes of audio

The package `wyoming` frames and parses. It sets no bounds and keeps quiet about what it can't read; both are done here.
Knows nothing of speech.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, SupportsIndex

from wyoming.error import Error
from wyoming.event import Event, Eventable, async_read_event, async_write_event

from gateway.dialects.answers import checked_json, sent
from gateway.errors import GatewayError, InvalidRequestError, StalledReaderError, TextTooLongError, public_text
from servicekit.timeouts import timeout

_CLOSE_TIMEOUT_S = 2.0
_LINGER_S = 1.0
"""Seconds that a connection stays open after an error, for a client that goes on sending."""
_DISCARD_BYTES = 64 * 1024
_UNREADABLE = (AttributeError, KeyError, TypeError, RecursionError)
"""Exceptions that the package raises for JSON that is no event."""


class ClientLeftError(Exception):
    """The connection is gone, or was closed from this side."""


class EventReader(asyncio.StreamReader):
    """Reads lines and exact numbers of bytes up to a limit, and tells how much it holds that nobody has taken."""

    hold: Callable[[int], None] = staticmethod(lambda count: None)
    """Is told how many bytes."""

    def __init__(self, max_bytes: int) -> None:
        """Begin a connection; `max_bytes` are those of an event's first line, of its data and of its payload."""
        super().__init__(max_bytes)
        self._max_bytes = max_bytes
        self._data_is_next = False

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        """See `asyncio.StreamReader`."""
        super().feed_data(data)
        self.tell()

    def tell(self) -> None:
        """Tell what is held now."""
        self.hold(len(self._buffer))  # type: ignore[attr-defined]

    async def readline(self) -> bytes:
        """See `asyncio.StreamReader`; raises InvalidRequestError, and ClientLeftError for a line that is cut."""
        try:
            line = await super().readline()
        except ValueError as error:  # longer than the limit
            raise self._too_long() from error
        if line and not line.endswith(b"\n"):
            raise ClientLeftError
        checked_json(line.decode("utf-8", "replace"))
        self._data_is_next = b'"data_length"' in line
        return line

    async def readexactly(self, n: int) -> bytes:
        """See `asyncio.StreamReader`; raises InvalidRequestError."""
        if n > self._max_bytes:
            raise self._too_long()
        data = await super().readexactly(n)
        if self._data_is_next:
            checked_json(data.decode("utf-8", "replace"))
        self._data_is_next = False
        return data

    def _too_long(self) -> TextTooLongError:
        return TextTooLongError(f"an event passes {self._max_bytes} bytes; send the text in pieces", param="data")


class EventStream:
    """One connection; read by one coroutine, written by any number."""

    def __init__(self, reader: EventReader, writer: asyncio.StreamWriter, send_timeout_s: float) -> None:
        """Take over the connection.

        Args:
            reader: read by nobody else.
            writer: closed by `close`.
            send_timeout_s: a reader who makes no room for so long is taken for gone.
        """
        self._reader = reader
        self._writer = writer
        self._send_timeout_s = send_timeout_s
        self._sending = asyncio.Lock()
        self._has_refused = False

    async def receive(self) -> Event:
        """Wait for the next event.

        Raises:
            InvalidRequestError: it can't be read; where the next one begins is not known.
            ClientLeftError: there will be none.
        """
        try:
            event = await async_read_event(self._reader)
        except (OSError, asyncio.IncompleteReadError) as error:
            raise ClientLeftError from error
        except _UNREADABLE as error:
            raise _unreadable() from error
        self._reader.tell()
        if event is None and self._reader.at_eof():
            raise ClientLeftError
        if event is None or not isinstance(event.data, dict):
            raise _unreadable()
        return event

    async def until_left(self) -> None:
        """Throw away what comes until the client leaves."""
        with suppress(OSError):
            while await self._reader.read(_DISCARD_BYTES):
                pass

    async def send(self, message: Eventable, more: Mapping[str, str] = MappingProxyType({})) -> None:
        """Send an event as soon as the reader has room, with more fields than its package knows.

        Raises:
            ClientLeftError: nobody reads any more.
            StalledReaderError: the reader stands still.
        """
        event = message.event()
        event.data.update(more)
        try:
            async with self._sending:
                await sent(async_write_event(event, self._writer), self._send_timeout_s)
        except OSError as error:
            raise ClientLeftError from error
        except StalledReaderError:
            self._writer.transport.abort()
            raise

    async def refuse(self, error: GatewayError) -> None:
        """Say what went wrong, to a client that still reads."""
        with suppress(ClientLeftError, StalledReaderError):
            await self.send(Error(public_text(error), error.code))
            self._has_refused = True

    async def close(self) -> None:
        """Close the connection, once what was sent has left or soon after; `receive` must not be under way."""
        if self._has_refused:
            await self._linger()
        self._writer.close()
        with suppress(OSError, asyncio.TimeoutError):
            async with timeout(_CLOSE_TIMEOUT_S):
                await self._writer.wait_closed()
                return
        self._writer.transport.abort()

    async def _linger(self) -> None:
        """Take what still comes: closing with bytes unread would reset the connection, and the error would be lost."""
        with suppress(OSError, asyncio.TimeoutError):
            self._writer.write_eof()
            async with timeout(_LINGER_S):
                await self.until_left()


def _unreadable() -> InvalidRequestError:
    expected = 'a line of JSON such as {"type": "synthesize", "data": {"text": "Hello."}}'
    return InvalidRequestError(f"got what is no Wyoming event, expected {expected}")


_FORMATS = ("text", "ssml")
"""Formats of text that are accepted. Both are read alike: known tags act, others are left out."""


def read_text(event: Event) -> str:
    """Return the event's text.

    Raises:
        InvalidRequestError: it has none.
    """
    text = event.data.get("text")
    if not isinstance(text, str):
        raise InvalidRequestError(f"{event.type} lacks its text; send a string", param="text")
    return text


def read_voice(event: Event) -> tuple[str | None, str | None]:
    """Return the voice and the language that an event asks for; a `speaker` is not looked at, no voice has several.

    Raises:
        InvalidRequestError: they can't be read, or the text is in a format that can't be spoken.
    """
    text_format = event.data.get("text_format") or _FORMATS[0]
    if text_format not in _FORMATS:
        raise InvalidRequestError(f"got text_format {text_format!r}, expected {' or '.join(_FORMATS)}", param="format")
    voice: Any = event.data.get("voice") or {}
    if not isinstance(voice, dict):
        raise InvalidRequestError('got a voice that is no object, expected {"name": "..."}', param="voice")
    name, language = voice.get("name"), voice.get("language")
    if not isinstance(name, str | None) or not isinstance(language, str | None):
        raise InvalidRequestError("the voice's name and language are strings", param="voice")
    return name, language
