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
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Annotated, Any, NoReturn

from fastapi import Query
from starlette.routing import BaseRoute
from starlette.websockets import WebSocket

from gateway.audio import AudioEncoder
from gateway.dialects.elevenlabs.context import ContextState, SpeakingContext
from gateway.dialects.elevenlabs.http import PATH
from gateway.dialects.elevenlabs.wire import (
    ClientMessage,
    SocketQuery,
    closing_message,
    error_message,
    error_response,
    parse_message,
    read_socket_options,
)
from gateway.dialects.endpoints import Door, Socket, VoiceName
from gateway.dialects.json_socket import (
    FAILURE_CLOSE,
    NORMAL_CLOSE,
    POLICY_CLOSE,
    Conversation,
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


class TextSocket(Conversation):
    """One connection; its contexts speak while it reads on."""

    def __init__(self, socket: JsonSocket, host: Host, voice: str, options: SocketQuery) -> None:
        """Keep the accepted socket, and what its contexts have in common."""
        super().__init__(socket, host.clock, options.inactivity_timeout)
        self._host = host
        self._voice = voice
        self._options = options
        self._name = uuid.uuid4().hex
        self._opened = 0
        self._contexts: set[SpeakingContext] = set()
        self._is_leaving = False

    async def serve(self) -> None:
        """Serve until either side closes; leaves nothing running."""
        try:
            await self._obey_all()
        finally:
            await asyncio.gather(*(context.stop() for context in self._contexts))

    def _speeches(self) -> Collection[SpeakingContext]:
        return self._contexts

    async def _refuse(self, error: InvalidRequestError) -> None:
        await self._socket.send(error_message(error, None))

    async def _over(self, context: SpeakingContext) -> None:
        self._contexts.discard(context)

    def _open(
        self, context_id: str | None, first: ClientMessage, before: SpeakingContext | None = None
    ) -> SpeakingContext:
        self._opened += 1
        name = f"{self._name}-{self._opened}"
        context = SpeakingContext(self._host, name, self._voice, self._options, context_id, first, self._socket.send)
        self._contexts.add(context)
        context.start(self._over, before)
        return context

    async def _leave_idle(self, reason: str) -> None:
        self._is_leaving = True
        await self._cancel_all()
        await self._leave("input_timeout_exceeded", reason)

    async def _leave(self, name: str, message: str) -> NoReturn:
        """Close for a reason; raises SocketClosedError."""
        await self._socket.send(closing_message(name, message, POLICY_CLOSE))
        await self._socket.close(POLICY_CLOSE, name)
        raise SocketClosedError

    async def _cancel_all(self) -> None:
        for context in self._contexts:
            context.cancel()
        await _settled(self._contexts, FAREWELL_S)


class MultiStreamInput(TextSocket):
    """Many ids, each on its own; the contexts of one id speak in turn."""

    def __init__(self, socket: JsonSocket, host: Host, voice: str, options: SocketQuery) -> None:
        """Begin without contexts."""
        super().__init__(socket, host, voice, options)
        self._lines: dict[str, list[SpeakingContext]] = {}
        """Contexts by id, in the order of their answers; only the last may be open."""

    async def _obey(self, fields: dict[str, Any]) -> None:
        message = parse_message(fields)
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
        limit, line = self._host.limits.max_contexts, self._lines.get(context_id, [])
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

    async def _finish(self) -> NoReturn:
        """Let all contexts speak to their end, but not for long, and close; raises SocketClosedError."""
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
        if context.is_cut_short and not self._contexts and not self._options.sync_alignment:
            await self._socket.close(FAILURE_CLOSE, "speech failed")


class StreamInput(TextSocket):
    """One text; the socket closes when it is spoken."""

    _context: SpeakingContext | None = None

    async def _obey(self, fields: dict[str, Any]) -> None:
        message = parse_message(fields)
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


def _serving(kind: type[TextSocket]) -> Callable[[WebSocket], Awaitable[None]]:
    async def serve(websocket: WebSocket) -> None:
        host: Host = websocket.app.state.host
        try:
            options, voice = read_socket_options(websocket.query_params), websocket.path_params["voice"]
            host.voices.check(voice)
            host.pipeline.front_end.check(options.text_options)
            AudioEncoder(options.output).close()
        except GatewayError as error:
            await refuse(websocket, error_response(error))
            return
        await websocket.accept()
        socket = JsonSocket(websocket, host.limits.max_message_bytes, host.limits.send_timeout_s)
        await kind(socket, host, voice, options).serve()

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


def _a_socket(voice: VoiceName, query: Annotated[SocketQuery, Query()]) -> None: ...


_TEXTS = "Speak texts that are still being written, in several contexts on one socket."
_TEXT = "Speak one text that is still being written."

ROUTES: list[BaseRoute] = [
    Socket(f"{PATH}/multi-stream-input", _serving(MultiStreamInput), Door.ELEVENLABS, _TEXTS, _a_socket),
    Socket(f"{PATH}/stream-input", _serving(StreamInput), Door.ELEVENLABS, _TEXT, _a_socket),
]
