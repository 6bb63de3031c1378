"""One utterance of `/v1/audio/speech/stream`: text up to `input.done`, spoken sentence by sentence.

    audio.start ─► audio ─► audio.done ─► audio.start ─► ... ─► session.done

`session.done` comes whatever happened. An utterance whose speech is interrupted says how far it had come.
"""

from __future__ import annotations

import asyncio
import base64
import math
from contextlib import aclosing
from typing import Any

import numpy as np

from gateway.audio import AsyncEncoder, AudioEncoder, encode_whole
from gateway.audio.codecs import PCM16_BYTES
from gateway.core import FloatArray
from gateway.delivery import Delivery, Pacer
from gateway.dialects.json_socket import Interruptible, JsonSocket
from gateway.dialects.speech_ws.sentence_audio import Sentence, SentenceCutter
from gateway.dialects.speech_ws.wire import SPLITS, ConfigFields, Granularity, error_message
from gateway.errors import GatewayError, TextTooLongError
from gateway.host import Host
from gateway.speech.request import SpeechRequest
from gateway.speech.session import SpeechSession
from gateway.speech.speech_job import warning_field
from gateway.speech.text_clock import WordGatherer
from token2wav_service.contract import SAMPLE_RATE_HZ

MAX_WHOLE_CHARACTERS = 4096
"""Most characters of an utterance spoken as one sentence: about five minutes, kept until its end."""


class SpeakingUtterance:
    """One text; made and written by its socket, spoken when its turn comes."""

    def __init__(self, socket: JsonSocket, host: Host, config: ConfigFields, session_id: str, index: int) -> None:
        """Begin without text."""
        self._socket, self._host, self._config = socket, host, config
        self._session_id, self._index = session_id, index
        self._name = name = f"{session_id}-{index}"
        request = SpeechRequest(
            "",
            config.speaker,
            config.seed,
            text_options=config.text_options(),
            request_id=name,
            is_interleaved=config.text_mode == "interleaved",
            wants_times=config.word_timestamps,
        )
        self._session = SpeechSession(host.pipeline, request, split=SPLITS[config.granularity])
        self._delivery = Delivery(
            Pacer(host.clock, host.limits.run_ahead_s if config.stream_audio else math.inf), config.times_as_fast
        )
        self._held = ""
        self._is_cancelled = False
        self.is_ending = False
        """Whether all its text has come."""
        self._speech: Interruptible | None = None
        self._writer: StreamedWriter | WholeWriter | None = None
        self._cutter = SentenceCutter(self._session.results)
        self.last_active_s = host.clock.now()
        """When the utterance last took text or sent audio, in seconds of the clock."""

    def write(self, text: str) -> None:
        """Take text.

        Raises:
            InvalidRequestError: it can't be taken, and nothing of it was.
        """
        self.last_active_s = self._host.clock.now()
        if self._config.granularity is not Granularity.NONE:
            self._session.write(text)
            return
        if len(self._held) + len(text) > MAX_WHOLE_CHARACTERS:
            got = f"{len(self._held)} characters wait and {len(text)} more came, the limit is {MAX_WHOLE_CHARACTERS}"
            raise TextTooLongError(f"{got} with split_granularity none; send input.done, or split", param="text")
        self._held += text

    def end(self) -> None:
        """Take no more text.

        Raises:
            InvalidRequestError: what was held can't be spoken.
        """
        self.is_ending = True
        try:
            if self._config.granularity is Granularity.NONE:
                self._cutter.whole = self._held
                self._session.write(self._held)
        finally:
            self._session.end()

    def interrupt(self) -> None:
        """Stop both services now, or never begin; what is due is still said."""
        self._is_cancelled = True
        if self._speech is not None:
            self._speech.interrupt()

    def abandon(self) -> None:
        """Stop everything, and whoever waits for it to be spoken."""
        if self._speech is not None:
            self._speech.abandon()

    async def speak(self) -> None:
        """Speak it, now that the ones before it are over.

        Raises:
            SocketClosedError: the client left.
        """
        if not self._is_cancelled:
            self._speech = Interruptible(self._speak(), f"speak-{self._name}")
            await self._close_sentence(await self._speech.wait())
        warning = warning_field(*self._session.results)
        await self._send("session.done", total_sentences=self._cutter.count, progress=self._progress, **warning)

    async def _close_sentence(self, error: GatewayError | None) -> None:
        """Say that the sentence under way, if any, will not be completed, and why."""
        writer, self._writer = self._writer, None
        heard = writer is not None and writer.total_bytes > 0
        if error is not None:
            discard = {"partial_audio": True, "action": "discard"} if heard else {}
            await self._socket.send({**error_message(error), **discard})
        if writer is not None:
            await self._send_done(writer, has_failed=error is not None)

    async def _speak(self) -> None:
        frames = self._delivery.frames(self._session.audio())
        try:
            async with aclosing(frames):
                async for frame in frames:
                    for sentence, samples in self._cutter.push(frame):
                        await self._hear(sentence, samples)
                    self.last_active_s = self._host.clock.now()
            for sentence, samples in self._cutter.finish():
                await self._hear(sentence, samples)
        finally:
            if self._writer is not None:
                self._writer.close()

    async def _hear(self, sentence: Sentence, samples: FloatArray | None) -> None:
        writer = self._writer or await self._begin_sentence(sentence)
        if samples is not None:
            await writer.sound(samples)
            return
        await writer.end(sentence)
        self._writer = None
        await self._send_done(writer, has_failed=False)

    async def _begin_sentence(self, sentence: Sentence) -> StreamedWriter | WholeWriter:
        config, output = self._config, self._config.output
        names = {"utterance_index": self._index, "sentence_index": sentence.index}
        kind: type[StreamedWriter | WholeWriter] = StreamedWriter if config.stream_audio else WholeWriter
        self._writer = writer = kind(self._socket, self._host, config, names)
        described = {"format": output.audio_format.value, "sample_rate": output.sample_rate_hz, "channels": 1}
        if config.word_timestamps:
            described["word_timestamps"] = True
        await self._send("audio.start", sentence_index=sentence.index, sentence_text=sentence.text.strip(), **described)
        return writer

    async def _send_done(self, writer: StreamedWriter | WholeWriter, *, has_failed: bool) -> None:
        await self._send("audio.done", **writer.names, total_bytes=writer.total_bytes, error=has_failed)

    async def _send(self, kind: str, **fields: Any) -> None:
        names = {"type": kind, "session_id": self._session_id, "utterance_index": self._index}
        await self._socket.send({**names, **fields})

    @property
    def _progress(self) -> dict[str, Any]:
        return {
            "cancelled": self._is_cancelled,
            "samples_generated": self._delivery.generated_samples,
            "samples_sent": self._delivery.sent_samples,
            "sample_rate": SAMPLE_RATE_HZ,
            "characters_sent": self._delivery.sent_characters,
        }


_MS_PER_S = 1000


class WholeWriter:
    """Sends a sentence as one binary message, a file of its own."""

    def __init__(self, socket: JsonSocket, host: Host, config: ConfigFields, names: dict[str, Any]) -> None:
        """Begin without audio; the host lends threads, `names` say which sentence it is of."""
        self.names = names
        self._socket = socket
        self._host = host
        self._config = config
        self._parts: list[FloatArray] = []
        self.total_bytes = 0
        """Bytes of audio sent so far."""

    async def sound(self, samples: FloatArray) -> None:
        """Take some of its audio."""
        self._parts.append(samples)

    async def end(self, sentence: Sentence) -> None:
        """Send it."""
        samples = np.concatenate([np.zeros(0, np.float32), *self._parts])
        loop = asyncio.get_running_loop()
        output, speed = self._config.output, self._config.times_as_fast
        data = await loop.run_in_executor(self._host.executor, encode_whole, samples, output, speed)
        await self._socket.send_bytes(data)
        self.total_bytes += len(data)

    def close(self) -> None:
        """Free it; may be called again."""
        self._parts.clear()


class StreamedWriter:
    """Sends a sentence's PCM while it is made: in binary messages, or in JSON whose last one has the words' times."""

    def __init__(self, socket: JsonSocket, host: Host, config: ConfigFields, names: dict[str, Any]) -> None:
        """Open the encoder; `names` are the fields that say in JSON which sentence a message is of.

        Raises:
            UnsupportedOptionError: the format or the speed can't be had here.
        """
        self._socket = socket
        self._encoder = AsyncEncoder(AudioEncoder(config.output, config.times_as_fast), host.executor)
        self._config = config
        self.names = names
        self._chunks = 0
        self.total_bytes = 0
        """Bytes of audio sent so far."""

    async def sound(self, samples: FloatArray) -> None:
        """Take some of its audio."""
        await self._send(await self._encoder.encode(samples))

    async def end(self, sentence: Sentence) -> None:
        """Send the rest of it."""
        rest, config = await self._encoder.finish(), self._config
        words = WordGatherer().push(sentence.characters, is_end=True) if config.word_timestamps else []
        times = [word.told(config.times_as_fast, sentence.began_s) for word in words]
        await self._send(rest, times if config.word_timestamps else None)

    def close(self) -> None:
        """Free the codec; may be called again."""
        self._encoder.close()

    async def _send(self, data: bytes, timestamps: list[dict[str, Any]] | None = None) -> None:
        start_ms, self.total_bytes = self._heard_ms, self.total_bytes + len(data)
        if data and not self._config.word_timestamps:
            await self._socket.send_bytes(data)
        elif data or timestamps is not None:
            audio = {
                "chunk_id": self._chunks,
                "chunk_start_ms": start_ms,
                "chunk_end_ms": self._heard_ms,
                "sample_rate": SAMPLE_RATE_HZ,
                "channels": 1,
                "audio_b64": base64.b64encode(data).decode("ascii"),
                "timestamps": timestamps,
            }
            self._chunks += 1
            await self._socket.send({"type": "audio.chunk", **self.names, **audio})

    @property
    def _heard_ms(self) -> int:
        return round(self.total_bytes / PCM16_BYTES / SAMPLE_RATE_HZ * _MS_PER_S)
