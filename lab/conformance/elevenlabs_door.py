"""The gateway as ElevenLabs' clients find it, speaking a sound that can be recognised; a way in over TLS too."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from gateway.chunking.chunker import TokenChunk
from gateway.core import AudioChunk, FloatArray, Sampling, SpeechTokenDelta, Utterance
from gateway.errors import LLMInterruptedError
from gateway.voices.registry import NamedVoice
from tests.gateway.audio.signals import best_lag, snr_db, speech_like
from tests.gateway.doors.http_door import Door, opened_door
from tests.gateway.fakes import FakeLLM, FakeStream, FakeToken2Wav, speech_deltas
from token2wav_service.contract import SAMPLE_RATE_HZ, SAMPLES_PER_TOKEN

ONE, TWO = "This is the first sentence of it.", "And here comes the second one, longer."
TOKENS = 60
"""What any sentence takes: 2.4 s."""
SOUND = speech_like(4 * TOKENS * SAMPLES_PER_TOKEN)
"""What a turn sounds like; no sample of it is like the one before."""
_FULL_SCALE = 32767
_MIN_SNR_DB = 60
_MAX_SILENCE_SAMPLES = SAMPLE_RATE_HZ // 100
_MIN_CORRELATION = 0.99
_MAX_CODEC_DELAY_SAMPLES = 2400


def sound_of(sentences: int) -> FloatArray:
    """Return the samples of a turn of so many sentences."""
    return SOUND[: sentences * TOKENS * SAMPLES_PER_TOKEN]


def assert_is_the_sound(pcm: bytes, sentences: int = 1) -> None:
    """Fail unless 16-bit PCM at 24 kHz is a turn's sound and nothing else but the silence that LiveKit puts behind."""
    got, wanted = np.frombuffer(pcm, "<i2").astype(np.float32) / _FULL_SCALE, sound_of(sentences)
    assert len(wanted) <= len(got) <= len(wanted) + _MAX_SILENCE_SAMPLES
    assert snr_db(got[: len(wanted)], wanted) > _MIN_SNR_DB
    assert not got[len(wanted) :].any()


def assert_is_like_the_sound(pcm: bytes, rate_hz: int, sentences: int = 1) -> None:
    """Fail unless 16-bit PCM that a codec has been through is the sound in its second second, and as long as it.

    LiveKit's decoder drops the first frame of Opus, whoever encoded it, so that samples may come early too.
    """
    got = np.frombuffer(pcm, "<i2").astype(np.float32) / _FULL_SCALE
    wanted = sound_of(sentences)
    assert len(got) / rate_hz == pytest.approx(len(wanted) / SAMPLE_RATE_HZ, abs=0.15)
    resampled = np.interp(np.arange(len(wanted)) / SAMPLE_RATE_HZ, np.arange(len(got)) / rate_hz, got)
    around = resampled[SAMPLE_RATE_HZ - _MAX_CODEC_DELAY_SAMPLES :].astype(np.float32)
    second = wanted[SAMPLE_RATE_HZ : 2 * SAMPLE_RATE_HZ]
    assert best_lag(around, second, 2 * _MAX_CODEC_DELAY_SAMPLES)[1] > _MIN_CORRELATION


@dataclass
class ScriptedLLM(FakeLLM):
    """Dies in the middle of what says `Break`, never ends what says `Leave`, and notes when each begins and is cut."""

    events: list[str] = field(default_factory=list)

    async def generate(self, utterance: Utterance, sampling: Sampling, seed: int) -> AsyncGenerator[SpeechTokenDelta]:
        word, count = utterance.text.split()[0], 0
        self.events.append(f"begin {word}")
        try:
            async for delta in super().generate(utterance, sampling, seed):
                if count == TOKENS * 3 // 4 and word == "Break":
                    raise LLMInterruptedError("it died; try again")
                if count == TOKENS * 3 // 4 and word == "Leave":
                    await asyncio.Event().wait()
                count += 1
                yield delta
        except (asyncio.CancelledError, GeneratorExit):
            self.events.append(f"cut {word}")
            raise


class SoundingStream(FakeStream):
    """Gives each chunk its part of the sound."""

    _sent_samples = 0

    def push(self, chunk: TokenChunk) -> asyncio.Future[AudioChunk]:
        silent = super().push(chunk).result()
        end = self._sent_samples + len(silent.samples)
        answer: asyncio.Future[AudioChunk] = asyncio.get_running_loop().create_future()
        answer.set_result(AudioChunk(chunk.index, SOUND[self._sent_samples : end], chunk.is_last))
        self._sent_samples = end
        return answer


@dataclass
class SoundingToken2Wav(FakeToken2Wav):
    """A fake whose audio is the sound."""

    @asynccontextmanager
    async def open_stream(self, voice_id: str, seed: int, priority: int = 10) -> AsyncIterator[FakeStream]:
        async with super().open_stream(voice_id, seed, priority) as stream:
            yield SoundingStream(self, stream.stream_id)


@asynccontextmanager
async def opened_elevenlabs_door(voices: list[NamedVoice]) -> AsyncIterator[tuple[Door, ScriptedLLM]]:
    """Start the door; on leaving, everything that clients began must be over."""
    llm = ScriptedLLM(speech_deltas(TOKENS))
    async with opened_door(llm, SoundingToken2Wav(), voices) as door:
        await door.until_ready()
        llm.events.clear()
        yield door, llm
        await door.until_idle()


@asynccontextmanager
async def opened_tls(door: Door, directory: Path) -> AsyncIterator[tuple[str, Path]]:
    """Let clients in over TLS; yield the URL and the certificate to trust."""
    certificate, key = _certificate(directory)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    inside = int(door.url.rpartition(":")[2])

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", inside)
        await asyncio.gather(_pump(reader, inner_writer), _pump(inner_reader, writer))

    server = await asyncio.start_server(pass_on, "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", certificate


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError, ssl.SSLError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


def _certificate(directory: Path) -> tuple[Path, Path]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed, which makes the certificate")
    certificate, key = directory / "cert.pem", directory / "key.pem"
    name = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "1"]
    command = [
        openssl,
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
        *name,
    ]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key
