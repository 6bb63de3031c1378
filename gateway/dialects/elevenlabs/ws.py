"""ElevenLabs' WebSockets with text coming in: `multi-stream-input` and `stream-input`.

One server for clients that differ, by rules that were seen to work with LiveKit's and Pipecat's:

1. Every message carries `contextId`, every context ends with `isFinal`; times are absolute iff `sync_alignment=true`.
2. `auto_mode=true`: a text message is spoken at once; otherwise text waits for the schedule or a flush.
3. `close_context` after a flush, with or without text: no more text, speak the rest. After text that was not flushed:
   stop now. A second one: stop now, whatever is left under that id.
4. A closed context's id, or no id, begins anew: its answers come one after the other. Other ids speak at the same time.
5. `{"text": ""}` without a context keeps the socket alive; `close_socket` closes it within two seconds.
6. Audio leaves near real time: a client that stops listening may not say so.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Annotated

from fastapi import Query
from starlette.routing import BaseRoute
from starlette.websockets import WebSocket

from gateway.audio import open_encoder
from gateway.dialects.elevenlabs.context import ContextOpener, ContextState, SpeakingContext
from gateway.dialects.elevenlabs.http import PATH, SpeechQuery
from gateway.dialects.elevenlabs.wire import (
    DEFAULT_INACTIVITY_S,
    ClientMessage,
    closing_message,
    error_message,
    error_response,
    parse_message,
    parse_socket_options,
)
from gateway.dialects.endpoints import Door, Socket, VoiceName
from gateway.dialects.json_socket import (
    FAILURE_CLOSE,
    NORMAL_CLOSE,
    POLICY_CLOSE,
    JsonSocket,
    SocketClosedError,
    refuse,
)
from gateway.errors import GatewayError, InvalidRequestError, public_text
from gateway.host import Host
from servicekit.tasks import stop

logger = logging.getLogger(__name__)

DEFAULT_CONTEXT = "default"
"""Context of text that names no context."""
LAST_WORDS_S = 1.5
"""How long contexts may go on speaking after `close_socket`; Pipecat waits 2 s for the close."""
FAREWELL_S = 0.3
"""How long the final messages of cancelled contexts may take."""


class TextSocket(ABC):
    """One connection: reads messages one by one while its contexts speak."""

    def __init__(self, socket: JsonSocket, opener: ContextOpener) -> None:
        """Keep the accepted socket, and what makes contexts."""
        self._socket = socket
        self._opener = opener
        self._contexts: set[SpeakingContext] = set()
        self._is_leaving = False
        self._last_message_s = opener.host.clock.now()

    async def serve(self) -> None:
        """Serve until either side closes; leaves nothing running."""
        try:
            while True:
                await self._obey(await self._receive())
        except SocketClosedError:
            pass
        finally:
            await asyncio.gather(*(context.stop() for context in self._contexts))

    @abstractmethod
    async def _obey(self, message: ClientMessage) -> None: ...

    async def _over(self, context: SpeakingContext) -> None:
        self._contexts.discard(context)

    async def _receive(self) -> ClientMessage:
        """Wait for the next message that can be read; what can't be is refused and changes nothing."""
        while True:
            try:
                message = parse_message(await self._socket.receive(self._patience_s()))
            except InvalidRequestError as error:
                await self._socket.send(error_message(error, None))
            except asyncio.TimeoutError:
                if self._patience_s() <= 0:
                    await self._leave_idle()
            else:
                self._last_message_s = self._opener.host.clock.now()
                return message

    def _patience_s(self) -> float:
        """Seconds that may pass without a message from now on; speech counts as one."""
        now_s = self._opener.host.clock.now()
        active_s = [self._last_message_s, *(context.last_active_s for context in self._contexts)]
        if any(context.state is ContextState.ENDING for context in self._contexts):
            active_s.append(now_s)
        return max(active_s) + self._opener.options.inactivity_s - now_s

    def _open(
        self, context_id: str | None, first: ClientMessage, before: SpeakingContext | None = None
    ) -> SpeakingContext:
        context = self._opener.open(context_id, first, self._socket.send)
        self._contexts.add(context)
        context.start(self._over, before)
        return context

    async def _leave_idle(self) -> None:
        seconds = self._opener.options.inactivity_s
        self._is_leaving = True
        await self._cancel_all()
        await self._leave("input_timeout_exceeded", f"no message came for {seconds:g} seconds; connect again")

    async def _leave(self, name: str, message: str) -> None:
        """Close for a reason.

        Raises:
            SocketClosedError: always.
        """
        await self._socket.send(closing_message(name, message, POLICY_CLOSE))
        await self._socket.close(POLICY_CLOSE, name)
        raise SocketClosedError

    async def _cancel_all(self) -> None:
        for context in self._contexts:
            context.cancel()
        await _settled(self._contexts, FAREWELL_S)


class MultiStreamInput(TextSocket):
    """Many ids, each on its own; the contexts of one id speak in turn."""

    def __init__(self, socket: JsonSocket, opener: ContextOpener) -> None:
        """Begin without contexts."""
        super().__init__(socket, opener)
        self._lines: dict[str, list[SpeakingContext]] = {}
        """Contexts by id, in the order of their answers; only the last may be open."""

    async def _obey(self, message: ClientMessage) -> None:
        context_id = message.context_id or DEFAULT_CONTEXT
        if message.text or message.flush:
            await self._take(context_id, message)
        if message.close_context:
            self._close(self._lines.get(context_id, ()))
        if message.close_socket:
            await self._finish()

    async def _take(self, context_id: str, message: ClientMessage) -> None:
        line = self._lines.get(context_id)
        context = line[-1] if line and line[-1].state is ContextState.OPEN else None
        if context is None and message.text:
            context = await self._open_within_limit(context_id, message)
        if context is not None:
            taking = context
            _guarded(taking, lambda: taking.take(message))

    def _close(self, line: Sequence[SpeakingContext]) -> None:
        if line and line[-1].state is ContextState.OPEN:
            _guarded(line[-1], line[-1].close)
            return
        for context in line:
            context.cancel()

    async def _open_within_limit(self, context_id: str, first: ClientMessage) -> SpeakingContext | None:
        limit, line = self._opener.host.limits.max_contexts, self._lines.get(context_id, [])
        if not line and len(self._lines) >= limit:
            got = f"{limit} contexts are open on this connection, the most there may be"
            await self._leave("max_active_conversations", f"{got}; close one before you open another")
        if len(line) >= limit:
            await line[0].settle()
        try:
            context = self._open(context_id, first, line[-1] if line else None)
        except GatewayError as error:
            await self._socket.send(error_message(error, context_id))
            return None
        self._lines.setdefault(context_id, []).append(context)
        return context

    async def _finish(self) -> None:
        """Let all contexts speak to their end, but not for long, and close.

        Raises:
            SocketClosedError: always.
        """
        for context in self._contexts:
            _guarded(context, context.end)
        await _settled(self._contexts, LAST_WORDS_S)
        await self._cancel_all()
        await self._socket.close(NORMAL_CLOSE)
        raise SocketClosedError

    async def _over(self, context: SpeakingContext) -> None:
        await super()._over(context)
        line = self._lines[context.id or ""]
        line.remove(context)
        if not line:
            del self._lines[context.id or ""]
        # Clients that don't ask for absolute times ignore errors and take the audio so far for the whole.
        if context.is_cut_short and not self._contexts and not self._opener.options.is_absolute:
            await self._socket.close(FAILURE_CLOSE, "speech failed")


class StreamInput(TextSocket):
    """One text; the socket closes when it is spoken."""

    def __init__(self, socket: JsonSocket, opener: ContextOpener) -> None:
        """Begin without text."""
        super().__init__(socket, opener)
        self._context: SpeakingContext | None = None

    async def _obey(self, message: ClientMessage) -> None:
        context = self._context or await self._begin(message)
        if context.state is not ContextState.OPEN:
            return
        if message.text or message.flush:
            _guarded(context, lambda: context.take(message))
        if message.text == "" or message.close_socket:
            _guarded(context, context.end)

    async def _begin(self, message: ClientMessage) -> SpeakingContext:
        try:
            self._context = self._open(None, message)
        except GatewayError as error:
            await self._leave(error.code, public_text(error))
            raise
        return self._context

    async def _over(self, context: SpeakingContext) -> None:
        await super()._over(context)
        if self._is_leaving:
            return
        if context.failure is None:
            await self._socket.close(NORMAL_CLOSE)
            return
        await self._socket.send(closing_message(context.failure.code, public_text(context.failure), FAILURE_CLOSE))
        await self._socket.close(FAILURE_CLOSE, context.failure.code)


def _serving(make: Callable[[JsonSocket, ContextOpener], TextSocket]) -> Callable[[WebSocket], Awaitable[None]]:
    async def serve(websocket: WebSocket) -> None:
        host: Host = websocket.app.state.host
        try:
            options = parse_socket_options(websocket.query_params)
            host.voices.check(websocket.path_params["voice"])
            open_encoder(options.speech.output).close()
        except GatewayError as error:
            await refuse(websocket, error_response(error))
            return
        socket = JsonSocket(websocket, host.limits.max_message_bytes, host.limits.send_timeout_s)
        await socket.accept()
        await make(socket, ContextOpener(host, websocket.path_params["voice"], options)).serve()

    return serve


def _guarded(context: SpeakingContext, step: Callable[[], None]) -> None:
    """Take a step with a context; text that can't be taken fails the context, which would lack it."""
    try:
        step()
    except InvalidRequestError as error:
        context.fail(error)


async def _settled(contexts: Iterable[SpeakingContext], seconds: float) -> None:
    waiting = [asyncio.ensure_future(context.settle()) for context in contexts]
    if waiting:
        await asyncio.wait(waiting, timeout=seconds)
        await stop(*waiting)


class SocketQuery(SpeechQuery):
    """Options in the URL of a socket."""

    auto_mode: bool = False
    """`true`: a text message is spoken at once; `false` (default): it waits for the schedule or a flush."""
    sync_alignment: bool = False
    """`true`: times count from the context's start; `false` (default): from the alignment before."""
    inactivity_timeout: float = DEFAULT_INACTIVITY_S
    """Seconds without a message after which the socket is closed; at most 180."""


def _a_socket(voice: VoiceName, query: Annotated[SocketQuery, Query()]) -> None: ...


_TEXTS = "Speak texts that are still being written, in several contexts on one socket."
_TEXT = "Speak one text that is still being written."

ROUTES: list[BaseRoute] = [
    Socket(f"{PATH}/multi-stream-input", _serving(MultiStreamInput), Door.ELEVENLABS, _TEXTS, _a_socket),
    Socket(f"{PATH}/stream-input", _serving(StreamInput), Door.ELEVENLABS, _TEXT, _a_socket),
]
