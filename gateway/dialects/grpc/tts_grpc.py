"""Our own gRPC dialect, `tts_api.tts.v1.TextToSpeechService`: whole texts, and texts that are still being written.

    requests ─► _read ─► SpeechSession ─► Delivery ─► AsyncEncoder ─► answers
                  └─ cancel: stops the rest within a frame, then tells how far the speech had come

Errors are left to the server's interceptor. Knows nothing of how it is hosted.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from typing import Any

from google.protobuf.message import Message
from tts_api.tts.v1 import speech_pb2, tts_service_pb2

from gateway.audio import AsyncEncoder, AudioEncoder
from gateway.delivery import Delivery, Pacer, timed
from gateway.dialects.answers import sent, tell_warnings, warning_headers
from gateway.dialects.grpc.tts_config import GrpcSpeech, read_config
from gateway.errors import InvalidRequestError, StalledReaderError, UnsupportedOptionError
from gateway.host import Host
from gateway.speech.request import SpeechResult
from gateway.speech.session import SessionAudio, SpeechSession
from gateway.speech.text_clock import CharacterTime
from gateway.voices.profile import VoiceProfile
from servicekit.tasks import stop
from token2wav_service.contract import SAMPLE_RATE_HZ

SERVICE_NAME = "tts_api.tts.v1.TextToSpeechService"

Speech = AsyncGenerator[SessionAudio]


class TextToSpeechServicer:
    """The service's methods, as `add_TextToSpeechServiceServicer_to_server` takes them."""

    def __init__(self, host: Host) -> None:
        """Keep what to speak with."""
        self._host = host

    async def Synthesize(self, request: tts_service_pb2.SynthesizeRequest, context: Any) -> None:
        """Speak a whole text.

        Raises:
            GatewayError: it can't be spoken; the answers written before are good.
        """
        wanted = read_config(request.config, request.text)
        if wanted.speech.is_interleaved:
            got = "got text_mode INTERLEAVED for a text that is whole"
            raise UnsupportedOptionError(f"{got}; leave it out, or call StreamingSynthesize", param="text_mode")
        result = SpeechResult()
        asked = wanted.speech.within(context.time_remaining())
        speech = timed(self._host.pipeline.synthesize(asked, result), result)
        answer = _Answer(self._host, wanted, math.inf, context, tts_service_pb2.SynthesizeResponse)
        await answer.speak(speech)
        await answer.finish([result])

    async def StreamingSynthesize(
        self, requests: AsyncIterator[tts_service_pb2.StreamingSynthesizeRequest], context: Any
    ) -> None:
        """Speak a text while it is written.

        Raises:
            GatewayError: it can't be spoken; the answers written before are good.
        """
        wanted = read_config(await _first_config(requests))
        session = SpeechSession(self._host.pipeline, wanted.speech)
        answer = _Answer(
            self._host, wanted, self._host.limits.run_ahead_s, context, tts_service_pb2.StreamingSynthesizeResponse
        )
        try:
            is_cancelled = await _until_cancelled(answer.speak(session.audio()), _TextReader(session).read(requests))
        finally:
            await answer.settle()
        await answer.finish(session.results, is_cancelled=is_cancelled)

    async def ListVoices(
        self, request: tts_service_pb2.ListVoicesRequest, context: Any
    ) -> tts_service_pb2.ListVoicesResponse:
        """List the voices that are there now."""
        voices = [_voice_info(voice.name, voice.profile) for voice in self._host.voices.listed]
        return tts_service_pb2.ListVoicesResponse(voices=voices)


def _voice_info(name: str, profile: VoiceProfile) -> tts_service_pb2.VoiceInfo:
    gender = f"VOICE_GENDER_{profile.gender.value.upper()}" if profile.gender else None
    return tts_service_pb2.VoiceInfo(
        name=name, description=profile.description, gender=gender, language_code=profile.language
    )


class _Answer:
    """The messages of one call."""

    def __init__(
        self,
        host: Host,
        wanted: GrpcSpeech,
        run_ahead_s: float,
        context: Any,
        message_type: Callable[..., Message],
    ) -> None:
        self._host = host
        self._wanted = wanted
        self._context = context
        self._message_type = message_type
        pacer = Pacer(host.clock, wanted.run_ahead_s or run_ahead_s)
        self._delivery = Delivery(pacer, wanted.speed)
        self._written_characters = 0
        """Position in the text up to which times were written. A cancel may come while a frame is encoded."""
        self._writing: asyncio.Future[None] | None = None

    async def speak(self, speech: Speech) -> None:
        """Write the first message and the audio.

        Args:
            speech: closed on every way out.
        """
        wanted = self._wanted
        self._host.voices.check(wanted.speech.voice)
        async with (
            AsyncEncoder(AudioEncoder(wanted.output, wanted.speed), self._host.executor) as encoder,
            aclosing(self._delivery.frames(speech)) as frames,
        ):
            assert wanted.speech.seed is not None
            started = speech_pb2.SpeechStarted(
                request_id=wanted.speech.request_id,
                seed=wanted.speech.seed,
                audio_format=wanted.format_message,
                ignored_fields=self._host.pipeline.front_end.ignored(wanted.speech.text_options),
            )
            await self._write(started=started)
            async for frame in frames:
                await self._write_audio(frame, encoder)
            if rest := await encoder.finish():
                await self._write(audio=speech_pb2.SpeechAudio(content=rest, end_s=self._sent_s))

    async def finish(self, results: list[SpeechResult], *, is_cancelled: bool = False) -> None:
        """Write the last message."""
        heard = [result.ttfa_s for result in results if result.ttfa_s is not None]
        finished = speech_pb2.SpeechFinished(
            reason=_finish_reason(results, is_cancelled),
            generated_samples=self._delivery.generated_samples,
            sent_samples=self._delivery.sent_samples,
            sent_characters=self._written_characters,
            spoken_text="".join(result.spoken_text for result in results),
            time_to_first_audio_s=heard[0] if heard else None,
        )
        tell_warnings(self._context, warning_headers(*results))
        await self._write(finished=finished)

    async def settle(self) -> None:
        """Wait for a message that a cancel found half written; gRPC hangs if anything comes beside it."""
        if self._writing is not None:
            await asyncio.wait({self._writing}, timeout=self._host.limits.reader_timeout_s)

    @property
    def _sent_s(self) -> float:
        return self._delivery.sent_samples / SAMPLE_RATE_HZ / self._wanted.speed

    async def _write_audio(self, frame: SessionAudio, encoder: AsyncEncoder) -> None:
        encode = encoder.end_turn if frame.is_turn_end else encoder.encode
        content = await encode(frame.samples)
        if not (content or frame.characters or frame.is_turn_end):
            return
        if frame.characters:
            self._written_characters = frame.characters[-1].position + 1
        characters = [self._timing(character) for character in frame.characters]
        audio = speech_pb2.SpeechAudio(
            content=content, end_s=self._sent_s, characters=characters, is_turn_end=frame.is_turn_end
        )
        await self._write(audio=audio)

    def _timing(self, time: CharacterTime) -> speech_pb2.CharacterTiming:
        return speech_pb2.CharacterTiming(
            character=time.character,
            position=time.position,
            start_s=time.start_s / self._wanted.speed,
            end_s=time.end_s / self._wanted.speed,
        )

    async def _write(self, **event: Message) -> None:
        """Write a message whole, even if the caller of this is cancelled: gRPC can't take back half a message."""
        self._writing = asyncio.ensure_future(self._context.write(self._message_type(**event)))
        self._writing.add_done_callback(lambda writing: writing.cancelled() or writing.exception())
        try:
            await sent(asyncio.shield(self._writing), self._host.limits.reader_timeout_s)
        except StalledReaderError:
            self._writing = None
            raise


async def _first_config(
    requests: AsyncIterator[tts_service_pb2.StreamingSynthesizeRequest],
) -> speech_pb2.SpeechConfig:
    async for request in requests:
        kind = request.WhichOneof("request")
        if kind == "config":
            return request.config
        raise InvalidRequestError(f"got {kind or 'an empty message'} first, expected the config", param="config")
    raise InvalidRequestError("the call ended without a message, expected the config first", param="config")


class _TextReader:
    """Hands the messages of a streaming call on to its session."""

    def __init__(self, session: SpeechSession) -> None:
        self._session = session
        self._flushed_characters = 0

    async def read(self, requests: AsyncIterator[tts_service_pb2.StreamingSynthesizeRequest]) -> bool:
        """Read until the end of the requests; return whether they ended with a cancel."""
        async for request in requests:
            if request.WhichOneof("request") == "cancel":
                return True
            self._take(request)
        self._session.end()
        return False

    def _take(self, request: tts_service_pb2.StreamingSynthesizeRequest) -> None:
        match request.WhichOneof("request"):
            case "text":
                self._session.write(request.text)
            case "flush":
                self._flush()
            case "end_of_text":
                self._session.end()
            case "config":
                raise InvalidRequestError("a second config came; open another call for another voice", param="config")
            case None:
                raise InvalidRequestError("an empty message came, expected text, flush, end_of_text or cancel")

    def _flush(self) -> None:
        """End the turn, unless nothing was written since the last flush."""
        if self._session.characters_written > self._flushed_characters:
            self._session.flush()
            self._flushed_characters = self._session.characters_written


async def _until_cancelled(speaking: Coroutine[Any, Any, None], reading: Coroutine[Any, Any, bool]) -> bool:
    """Run both until the speech ends or a cancel is read; return whether it was one. Neither runs on afterwards."""
    speech, cancel = asyncio.create_task(speaking), asyncio.create_task(reading)
    try:
        await asyncio.wait({speech, cancel}, return_when=asyncio.FIRST_COMPLETED)
        if not speech.done() and cancel.result():
            return True
        await speech
        return False
    finally:
        await stop(speech, cancel)


def _finish_reason(results: list[SpeechResult], is_cancelled: bool) -> speech_pb2.FinishReason:
    if is_cancelled:
        return speech_pb2.FINISH_REASON_CANCELLED
    if any(result.is_truncated for result in results):
        return speech_pb2.FINISH_REASON_LENGTH
    return speech_pb2.FINISH_REASON_COMPLETED
