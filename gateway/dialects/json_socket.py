"""A WebSocket whose messages are JSON objects, bounded on the way in and held back by a slow reader on the way out.

Each send waits until the connection takes more, so that the speech behind it waits too. Knows no dialect.
"""

from __future__ import annotations

import asyncio
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Protocol

from fastapi.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from gateway.dialects.answers import checked_json
from gateway.errors import GatewayError, InvalidRequestError
from servicekit.clock import Clock
from servicekit.tasks import cancel
from servicekit.timeouts import timeout

logger = logging.getLogger(__name__)


class SocketClosedError(Exception):
    """The connection is gone, or was closed from this side."""


class Interruptible:
    """Runs speech in a task of its own, so that the task that waits for it outlives the interruption.

    NOTE: a task that is cancelled before its first step never runs. What is due after an interruption must therefore
    wait for the speech in another task, not behind an `except` in the same one.
    """

    def __init__(self, speech: Coroutine[Any, Any, None], name: str) -> None:
        """Begin to speak."""
        self._task = asyncio.create_task(speech, name=name)
        self._is_abandoned = False
        self.is_interrupted = False
        """Whether `interrupt` was called before the speech ended."""

    def interrupt(self) -> None:
        """Stop the speech now; does nothing after its end."""
        if not self._task.done():
            self.is_interrupted = True
            cancel(self._task)

    def abandon(self) -> None:
        """Stop the speech and the task that waits for it."""
        self._is_abandoned = True
        cancel(self._task)

    async def wait(self) -> GatewayError | None:
        """Return when the speech has ended or was interrupted, and all that it held is free; the error it failed with.

        Raises:
            asyncio.CancelledError: it was abandoned, or who waits was cancelled.
            SocketClosedError: the client left.
        """
        try:
            await self._task
        except asyncio.CancelledError:
            if self._is_abandoned or not self.is_interrupted:
                raise
        except GatewayError as error:
            logger.warning("%s failed: %s: %s", self._task.get_name(), error.code, error)
            return error
        except SocketClosedError:
            raise
        except Exception:
            logger.exception("%s failed", self._task.get_name())
            return GatewayError("the server failed; its log says why")
        return None


NORMAL_CLOSE = 1000
POLICY_CLOSE = 1008
FAILURE_CLOSE = 1011
MOST_REFUSED = 100
"""Messages refused in a row until the connection is closed: its sender reads no answers."""
CLOSE_TIMEOUT_S = 2.0
"""How long a reader may take to make room for the closing message."""


class JsonSocket:
    """One accepted connection; read by one coroutine, written by any number."""

    def __init__(self, websocket: WebSocket, max_message_bytes: int, send_timeout_s: float) -> None:
        """Keep the connection.

        Args:
            websocket: accepted before anything else.
            max_message_bytes: longer messages are refused one by one.
            send_timeout_s: a reader who makes no room for so long is taken for gone.
        """
        self._websocket = websocket
        self._max_message_bytes = max_message_bytes
        self._send_timeout_s = send_timeout_s
        self._is_closed = False

    async def receive(self, timeout_s: float) -> dict[str, Any]:
        """Wait for the next message.

        Raises:
            asyncio.TimeoutError: none came in time.
            InvalidRequestError: it is no JSON object or too long; the next one may be good.
            SocketClosedError: there will be none.
        """
        if self._is_closed:
            raise SocketClosedError
        await asyncio.sleep(0)  # NOTE: messages that have come already are handed over without letting others run
        async with timeout(timeout_s):
            message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            self._is_closed = True
            raise SocketClosedError
        text = message.get("text")
        if text is None:
            raise InvalidRequestError("got a binary message, expected JSON in a text message")
        return self._parse(text)

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send an object as soon as the reader has room.

        Raises:
            SocketClosedError: nobody reads any more.
        """
        await self._send({"type": "websocket.send", "text": json.dumps(message, separators=(",", ":"))})

    async def send_bytes(self, data: bytes) -> None:
        """Send a binary message; see `send`."""
        await self._send({"type": "websocket.send", "bytes": data})

    async def close(self, code: int, reason: str = "") -> None:
        """Say good-bye, once, and only if the reader has room for it soon; all later calls find the socket closed."""
        if self._is_closed:
            return
        self._is_closed = True
        with suppress(WebSocketDisconnect, asyncio.TimeoutError):
            async with timeout(CLOSE_TIMEOUT_S):
                await self._websocket.close(code, reason)

    async def _send(self, message: dict[str, Any]) -> None:
        if self._is_closed:
            raise SocketClosedError
        try:
            async with timeout(self._send_timeout_s):
                await self._websocket.send(message)
        except (WebSocketDisconnect, asyncio.TimeoutError, RuntimeError) as error:
            # RuntimeError: the server under us has closed the connection, for a message that broke the protocol.
            self._is_closed = True
            raise SocketClosedError from error

    def _parse(self, text: str) -> dict[str, Any]:
        if len(text) > self._max_message_bytes or len(text.encode("utf-8", "replace")) > self._max_message_bytes:
            raise InvalidRequestError(f"the message passes {self._max_message_bytes} bytes; send the text in pieces")
        try:
            message = json.loads(checked_json(text))
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError("the message is not JSON; send a JSON object") from error
        if not isinstance(message, dict):
            raise InvalidRequestError("the message is JSON but no object; send a JSON object")
        return message


class Speech(Protocol):
    """A text on its way to be spoken on a socket."""

    last_active_s: float
    """When it last took text or sent audio, in seconds of the clock."""

    @property
    def is_ending(self) -> bool:
        """Whether all its text has come and it is still spoken."""


class Conversation(ABC):
    """One connection: obeys messages one by one while its texts are spoken, until none comes for too long."""

    def __init__(self, socket: JsonSocket, clock: Clock, idle_timeout_s: float) -> None:
        """Keep the accepted socket."""
        self._socket = socket
        self._clock = clock
        self._idle_timeout_s = idle_timeout_s
        self._last_message_s = clock.now()

    async def _obey_all(self) -> None:
        """Return when either side has closed; what can't be read or done is refused and changes nothing."""
        refused = 0
        with suppress(SocketClosedError):
            while refused < MOST_REFUSED:
                try:
                    message = await self._socket.receive(self._patience_s())
                    self._last_message_s = self._clock.now()
                    await self._obey(message)
                    refused = 0
                except InvalidRequestError as error:
                    refused += 1
                    await self._refuse(error)
                except asyncio.TimeoutError:
                    if self._patience_s() <= 0:
                        await self._leave_idle(f"no message came for {self._idle_timeout_s:g} seconds; connect again")
            await self._socket.close(POLICY_CLOSE, f"{refused} messages in a row were refused")

    def _patience_s(self) -> float:
        """Seconds that may pass without a message from now on; speech counts as one."""
        speeches = self._speeches()
        if any(speech.is_ending for speech in speeches):
            return self._idle_timeout_s
        active_s = [self._last_message_s, *(speech.last_active_s for speech in speeches)]
        return max(active_s) + self._idle_timeout_s - self._clock.now()

    @abstractmethod
    def _speeches(self) -> Collection[Speech]: ...
    @abstractmethod
    async def _obey(self, message: dict[str, Any]) -> None: ...
    @abstractmethod
    async def _refuse(self, error: InvalidRequestError) -> None: ...
    @abstractmethod
    async def _leave_idle(self, reason: str) -> None: ...


async def refuse(websocket: WebSocket, response: Response) -> None:
    """Answer the handshake with an HTTP error, or a bare 403 where the server can't say more."""
    if "websocket.http.response" in websocket.scope.get("extensions", {}):
        await websocket.send_denial_response(response)
    else:
        await websocket.close()


_AFTER_REFUSAL = "ASGI callable returned without completing handshake"


def quiet_refusals() -> None:
    """Keep uvicorn from logging again what was logged before, most of it with a traceback.

    That is: handshakes that `refuse` has answered, answers that `StreamedAnswer` has broken off, and answers that
    uvicorn cancels when it stops, which it counts in one line.
    """
    logging.getLogger("uvicorn.error").addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    # NOTE: Starlette puts an error of its own around one that comes after an answer's beginning.
    errors = (error, error and error.__cause__)
    is_known = any(isinstance(each, GatewayError | asyncio.CancelledError) for each in errors)
    return not (is_known or record.getMessage().startswith(_AFTER_REFUSAL))
