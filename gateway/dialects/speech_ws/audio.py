"""How the audio of a sentence reaches the clients of `/v1/audio/speech/stream`: three ways."""

from __future__ import annotations

import asyncio
import base64
from typing import Any, Protocol

import numpy as np

from gateway.audio import encode_whole
from gateway.audio.pcm import PCM16_BYTES
from gateway.core import FloatArray
from gateway.delivery.turn_encoder import TurnEncoder
from gateway.dialects.common.json_socket import JsonSocket
from gateway.dialects.common.sentence_audio import SentenceEnd
from gateway.dialects.speech_ws.wire import SpeechConfig, word_times
from gateway.host import Host
from token2wav_service.contract import SAMPLE_RATE_HZ

_MS_PER_S = 1000


class SentenceWriter(Protocol):
    """Sends the audio of one sentence."""

    total_bytes: int
    """Bytes of audio sent so far."""

    async def sound(self, samples: FloatArray) -> None:
        """Take some of its audio."""
        ...

    async def end(self, sentence: SentenceEnd) -> None:
        """Send the rest of it."""
        ...

    def close(self) -> None:
        """Free the codec; may be called again."""
        ...


def sentence_writer(socket: JsonSocket, host: Host, config: SpeechConfig, names: dict[str, Any]) -> SentenceWriter:
    """Open what sends a sentence the way that the config asks for.

    Args:
        socket: where to.
        host: lends threads.
        config: the way.
        names: fields that say which sentence a message is of.

    Raises:
        UnsupportedOptionError: the format or the speed can't be had here.
    """
    if not config.is_streamed:
        return WholeWriter(socket, host, config)
    encoder = TurnEncoder(config.output, host.executor, config.speed)
    if config.has_word_times:
        return TimedWriter(socket, encoder, config, names)
    return StreamedWriter(socket, encoder)


class WholeWriter:
    """One binary message, a file of its own."""

    def __init__(self, socket: JsonSocket, host: Host, config: SpeechConfig) -> None:
        """Begin without audio."""
        self._socket = socket
        self._host = host
        self._config = config
        self._parts: list[FloatArray] = []
        self.total_bytes = 0

    async def sound(self, samples: FloatArray) -> None:
        """See `SentenceWriter.sound`."""
        self._parts.append(samples)

    async def end(self, sentence: SentenceEnd) -> None:
        """See `SentenceWriter.end`."""
        samples = np.concatenate([np.zeros(0, np.float32), *self._parts])
        loop = asyncio.get_running_loop()
        output, speed = self._config.output, self._config.speed
        data = await loop.run_in_executor(self._host.executor, encode_whole, samples, output, speed)
        await self._socket.send_bytes(data)
        self.total_bytes += len(data)

    def close(self) -> None:
        """See `SentenceWriter.close`."""
        self._parts.clear()


class StreamedWriter:
    """Binary messages of PCM."""

    def __init__(self, socket: JsonSocket, encoder: TurnEncoder) -> None:
        """Take over the encoder."""
        self._socket = socket
        self._encoder = encoder
        self.total_bytes = 0

    async def sound(self, samples: FloatArray) -> None:
        """See `SentenceWriter.sound`."""
        await self._send(await self._encoder.encode(samples))

    async def end(self, sentence: SentenceEnd) -> None:
        """See `SentenceWriter.end`."""
        await self._send(await self._encoder.finish())

    def close(self) -> None:
        """See `SentenceWriter.close`."""
        self._encoder.close()

    async def _send(self, data: bytes) -> None:
        if data:
            await self._socket.send_bytes(data)
            self.total_bytes += len(data)


class TimedWriter:
    """JSON messages of PCM; the last one has no audio but the times of the words."""

    def __init__(self, socket: JsonSocket, encoder: TurnEncoder, config: SpeechConfig, names: dict[str, Any]) -> None:
        """Take over the encoder."""
        self._socket = socket
        self._encoder = encoder
        self._config = config
        self._names = names
        self._chunks = 0
        self.total_bytes = 0

    async def sound(self, samples: FloatArray) -> None:
        """See `SentenceWriter.sound`."""
        data = await self._encoder.encode(samples)
        if data:
            await self._send(data, None)

    async def end(self, sentence: SentenceEnd) -> None:
        """See `SentenceWriter.end`."""
        rest = await self._encoder.finish()
        await self._send(rest, word_times(sentence.characters, sentence.began_s, self._config.speed))

    def close(self) -> None:
        """See `SentenceWriter.close`."""
        self._encoder.close()

    async def _send(self, data: bytes, timestamps: list[dict[str, Any]] | None) -> None:
        start_ms, self.total_bytes = self._heard_ms, self.total_bytes + len(data)
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
        await self._socket.send({"type": "audio.chunk", **self._names, **audio})

    @property
    def _heard_ms(self) -> int:
        return round(self.total_bytes / PCM16_BYTES / SAMPLE_RATE_HZ * _MS_PER_S)
