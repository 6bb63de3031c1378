"""One context of an ElevenLabs socket: text comes in, audio messages go out, and one final message, always.

    OPEN ── end ──► ENDING ── all is spoken ──► FINISHED        ends with the final message
      └── cancel ─────┴──────────────────────► CANCELLED        so does this, at once

A context owns its session, its encoder and the task that speaks. Knows nothing of other contexts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from enum import Enum
from typing import Any

from gateway.audio import AsyncEncoder, AudioEncoder
from gateway.delivery import Delivery, Pacer
from gateway.dialects.elevenlabs.feeds import AlignmentWriter, AudioWriter, BufferedFeed, MessageFeed, Send, TextFeed
from gateway.dialects.elevenlabs.wire import ClientMessage, SocketQuery, error_message, final_message
from gateway.dialects.json_socket import Interruptible, SocketClosedError
from gateway.errors import GatewayError
from gateway.host import Host
from gateway.speech.request import SpeechRequest
from gateway.speech.session import SpeechSession
from gateway.speech.speech_job import warning_field
from gateway.text import LIVE_TEXT, WHOLE_TEXT
from servicekit.tasks import stop
from token2wav_service.contract import SAMPLE_RATE_HZ

logger = logging.getLogger(__name__)


class ContextState(Enum):
    """How far a context has come."""

    OPEN = "open"
    ENDING = "ending"
    """No more text will come; the rest is being spoken."""
    FINISHED = "finished"
    CANCELLED = "cancelled"


class SpeakingContext:
    """Speaks one growing text to one client; whoever calls `start` calls `stop` in the end, whatever happened."""

    def __init__(
        self,
        host: Host,
        name: str,
        voice: str,
        options: SocketQuery,
        context_id: str | None,
        first: ClientMessage,
        send: Send,
    ) -> None:
        """Begin without text.

        Args:
            host: the gateway's parts.
            name: of the context in logs.
            voice: speaks.
            options: of the socket.
            context_id: put in every message; None on a socket that has but one context.
            first: its first message, which may say how to speak.
            send: waits until the client has room, and raises SocketClosedError.

        Raises:
            GatewayError: the speed or a pronunciation dictionary can't be had here.
        """
        self.id = context_id
        self._name = name
        self._clock = host.clock
        self._send = send
        self._session = _session(host, name, voice, options, first)
        self._feed: TextFeed = (
            MessageFeed(self._session) if options.auto_mode else BufferedFeed(self._session, first.schedule)
        )
        self._encoder = AsyncEncoder(AudioEncoder(options.output, first.speed), host.executor)
        self._delivery = Delivery(Pacer(host.clock, host.limits.run_ahead_s), first.speed)
        alignment = AlignmentWriter(is_absolute=options.sync_alignment, speed=first.speed)
        self._writer = AudioWriter(self._encoder, alignment, send, context_id)
        self.state = ContextState.OPEN
        """How far it has come."""
        self._was_flushed = False
        self._speech: Interruptible | None = None
        self._task: asyncio.Task[None] | None = None
        self._before: SpeakingContext | None = None
        self.failure: GatewayError | None = None
        """The error that ended the context; None if there was none."""
        self.last_active_s = host.clock.now()
        """When the context last took text or sent audio, in seconds of the clock."""

    @property
    def is_ending(self) -> bool:
        """Whether all its text has come and it is still spoken."""
        return self.state is ContextState.ENDING

    @property
    def progress(self) -> dict[str, Any]:
        """How far the speech got: the account for a caller who broke in."""
        return {
            "isCancelled": self.state is ContextState.CANCELLED,
            "samplesGenerated": self._delivery.generated_samples,
            "samplesSent": self._writer.samples_sent,
            "sampleRate": SAMPLE_RATE_HZ,
            "charactersSent": self._feed.position_in_text(self._writer.position_sent),
        }

    @property
    def is_cut_short(self) -> bool:
        """Whether something went wrong after audio had been sent, which a client may take for all of it."""
        return self.failure is not None and self._writer.samples_sent > 0

    def start(
        self, on_over: Callable[[SpeakingContext], Awaitable[None]], before: SpeakingContext | None = None
    ) -> None:
        """Begin to speak.

        Args:
            on_over: awaited after the final message, unless `stop` came before.
            before: the context whose messages come before all of this one's; None: there is none.
        """
        self._before = before
        self._speech = Interruptible(self._speak(), f"speak-{self._name}")
        self._task = asyncio.create_task(self._run(self._speech, on_over), name=f"context-{self._name}")
        self._task.add_done_callback(lambda _: self._encoder.close())

    def take(self, message: ClientMessage) -> None:
        """Take text or a flush, while it is open.

        Raises:
            InvalidRequestError: the text can't be taken.
        """
        self.last_active_s = self._clock.now()
        self._feed.push(message)
        self._was_flushed = bool(message.flush) or (self._was_flushed and not message.has_speech)

    def close(self) -> None:
        """Obey `close_context`: after a flush it says that the text is complete, after other text it cancels.

        Raises:
            InvalidRequestError: see `end`.
        """
        if self.state is ContextState.OPEN and self._was_flushed:
            self.end()
        else:
            self.cancel()

    def end(self) -> None:
        """Take no more text and speak the rest.

        Raises:
            InvalidRequestError: what was buffered can't be spoken.
        """
        if self.state is ContextState.OPEN:
            self.state = ContextState.ENDING
            self._feed.end()

    def cancel(self) -> None:
        """Stop both services now; the final message still comes."""
        if self._speech is not None and self.state in (ContextState.OPEN, ContextState.ENDING):
            self.state = ContextState.CANCELLED
            self._speech.interrupt()

    def fail(self, error: GatewayError) -> None:
        """Cancel it, with the error before the final message."""
        self.failure = error
        self.cancel()

    async def settle(self) -> None:
        """Wait until it is over."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def stop(self) -> None:
        """Free everything, and send nothing more."""
        if self._speech is not None and self._task is not None:
            self._speech.abandon()
            await stop(self._task)

    async def _run(self, speech: Interruptible, on_over: Callable[[SpeakingContext], Awaitable[None]]) -> None:
        try:
            self.failure = await speech.wait() or self.failure
            await self._wait_for_turn()
            if self.state is not ContextState.CANCELLED:
                self.state = ContextState.FINISHED
            if self.failure is not None:
                await self._send(error_message(self.failure, self.id))
            warning = warning_field(*self._session.results)
            await self._send({**final_message(self.progress, self.id), **warning})
            await on_over(self)
        except SocketClosedError:
            logger.info("%s: the client left", self._name)

    async def _wait_for_turn(self) -> None:
        if self._before is not None:
            await self._before.settle()
            self._before = None

    async def _speak(self) -> None:
        await self._wait_for_turn()
        frames = self._delivery.frames(self._session.audio())
        async with self._encoder, aclosing(frames):
            async for frame in frames:
                await self._writer.write(frame)
                self.last_active_s = self._clock.now()
            await self._writer.finish()


def _session(host: Host, name: str, voice: str, options: SocketQuery, first: ClientMessage) -> SpeechSession:
    text_options = options.text_options
    request = SpeechRequest(
        "",
        voice,
        options.seed,
        text_options=replace(text_options, lexicons=first.lexicons) if first.lexicons else text_options,
        request_id=name,
        is_interleaved=options.text_mode == "interleaved",
        wants_times=True,
    )
    return SpeechSession(host.pipeline, request, split=WHOLE_TEXT if options.auto_mode else LIVE_TEXT)
