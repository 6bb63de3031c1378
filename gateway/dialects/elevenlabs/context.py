"""One context of an ElevenLabs socket: text comes in, audio messages go out, and one final message, always.

    OPEN ── end ──► ENDING ── all is spoken ──► FINISHED        ends with the final message
      └── cancel ─────┴──────────────────────► CANCELLED        so does this, at once

A context owns its session, its encoder and the task that speaks. Knows nothing of other contexts.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from gateway.delivery import Delivery, Pacer, TurnEncoder
from gateway.dialects.elevenlabs.feeds import AlignmentWriter, AudioWriter, BufferedFeed, MessageFeed, Send, TextFeed
from gateway.dialects.elevenlabs.wire import ClientMessage, SocketOptions, error_message, final_message
from gateway.dialects.json_socket import Interruptible, SocketClosedError
from gateway.errors import GatewayError
from gateway.host import Host
from gateway.speech.request import SpeechRequest
from gateway.speech.session import SpeechSession
from gateway.speech.speech_job import warning_field
from gateway.text import LIVE_TEXT, WHOLE_TEXT
from servicekit.clock import Clock
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


@dataclass(frozen=True)
class ContextParts:
    """What a context is made of."""

    name: str
    """The context's name in logs."""
    session: SpeechSession
    feed: TextFeed
    encoder: TurnEncoder
    alignment: AlignmentWriter
    delivery: Delivery
    clock: Clock


class SpeakingContext:
    """Speaks one growing text to one client; whoever calls `start` calls `stop` in the end, whatever happened."""

    def __init__(self, context_id: str | None, parts: ContextParts, send: Send) -> None:
        """Begin without text.

        Args:
            context_id: put in every message; None on a socket that has but one context.
            parts: taken over.
            send: waits until the client has room, and raises SocketClosedError.
        """
        self.id = context_id
        self._parts = parts
        self._send = send
        self._writer = AudioWriter(parts.encoder, parts.alignment, send, context_id)
        self._state = ContextState.OPEN
        self._was_flushed = False
        self._speech: Interruptible | None = None
        self._task: asyncio.Task[None] | None = None
        self._before: SpeakingContext | None = None
        self.failure: GatewayError | None = None
        """The error that ended the context; None if there was none."""
        self.last_active_s = parts.clock.now()
        """When the context last took text or sent audio, in seconds of the clock."""

    @property
    def state(self) -> ContextState:
        """How far it has come."""
        return self._state

    @property
    def progress(self) -> dict[str, Any]:
        """How far the speech got: the account for a caller who broke in."""
        return {
            "isCancelled": self._state is ContextState.CANCELLED,
            "samplesGenerated": self._parts.delivery.generated_samples,
            "samplesSent": self._writer.samples_sent,
            "sampleRate": SAMPLE_RATE_HZ,
            "charactersSent": self._parts.feed.position_in_text(self._writer.position_sent),
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
        self._speech = Interruptible(self._speak(), f"speak-{self._parts.name}")
        self._task = asyncio.create_task(self._run(self._speech, on_over), name=f"context-{self._parts.name}")
        self._task.add_done_callback(lambda _: self._parts.encoder.close())

    def take(self, message: ClientMessage) -> None:
        """Take text or a flush, while it is open.

        Raises:
            InvalidRequestError: the text can't be taken.
        """
        self.last_active_s = self._parts.clock.now()
        self._parts.feed.push(message)
        self._was_flushed = bool(message.flush) or (self._was_flushed and not message.has_speech)

    def close(self) -> None:
        """Obey `close_context`: after a flush it says that the text is complete, after other text it cancels.

        Raises:
            InvalidRequestError: see `end`.
        """
        if self._state is ContextState.OPEN and self._was_flushed:
            self.end()
        else:
            self.cancel()

    def end(self) -> None:
        """Take no more text and speak the rest.

        Raises:
            InvalidRequestError: what was buffered can't be spoken.
        """
        if self._state is ContextState.OPEN:
            self._state = ContextState.ENDING
            self._parts.feed.end()

    def cancel(self) -> None:
        """Stop both services now; the final message still comes."""
        if self._speech is not None and self._state in (ContextState.OPEN, ContextState.ENDING):
            self._state = ContextState.CANCELLED
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
            if self._state is not ContextState.CANCELLED:
                self._state = ContextState.FINISHED
            if self.failure is not None:
                await self._send(error_message(self.failure, self.id))
            warning = warning_field(*self._parts.session.results)
            await self._send({**final_message(self.progress, self.id), **warning})
            await on_over(self)
        except SocketClosedError:
            logger.info("%s: the client left", self._parts.name)

    async def _wait_for_turn(self) -> None:
        if self._before is not None:
            await self._before.settle()
            self._before = None

    async def _speak(self) -> None:
        await self._wait_for_turn()
        frames = self._parts.delivery.frames(self._parts.session.audio())
        async with self._parts.encoder, aclosing(frames):
            async for frame in frames:
                await self._writer.write(frame)
                self.last_active_s = self._parts.clock.now()
            await self._writer.finish()


class ContextOpener:
    """Opens any number of contexts, each with parts of its own."""

    def __init__(self, host: Host, voice: str, options: SocketOptions) -> None:
        """Keep what all contexts have in common."""
        self.host = host
        self.options = options
        self._voice = voice
        self._name = uuid.uuid4().hex
        self._opened = 0

    def open(self, context_id: str | None, first: ClientMessage, send: Send) -> SpeakingContext:
        """Make a context; it takes no text yet.

        Args:
            context_id: as the client calls it, if it has a name.
            first: its first message, which may say how to speak.
            send: see `SpeakingContext`.

        Raises:
            GatewayError: the output format, the speed or a pronunciation dictionary can't be had here.
        """
        self._opened += 1
        name = f"{self._name}-{self._opened}"
        speech = self.options.speech
        text_options = replace(speech.text_options, lexicons=first.lexicons) if first.lexicons else speech.text_options
        request = SpeechRequest(
            "",
            self._voice,
            speech.seed,
            text_options=text_options,
            request_id=name,
            is_interleaved=self.options.is_interleaved,
            wants_times=True,
        )
        split = WHOLE_TEXT if self.options.is_auto else LIVE_TEXT
        session = SpeechSession(self.host.pipeline, request, split=split)
        parts = ContextParts(
            name=name,
            session=session,
            feed=self._feed(session, first),
            encoder=TurnEncoder(speech.output, self.host.executor, first.speed),
            alignment=AlignmentWriter(is_absolute=self.options.is_absolute, speed=first.speed),
            delivery=Delivery(Pacer(self.host.clock, self.host.limits.run_ahead_s), first.speed),
            clock=self.host.clock,
        )
        return SpeakingContext(context_id, parts, send)

    def _feed(self, session: SpeechSession, first: ClientMessage) -> TextFeed:
        return MessageFeed(session) if self.options.is_auto else BufferedFeed(session, first.schedule)
