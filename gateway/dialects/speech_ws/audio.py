"""How the audio of a sentence reaches the clients of `/v1/audio/speech/stream`: three ways."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import numpy as np

from gateway.audio import encode_whole
from gateway.audio.pcm import PCM16_BYTES
from gateway.core import FloatArray
from gateway.delivery import TurnEncoder
from gateway.dialects.common.json_socket import JsonSocket
from gateway.dialects.common.sentence_audio import SentenceEnd
from gateway.dialects.speech_ws.wire import SpeechConfig, word_times
from gateway.host import Host
from token2wav_service.contract import SAMPLE_RATE_HZ

_MS_PER_S = 1000


class WholeWriter:
    """Sends a sentence as one binary message, a file of its own."""

    def __init__(self, socket: JsonSocket, host: Host, config: SpeechConfig) -> None:
        """Begin without audio; the host lends threads."""
        self._socket = socket
        self._host = host
        self._config = config
        self._parts: list[FloatArray] = []
        self.total_bytes = 0
        """Bytes of audio sent so far."""

    async def sound(self, samples: FloatArray) -> None:
        """Take some of its audio."""
        self._parts.append(samples)

    async def end(self, sentence: SentenceEnd) -> None:
        """Send it."""
        samples = np.concatenate([np.zeros(0, np.float32), *self._parts])
        loop = asyncio.get_running_loop()
        output, speed = self._config.output, self._config.speed
        data = await loop.run_in_executor(self._host.executor, encode_whole, samples, output, speed)
        await self._socket.send_bytes(data)
        self.total_bytes += len(data)

    def close(self) -> None:
        """Free it; may be called again."""
        self._parts.clear()


class StreamedWriter:
    """Sends a sentence's PCM while it is made: in binary messages, or in JSON whose last one has the words' times."""

    def __init__(self, socket: JsonSocket, host: Host, config: SpeechConfig, names: dict[str, Any]) -> None:
        """Open the encoder; `names` are the fields that say in JSON which sentence a message is of.

        Raises:
            UnsupportedOptionError: the format or the speed can't be had here.
        """
        self._socket = socket
        self._encoder = TurnEncoder(config.output, host.executor, config.speed)
        self._config = config
        self._names = names
        self._chunks = 0
        self.total_bytes = 0
        """Bytes of audio sent so far."""

    async def sound(self, samples: FloatArray) -> None:
        """Take some of its audio."""
        await self._send(await self._encoder.encode(samples))

    async def end(self, sentence: SentenceEnd) -> None:
        """Send the rest of it."""
        rest, config = await self._encoder.finish(), self._config
        times = word_times(sentence.characters, sentence.began_s, config.speed) if config.has_word_times else None
        await self._send(rest, times)

    def close(self) -> None:
        """Free the codec; may be called again."""
        self._encoder.close()

    async def _send(self, data: bytes, timestamps: list[dict[str, Any]] | None = None) -> None:
        start_ms, self.total_bytes = self._heard_ms, self.total_bytes + len(data)
        if data and not self._config.has_word_times:
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
            await self._socket.send({"type": "audio.chunk", **self._names, **audio})

    @property
    def _heard_ms(self) -> int:
        return round(self.total_bytes / PCM16_BYTES / SAMPLE_RATE_HZ * _MS_PER_S)
