"""Serves one Wyoming connection: lists the voices, or speaks texts one after the other.

    describe ─► info              ping ─► pong
    synthesize ─► audio-start ─► audio-chunk ... ─► audio-stop
    synthesize-start, synthesize-chunk ..., synthesize-stop ─► the same, while text still comes, ─► synthesize-stopped

Between start and stop a `synthesize` repeats the text for servers that can't take it in pieces, and is left out. There
is no event that cancels: who hangs up has cancelled. What goes wrong is told in an `error` event, and the connection is
closed behind it, because Home Assistant does not read that event and would wait.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from wyoming.audio import AudioChunk as AudioEvent
from wyoming.audio import AudioStart, AudioStop
from wyoming.event import Event
from wyoming.info import Attribution, Info, TtsProgram, TtsVoice
from wyoming.ping import Ping, Pong
from wyoming.tts import SynthesizeStopped

from gateway.audio.codecs import PCM16_BYTES, to_pcm16
from gateway.core import AudioChunk, FloatArray
from gateway.dialects.wyoming.wire import ClientLeftError, EventStream, read_text, read_voice
from gateway.errors import GatewayError, InvalidRequestError, StalledReaderError, TextTooLongError
from gateway.host import Host
from gateway.speech.request import SpeechRequest, SpeechResult
from gateway.speech.session import SessionAudio, SpeechSession
from gateway.speech.speech_job import warning_field
from gateway.text import TextOptions
from gateway.voices.directory import StoredVoice
from gateway.voices.profile import DEFAULT_VOICE, NO_PROFILE
from gateway.voices.registry import NamedVoice
from servicekit.extras import installed_version
from servicekit.tasks import stop, until_first
from token2wav_service.contract import SAMPLE_RATE_HZ

logger = logging.getLogger(__name__)

_CHUNK_SAMPLES = SAMPLE_RATE_HZ // 10
"""Most samples of one audio-chunk event."""
_FORMAT = {"rate": SAMPLE_RATE_HZ, "width": PCM16_BYTES, "channels": 1}


@dataclass(frozen=True)
class _Speech:
    """A text on its way to be spoken."""

    audio: AsyncGenerator[AudioChunk] | AsyncGenerator[SessionAudio]
    is_streamed: bool
    """Whether the text came in pieces."""
    results: list[SpeechResult]
    """How it was spoken; complete when its audio ends."""


class WyomingConnection:
    """Takes events while texts are spoken; leaves nothing running."""

    def __init__(
        self,
        host: Host,
        events: EventStream,
        describe: Callable[[], Info],
        idle_timeout_s: float,
        set_idle: Callable[[bool], None],
    ) -> None:
        """Take over the connection.

        Args:
            host: speaks.
            events: closed on every way out.
            describe: says what there is.
            idle_timeout_s: seconds without an event or audio after which the connection is closed.
            set_idle: is told whether nothing is to be spoken.
        """
        self._host = host
        self._events = events
        self._describe = describe
        self._idle_timeout_s = idle_timeout_s
        self._set_idle = set_idle
        self._id = f"wyoming_{uuid.uuid4().hex}"
        self._made = 0
        self._open: SpeechSession | None = None
        self._to_speak: asyncio.Queue[_Speech | GatewayError | None] = asyncio.Queue()
        self._active_s = host.clock.now()
        self._is_speaking = False

    def finish(self) -> None:
        """Speak what was asked for so far, and close."""
        self._end_open()
        self._to_speak.put_nowait(None)

    async def serve(self) -> None:
        """Serve until either side closes."""
        try:
            await until_first(self._speak_all(), self._receive_all())
        finally:
            await self._events.close()

    async def _receive_all(self) -> None:
        """Return when the client has left."""
        try:
            while True:
                await self._obey(await self._next_event())
        except (ClientLeftError, StalledReaderError):
            return
        except InvalidRequestError as error:
            self._end_open()
            self._to_speak.put_nowait(error)
        await self._events.until_left()

    async def _next_event(self) -> Event:
        receiving = asyncio.create_task(self._events.receive())
        try:
            while not receiving.done():
                await asyncio.wait({receiving}, timeout=self._patience_s())
                if not receiving.done() and self._patience_s() <= 0:
                    got = f"no event came for {self._idle_timeout_s:g} seconds"
                    raise InvalidRequestError(f"{got}; connect again")
            self._active_s = self._host.clock.now()
            return receiving.result()
        finally:
            await stop(receiving)

    def _patience_s(self) -> float:
        if self._is_speaking and self._open is None:
            return self._idle_timeout_s
        return self._active_s + self._idle_timeout_s - self._host.clock.now()

    async def _obey(self, event: Event) -> None:
        """Do what an event asks for; events of other kinds are dropped, as the protocol has it."""
        kind = event.type
        if kind == "describe":
            await self._events.send(self._describe())
        elif kind == "ping":
            await self._events.send(Pong(Ping.from_event(event).text))
        elif kind == "synthesize" and self._open is None:
            result = SpeechResult()
            request = replace(self._request(*read_voice(event)), text=read_text(event))
            self._queue(_Speech(self._host.pipeline.synthesize(request, result), is_streamed=False, results=[result]))
        elif kind == "synthesize-start":
            self._start(*read_voice(event))
        elif kind == "synthesize-chunk":
            self._opened(kind).write(read_text(event))
        elif kind == "synthesize-stop":
            self._opened(kind)
            self._end_open()

    def _start(self, voice: str | None, language: str | None) -> None:
        if self._open is not None:
            raise InvalidRequestError("synthesize-start came while text is being taken; send synthesize-stop first")
        request = self._request(voice, language)
        self._host.voices.check(request.voice)  # before the text comes; of a whole text, the pipeline's task
        session = SpeechSession(self._host.pipeline, request)
        self._queue(_Speech(session.audio(), is_streamed=True, results=session.results))
        self._open = session

    def _opened(self, kind: str) -> SpeechSession:
        if self._open is None:
            raise InvalidRequestError(f"{kind} came before synthesize-start; send synthesize-start first")
        return self._open

    def _end_open(self) -> None:
        if self._open is not None:
            self._open.end()
            self._open = None

    def _request(self, voice: str | None, language: str | None) -> SpeechRequest:
        self._made += 1
        name = f"{self._id}-{self._made}"
        return SpeechRequest("", voice or DEFAULT_VOICE, text_options=TextOptions(language), request_id=name)

    def _queue(self, speech: _Speech) -> None:
        if self._to_speak.qsize() >= self._host.limits.max_contexts:
            got = f"{self._to_speak.qsize()} requests wait on this connection, which is the limit"
            raise TextTooLongError(f"{got}; wait for audio-stop before you send more", param="text")
        self._set_idle(False)
        self._to_speak.put_nowait(speech)

    async def _speak_all(self) -> None:
        """Speak one text behind the other; return after the last one, or the first that failed."""
        try:
            while (item := await self._to_speak.get()) is not None:
                if isinstance(item, GatewayError):
                    raise item
                await self._speak(item)
                self._set_idle(self._to_speak.empty())
        except (ClientLeftError, StalledReaderError) as error:
            logger.info("%s: %s", self._id, error if str(error) else "the client left")
        except GatewayError as error:
            logger.warning("%s failed: %s: %s", self._id, error.code, error)
            await self._events.refuse(error)
        except Exception:
            logger.exception("%s failed", self._id)
            await self._events.refuse(GatewayError("the server failed; its log says why"))

    async def _speak(self, speech: _Speech) -> None:
        self._is_speaking, has_started = True, False
        try:
            async with aclosing(speech.audio) as audio:
                async for piece in audio:
                    if len(piece.samples) and not has_started:
                        has_started = True
                        await self._events.send(AudioStart(**_FORMAT))
                    await self._send_audio(piece.samples)
        finally:
            self._is_speaking = False
        if not has_started:
            await self._events.send(AudioStart(**_FORMAT))
        await self._events.send(AudioStop(), warning_field(*speech.results))
        if speech.is_streamed:
            await self._events.send(SynthesizeStopped())

    async def _send_audio(self, samples: FloatArray) -> None:
        for at in range(0, len(samples), _CHUNK_SAMPLES):
            pcm = to_pcm16(samples[at : at + _CHUNK_SAMPLES])
            await self._events.send(AudioEvent(audio=pcm, **_FORMAT))
            self._active_s = self._host.clock.now()


PROGRAM = "cosydit"
_ATTRIBUTION = Attribution(name=PROGRAM, url="")
_FALLBACK_LANGUAGE = "en"
"""Language of a voice whose transcript does not tell one: clients leave out voices without languages."""


def describe(host: Host, languages: Sequence[str] = ()) -> Info:
    """List the voices.

    Args:
        host: has them.
        languages: that each voice speaks, as BCP 47 tags; none: each speaks its own, which is that of its transcript
            where nobody named it.
    """
    voices = [_voice(host, host.voices.find(name), languages) for name in host.voices.names]
    program = TtsProgram(
        name=PROGRAM,
        attribution=_ATTRIBUTION,
        installed=True,
        description="Streaming text to speech",
        version=installed_version("cosydit"),
        voices=voices,
        supports_synthesize_streaming=True,
    )
    return Info(tts=[program])


def _voice(host: Host, voice: NamedVoice | StoredVoice, languages: Sequence[str]) -> TtsVoice:
    profile = voice.profile if isinstance(voice, NamedVoice) else NO_PROFILE
    about = profile.description
    own = profile.language or host.pipeline.front_end.guess_language(voice.transcript)
    return TtsVoice(
        name=voice.name,
        attribution=_ATTRIBUTION,
        installed=True,
        # Home Assistant shows the description in place of the name.
        description=f"{voice.name}: {about}" if about else voice.name,
        version=None,
        languages=list(languages) or [own or _FALLBACK_LANGUAGE],
    )
