"""The gateway's HTTP door as OpenAI's clients find it, speaking a sound that can be recognised."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gateway.audio import AudioFormat
from gateway.core import FloatArray, Sampling, SpeechTokenDelta, Utterance
from gateway.errors import LLMInterruptedError
from gateway.voices.profile import VoiceAliases
from gateway.voices.registry import NamedVoice
from tests.gateway.audio.signals import best_lag, decoded, snr_db
from tests.gateway.doors.http_door import Door, opened_door
from tests.gateway.fakes import FakeLLM, speech_deltas
from tests.gateway.speaking import SPEECH_TOKENS, SpeakingToken2Wav, spoken_sound
from token2wav_service.contract import SAMPLE_RATE_HZ

TEXT, BREAKING_TEXT, LONG_TEXT = "Hello there.", "Break here.", "Leave early."
"""What the scripts in `clients/` say: a text; one whose speech breaks off; one whose speech never ends."""
FORMATS = ("mp3", "opus", "aac", "flac", "wav", "pcm")
_LOSSLESS = ("flac", "wav", "pcm")
_MIN_SNR_DB = 60
_MIN_CORRELATION = 0.99
_MAX_CODEC_DELAY_SAMPLES = 1300
_COMPARED_SAMPLES = SAMPLE_RATE_HZ


@dataclass
class ScriptedLLM(FakeLLM):
    """Dies in the middle of one text and never ends another."""

    async def generate(self, utterance: Utterance, sampling: Sampling, seed: int) -> AsyncGenerator[SpeechTokenDelta]:
        count = 0
        async for delta in super().generate(utterance, sampling, seed):
            if count == SPEECH_TOKENS * 3 // 4 and utterance.text == BREAKING_TEXT:
                raise LLMInterruptedError("it died; try again")
            if count == SPEECH_TOKENS * 3 // 4 and utterance.text == LONG_TEXT:
                await asyncio.Event().wait()
            count += 1
            yield delta

    def times_asked(self, text: str) -> int:
        """Return how often a text came."""
        return sum(utterance.text == text for utterance in self.utterances)


@asynccontextmanager
async def opened_openai_door(voices: list[NamedVoice]) -> AsyncIterator[tuple[Door, ScriptedLLM]]:
    """Start the door; on leaving, everything that clients began must be over."""
    llm, aliases = ScriptedLLM(speech_deltas(SPEECH_TOKENS)), VoiceAliases()
    async with opened_door(llm, SpeakingToken2Wav(), voices, default_format=AudioFormat.MP3, aliases=aliases) as door:
        await door.until_ready()
        yield door, llm
        await door.until_idle()


def assert_file_is_the_sound(data: bytes, name: str) -> None:
    """Fail unless a file in format `name` holds what was spoken, all of it if the format can."""
    got, rate_hz = decoded(data, AudioFormat(name), SAMPLE_RATE_HZ)
    if name in _LOSSLESS:
        assert snr_db(got, spoken_sound()) > _MIN_SNR_DB
    else:
        assert_is_the_sound(got[:: rate_hz // SAMPLE_RATE_HZ])


def assert_is_the_sound(got: FloatArray, from_sample: int = 0) -> None:
    """Fail unless samples at 24 kHz are what was spoken from `from_sample` on, but for a codec's delay."""
    wanted = spoken_sound()[from_sample : from_sample + _COMPARED_SAMPLES]
    assert best_lag(got, wanted, from_sample + _MAX_CODEC_DELAY_SAMPLES)[1] > _MIN_CORRELATION
