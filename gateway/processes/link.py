"""How a worker and its parent talk: lines of JSON over a socket pair, in both directions.

    call ──► answer, or error             what was asked for once
    call ──► answer ... release           what is held: given back by its holder, or when its process is gone
    note                                  what nobody answers

What a call was given is held under the call's number. So a caller that gives up before the answer releases it the same
way, and the end of the connection releases all.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, cast

from gateway.errors import GatewayError, NotReadyError, OverloadedError, VoiceRateError
from servicekit.tasks import cancel

logger = logging.getLogger(__name__)

_CALL, _ANSWER, _ERROR, _RELEASE, _NOTE = "call", "answer", "error", "release", "note"
_RETRYABLE: dict[str, type[OverloadedError] | type[VoiceRateError]] = {
    kind.__name__: kind for kind in (OverloadedError, VoiceRateError)
}
"""Errors that keep their class on the other side, with the time to try again."""
_GONE = "this gateway is being stopped; ask another one"


@dataclass
class Given:
    """The answer to a call."""

    answer: Any = None
    """The answer, of types that JSON has."""
    release: Callable[[], None] | None = None
    """Gives back what the caller holds."""


Handler = Callable[..., Awaitable[Given]]


@dataclass
class Handlers:
    """The handlers of one side for the other side's calls and messages, by name; arguments come as keywords."""

    calls: Mapping[str, Handler] = field(default_factory=dict)
    notes: Mapping[str, Callable[..., None]] = field(default_factory=dict)
    opened: Callable[[Link], None] = lambda link: None
    """Called before anything else."""
    closed: Callable[[], None] = lambda: None
    """Called last, after everything that the other side held was given back."""


class Link(asyncio.Protocol):
    """One end; lives in one event loop."""

    def __init__(self, handlers: Handlers) -> None:
        """Made by `open_link`."""
        self._handlers = handlers
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._numbers = count()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._answering: dict[int, asyncio.Task[None]] = {}
        self._held: dict[int, Callable[[], None]] = {}
        self._take: dict[str, Callable[..., None]] = {
            _CALL: self._take_call,
            _ANSWER: self._take_answer,
            _ERROR: self._take_error,
            _RELEASE: self._take_release,
            _NOTE: self._take_note,
        }

    @property
    def is_open(self) -> bool:
        """Whether the other side can be reached."""
        return self._transport is not None

    async def call(self, name: str, **arguments: object) -> Any:
        """Ask for something that need not be given back.

        Raises:
            GatewayError: what the other side refused with; NotReadyError if it is gone.
        """
        return (await self.hold(name, **arguments))[1]

    async def hold(self, name: str, **arguments: object) -> tuple[int, Any]:
        """Ask for something that is held until `release` is called with the number that comes first.

        Raises:
            GatewayError: as `call`.
        """
        if self._transport is None:
            raise NotReadyError(_GONE)
        number = next(self._numbers)
        self._asked[number] = asyncio.get_running_loop().create_future()
        self._send(_CALL, number, name, arguments)
        try:
            return number, await self._asked[number]
        except asyncio.CancelledError:
            self.release(number)
            raise
        finally:
            del self._asked[number]

    def release(self, number: int) -> None:
        """Give back what is held; harmless if the other side is gone."""
        self._send(_RELEASE, number)

    def note(self, name: str, **arguments: object) -> None:
        """Tell something; harmless if the other side is gone."""
        self._send(_NOTE, name, arguments)

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        # NOTE: uvloop's transports are none of asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)
        self._handlers.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`; gives back everything that the other side held."""
        self._transport = None
        cancel(*self._answering.values())
        for release in [self._held.pop(number) for number in list(self._held)]:
            release()
        for future in self._asked.values():
            if not future.done():
                future.set_exception(NotReadyError(_GONE))
        self._handlers.closed()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            kind, *parts = json.loads(line)
            self._take[kind](*parts)

    def _send(self, *message: object) -> None:
        if self._transport is not None:
            self._transport.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def _take_call(self, number: int, name: str, arguments: dict[str, Any]) -> None:
        task = asyncio.create_task(self._answer(number, name, arguments))
        self._answering[number] = task
        task.add_done_callback(lambda _: self._answering.pop(number, None))

    async def _answer(self, number: int, name: str, arguments: dict[str, Any]) -> None:
        try:
            given = await self._handlers.calls[name](**arguments)
        except GatewayError as error:
            retry_s = getattr(error, "retry_after_s", None)
            self._send(_ERROR, number, type(error).__name__, str(error), retry_s)
            return
        except Exception:
            logger.exception("a call of another process of this gateway failed")
            self._send(_ERROR, number, "GatewayError", "a fault inside the gateway; its log says more", None)
            return
        if given.release is not None:
            self._held[number] = given.release
        self._send(_ANSWER, number, given.answer)

    def _take_release(self, number: int) -> None:
        if (task := self._answering.get(number)) is not None:
            cancel(task)
        if (release := self._held.pop(number, None)) is not None:
            release()

    def _take_answer(self, number: int, answer: Any) -> None:
        future = self._asked.get(number)
        if future is not None and not future.done():
            future.set_result(answer)

    def _take_error(self, number: int, kind: str, text: str, retry_s: float | None) -> None:
        future = self._asked.get(number)
        if future is not None and not future.done():
            known = _RETRYABLE.get(kind)
            error = GatewayError(text) if known is None else known(text, retry_after_s=retry_s or 0.0)
            future.set_exception(error)

    def _take_note(self, name: str, arguments: dict[str, Any]) -> None:
        self._handlers.notes[name](**arguments)


async def open_link(end: socket.socket, handlers: Handlers) -> Link:
    """Talk over one end of a socket pair, inside the running event loop."""
    end.setblocking(False)
    link = Link(handlers)
    await asyncio.get_running_loop().create_connection(lambda: link, sock=end)
    return link
