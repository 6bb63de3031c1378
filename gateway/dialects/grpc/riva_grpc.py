"""The gRPC dialect of NVIDIA Riva's clients, `nvidia.riva.tts.RivaSpeechSynthesis`.

`SynthesizeOnline` speaks one request after the other and goes on from the prosody of the one before. Its output is
paced, as some of these clients are interrupted without a sign. Errors are left to the server's interceptor.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from riva.proto import riva_tts_pb2

from gateway.audio import AsyncEncoder, AudioEncoder
from gateway.delivery import Delivery, Pacer, timed
from gateway.dialects.answers import ignored_headers, sent, tell_warnings, warning_headers
from gateway.dialects.grpc.riva_request import MODEL_NAME, RivaSpeech, read_request
from gateway.errors import InvalidTextError, TextTooLongError
from gateway.host import Host
from gateway.speech.request import SpeechRequest, SpeechResult
from gateway.speech.session import SessionAudio
from gateway.speech.text_clock import WordGatherer, WordTime

SERVICE_NAME = "nvidia.riva.tts.RivaSpeechSynthesis"
_LANGUAGE = "mul"
"""ISO 639 for several languages: a voice speaks all that the model speaks."""
_SEPARATORS = ",:"
"""Characters that separate subvoices in their list."""
_MS_PER_S = 1000

Request = riva_tts_pb2.SynthesizeSpeechRequest
Response = riva_tts_pb2.SynthesizeSpeechResponse


class RivaServicer:
    """The service's methods, as `add_RivaSpeechSynthesisServicer_to_server` takes them."""

    max_answer_bytes = 64 * 1024 * 1024
    """Most bytes of one whole answer, 23 minutes at 24 kHz; clients refuse more than 4 MiB by default."""

    def __init__(self, host: Host) -> None:
        """Keep what to speak with."""
        self._host = host

    async def Synthesize(self, request: Request, context: Any) -> Response:
        """Speak a text and return all of it.

        Raises:
            GatewayError: it can't be spoken, or its audio is too large for one message.
        """
        wanted = self._read(request)
        asked = wanted.speech.within(context.time_remaining())
        await _tell_ignored(self._host, wanted, context)
        result, answer = SpeechResult(), _Answer(request, wanted)
        audio, words = bytearray(), list[WordTime]()
        async with AsyncEncoder(AudioEncoder(wanted.output), self._host.executor) as encoder:
            async with aclosing(timed(self._host.pipeline.synthesize(asked, result), result)) as speech:
                async for piece in speech:
                    audio += await encoder.encode(piece.samples)
                    words += answer.words_of(piece)
                    self._check_size(len(audio))
            audio += await encoder.finish()
        tell_warnings(context, warning_headers(result))
        return answer.last(bytes(audio), words, result)

    async def SynthesizeOnline(self, requests: AsyncIterator[Request], context: Any) -> None:
        """Speak one text after the other; a text that holds nothing to say is silence.

        Raises:
            GatewayError: a text can't be spoken; the audio written before is good.
        """
        call = _OnlineCall(self._host, context)
        try:
            async for request in requests:
                await call.speak(request, self._read(request))
            await call.end()
        finally:
            call.close()

    async def GetRivaSynthesisConfig(
        self, request: riva_tts_pb2.RivaSynthesisConfigRequest, context: Any
    ) -> riva_tts_pb2.RivaSynthesisConfigResponse:
        """List the voices that are there now."""
        answer = riva_tts_pb2.RivaSynthesisConfigResponse()
        if request.model_name in ("", MODEL_NAME):
            voices = [voice for voice in self._host.voices.listed if not set(voice.name) & set(_SEPARATORS)]
            subvoices = ",".join(f"{voice.name}:{number}" for number, voice in enumerate(voices))
            parameters = {"language_code": _LANGUAGE, "voice_name": MODEL_NAME, "subvoices": subvoices}
            parameters["subvoice_profiles"] = json.dumps({voice.name: voice.profile.facts for voice in voices})
            answer.model_config.add(model_name=MODEL_NAME, parameters=parameters)
        return answer

    def _read(self, request: Request) -> RivaSpeech:
        takes_phonemes = self._host.pipeline.front_end.takes_phonemes
        return read_request(request, lambda name: name in self._host.voices.names, takes_phonemes=takes_phonemes)

    def _check_size(self, answer_bytes: int) -> None:
        if answer_bytes > self.max_answer_bytes:
            got = f"the audio passes {self.max_answer_bytes} bytes, the limit of one message"
            raise TextTooLongError(f"{got}; use SynthesizeOnline, or send less text", param="text")


class _OnlineCall:
    """One call of SynthesizeOnline: its listener and its encoder outlive the single texts."""

    def __init__(self, host: Host, context: Any) -> None:
        self._host = host
        self._context = context
        self._pacer = Pacer(host.clock, host.limits.run_ahead_s)
        self._delivery = Delivery(self._pacer)
        self._encoder: AsyncEncoder | None = None
        self._before: tuple[SpeechRequest, SpeechResult] | None = None
        self._warnings: dict[str, str] = {}

    async def speak(self, request: Request, wanted: RivaSpeech) -> None:
        """Speak one text to its end."""
        if self._before is None:
            await _tell_ignored(self._host, wanted, self._context)
        encoder = await self._encoder_for(wanted)
        asked = wanted.speech.within(self._context.time_remaining())
        result, answer = self._continued(wanted.speech), _Answer(request, wanted)
        speech = timed(self._host.pipeline.synthesize(asked, result), result)
        async with aclosing(self._delivery.frames(_or_silence(speech, wanted.speech, result))) as frames:
            async for frame in frames:
                words = answer.words_of(frame)
                if frame.is_turn_end:
                    response = answer.last(await encoder.end_turn(frame.samples), words, result)
                else:
                    response = answer.next(await encoder.encode(frame.samples), words)
                if response.audio or response.meta.words:
                    await self._write(response)
        self._before = (wanted.speech, result)
        self._warnings |= warning_headers(result)
        tell_warnings(self._context, self._warnings)

    async def end(self) -> None:
        """Send the rest, and end when the listener will soon have played it all.

        Clients that send a call for each sentence start the next one when this one ends. Were it at once, short
        sentences would run ahead without bound.
        """
        await self._finish_encoder()
        while (wait_s := self._pacer.ahead_s - self._host.limits.run_ahead_s / 2) > 0:
            await asyncio.sleep(wait_s)

    def close(self) -> None:
        """Free the encoder."""
        if self._encoder is not None:
            self._encoder.close()

    async def _encoder_for(self, wanted: RivaSpeech) -> AsyncEncoder:
        if self._encoder is None or self._encoder.output != wanted.output:
            await self._finish_encoder()
            self._encoder = AsyncEncoder(AudioEncoder(wanted.output), self._host.executor)
        return self._encoder

    async def _finish_encoder(self) -> None:
        if self._encoder is not None and (rest := await self._encoder.finish()):
            await self._write(Response(audio=rest))

    async def _write(self, response: Response) -> None:
        await sent(self._context.write(response), self._host.limits.reader_timeout_s)

    def _continued(self, speech: SpeechRequest) -> SpeechResult:
        """Return a result that goes on from the text before, if that had the same voice."""
        if self._before is None or self._before[0].voice != speech.voice:
            return SpeechResult()
        return SpeechResult(carry=self._before[1].carry)


async def _tell_ignored(host: Host, wanted: RivaSpeech, context: Any) -> None:
    """Name what of a request changes nothing, in the metadata before its first answer."""
    if ignored := host.pipeline.front_end.ignored(wanted.speech.text_options):
        await context.send_initial_metadata(tuple(ignored_headers(ignored).items()))


class _Answer:
    """The messages of one text."""

    def __init__(self, request: Request, wanted: RivaSpeech) -> None:
        self._request = request
        self._gatherer = WordGatherer() if wanted.has_word_times else None

    def words_of(self, audio: SessionAudio) -> list[WordTime]:
        """Return the words that ended with this audio, if they were asked for."""
        if self._gatherer is None:
            return []
        return self._gatherer.push(audio.characters, is_end=audio.is_turn_end)

    def next(self, audio: bytes, words: list[WordTime]) -> Response:
        """Make a message."""
        response = Response(audio=audio)
        if self._request.HasField("id"):
            response.id.CopyFrom(self._request.id)
        for word in words:
            start_ms, end_ms = round(word.start_s * _MS_PER_S), round(word.end_s * _MS_PER_S)
            response.meta.words.add(word=word.word, start_time=start_ms, end_time=end_ms)
        return response

    def last(self, audio: bytes, words: list[WordTime], result: SpeechResult) -> Response:
        """Make the last message, which tells what was spoken."""
        response = self.next(audio, words)
        response.meta.text = self._request.text
        response.meta.processed_text = result.spoken_text
        return response


async def _or_silence(
    speech: AsyncGenerator[SessionAudio], request: SpeechRequest, result: SpeechResult
) -> AsyncGenerator[SessionAudio]:
    """Say nothing where there is nothing to say: a sentence of an LLM may be an emoji or dots."""
    if not request.text.strip():
        return
    try:
        async with aclosing(speech):
            async for audio in speech:
                yield audio
    except InvalidTextError:
        if result.spans:  # there was something to say, which the LLM can't take
            raise
