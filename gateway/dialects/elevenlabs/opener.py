"""Makes the contexts of one ElevenLabs socket from the options of its URL and of their first messages."""

from __future__ import annotations

import uuid

from gateway.delivery.frames import Delivery
from gateway.delivery.pacer import Pacer
from gateway.delivery.turn_encoder import TurnEncoder
from gateway.dialects.elevenlabs.audio import AlignmentWriter, Send
from gateway.dialects.elevenlabs.context import ContextParts, SpeakingContext
from gateway.dialects.elevenlabs.text import BufferedFeed, MessageFeed, TextFeed
from gateway.dialects.elevenlabs.wire import ClientMessage, StreamOptions
from gateway.host import Host
from gateway.speech.request import SpeechRequest
from gateway.speech.session import SpeechSession
from gateway.text import LIVE_TEXT, WHOLE_TEXT


class ContextOpener:
    """Opens any number of contexts, each with parts of its own."""

    def __init__(self, host: Host, voice: str, options: StreamOptions) -> None:
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
            GatewayError: the output format or the speed can't be had here.
        """
        self._opened += 1
        name = f"{self._name}-{self._opened}"
        speech = self.options.speech
        request = SpeechRequest("", self._voice, speech.seed, text_options=speech.text_options, request_id=name)
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
