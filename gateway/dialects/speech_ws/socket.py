"""`/v1/audio/speech/stream`: text comes in, audio goes out, as the clients of vllm-omni and of sglang-omni speak it.

    session.config ─► session.configured
    input.text ... input.done ─► utterance 0 ─► session.done
    input.text ... input.done ─► utterance 1, behind it ─► session.done
    input.cancel ─► whatever is spoken or waits ends now     (this one is ours)
    session.close ─► the rest is spoken, then the connection closes

The connection outlives its utterances, as vllm-omni's does; sglang-omni's clients leave after `session.done`.
"""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from typing import Any

from starlette.routing import BaseRoute
from starlette.websockets import WebSocket

from gateway.audio import AudioEncoder
from gateway.dialects.endpoints import Door, Socket
from gateway.dialects.json_socket import NORMAL_CLOSE, POLICY_CLOSE, Conversation, JsonSocket, SocketClosedError
from gateway.dialects.speech_ws.utterance import SpeakingUtterance
from gateway.dialects.speech_ws.wire import (
    MAX_CONFIG_BYTES,
    MAX_TEXT_BYTES,
    ConfigFields,
    error_message,
    parse_config,
)
from gateway.errors import InvalidRequestError, TextTooLongError
from gateway.host import Host
from servicekit.tasks import stop

PATH = "/v1/audio/speech/stream"


async def _serve(websocket: WebSocket) -> None:
    host: Host = websocket.app.state.host
    await websocket.accept()
    await SpeechSocket(JsonSocket(websocket, MAX_CONFIG_BYTES, host.limits.send_timeout_s), host).serve()


_TEXTS = "Speak texts that are still being written, one utterance after the other."
ROUTES: list[BaseRoute] = [Socket(PATH, _serve, Door.OMNI, _TEXTS)]


class SpeechSocket(Conversation):
    """One connection: takes text while its utterances are spoken, one behind the other."""

    def __init__(self, socket: JsonSocket, host: Host) -> None:
        """Keep the accepted socket; nothing can be said before a config."""
        super().__init__(socket, host.clock, host.limits.idle_timeout_s)
        self._host = host
        self._session_id = f"speech_ws_{uuid.uuid4().hex}"
        self._config: ConfigFields | None = None
        self._utterances: list[SpeakingUtterance] = []
        self._to_speak: asyncio.Queue[SpeakingUtterance | None] = asyncio.Queue()
        self._made = 0

    async def serve(self) -> None:
        """Serve until either side closes; leaves nothing running."""
        speaker = asyncio.create_task(self._speak_all(), name=self._session_id)
        try:
            await self._obey_all()
        finally:
            for utterance in self._utterances:
                utterance.abandon()
            await stop(speaker)

    def _speeches(self) -> list[SpeakingUtterance]:
        return self._utterances

    async def _refuse(self, error: InvalidRequestError) -> None:
        await self._socket.send(error_message(error))

    async def _obey(self, message: dict[str, Any]) -> None:
        kind = message.get("type")
        if kind == "session.config":
            await self._configure(message)
        elif kind == "input.text":
            self._take(message.get("text"))
        elif kind == "input.done":
            self._opened().end()
        elif kind == "input.cancel":
            self._cancel()
        elif kind == "session.close":
            self._finish()
        else:
            expected = "session.config, input.text, input.done, input.cancel or session.close"
            raise InvalidRequestError(f"got a message of an unknown type, expected {expected}", param="type")

    async def _configure(self, message: dict[str, Any]) -> None:
        if self._open is not None:
            got = "session.config came while text is being taken"
            raise InvalidRequestError(f"{got}; send input.done first", param="type")
        config = parse_config(message)
        self._host.voices.check(config.speaker)
        front_end, text_options = self._host.pipeline.front_end, config.text_options()
        front_end.check(text_options)
        AudioEncoder(config.output, config.times_as_fast).close()
        self._config = config
        told: dict[str, Any] = {"type": "session.configured", "session_id": self._session_id, **config.description}
        if ignored := front_end.ignored(text_options):
            told["ignored_fields"] = ignored
        await self._socket.send(told)

    def _take(self, text: object) -> None:
        if not isinstance(text, str):
            raise InvalidRequestError("input.text lacks its text; send a string", param="text")
        if len(text.encode("utf-8", "replace")) > MAX_TEXT_BYTES:
            raise TextTooLongError(f"the text passes {MAX_TEXT_BYTES} bytes; send it in pieces", param="text")
        if text:
            self._opened().write(text)

    def _cancel(self) -> None:
        for utterance in self._utterances:
            utterance.interrupt()
            if not utterance.is_ending:
                utterance.end()

    def _finish(self) -> None:
        """Speak what is complete and then close; text without its `input.done` is dropped."""
        if self._open is not None:
            self._open.interrupt()
            self._open.end()
        self._to_speak.put_nowait(None)

    @property
    def _open(self) -> SpeakingUtterance | None:
        """The utterance that takes text."""
        last = self._utterances[-1] if self._utterances else None
        return None if last is None or last.is_ending else last

    def _opened(self) -> SpeakingUtterance:
        if self._config is None:
            raise InvalidRequestError("there is no config yet; send session.config first", param="type")
        if self._open is not None:
            return self._open
        if len(self._utterances) >= self._host.limits.max_contexts:
            got = f"{len(self._utterances)} utterances wait, which is the limit"
            raise TextTooLongError(f"{got}; wait for session.done before you send more", param="text")
        utterance = SpeakingUtterance(self._socket, self._host, self._config, self._session_id, self._made)
        self._made += 1
        self._utterances.append(utterance)
        self._to_speak.put_nowait(utterance)
        return utterance

    async def _speak_all(self) -> None:
        with suppress(SocketClosedError):
            while (utterance := await self._to_speak.get()) is not None:
                await utterance.speak()
                self._utterances.remove(utterance)
            await self._socket.close(NORMAL_CLOSE)

    async def _leave_idle(self, reason: str) -> None:
        await self._refuse(InvalidRequestError(reason))
        await self._socket.close(POLICY_CLOSE, "idle")
        raise SocketClosedError
