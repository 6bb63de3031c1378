"""The gateway's gRPC door as Riva's clients find it, speaking a sound that can be recognised."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import soxr

from gateway.audio import AudioFormat
from gateway.host import HostLimits
from gateway.voices.registry import NamedVoice
from lab.conformance.openai_door import ScriptedLLM
from tests.gateway.audio.signals import best_lag, decoded
from tests.gateway.doors.grpc_door import Door, opened_grpc
from tests.gateway.fakes import speech_deltas
from tests.gateway.speaking import SPEECH_TOKENS, SpeakingToken2Wav, spoken_sound
from token2wav_service.contract import SAMPLE_RATE_HZ

_MIN_CORRELATION = 0.99
_MAX_DELAY_S = 0.06
_MAX_LENGTH_ERROR_S = 0.06


@asynccontextmanager
async def opened_riva_door(voices: list[NamedVoice]) -> AsyncIterator[tuple[Door, ScriptedLLM]]:
    """Start the door, paced as it is by default; on leaving, everything that clients began must be over."""
    llm = ScriptedLLM(speech_deltas(SPEECH_TOKENS))
    async with opened_grpc(llm, SpeakingToken2Wav(), voices, limits=HostLimits()) as door:
        await door.readiness.warm_up()
        llm.utterances.clear()
        yield door, llm


def assert_is_the_sound(data: bytes, audio_format: AudioFormat, rate_hz: int, times: int = 1) -> None:
    """Fail unless the audio is what was spoken, so many times one after the other; `rate_hz` as it was asked for."""
    got, got_rate_hz = decoded(data, audio_format, rate_hz)
    wanted = soxr.resample(spoken_sound(), SAMPLE_RATE_HZ, got_rate_hz)
    assert abs(len(got) - times * len(wanted)) <= _MAX_LENGTH_ERROR_S * got_rate_hz
    for number in range(times):
        part = got[number * len(wanted) :]
        assert best_lag(part, wanted, round(_MAX_DELAY_S * got_rate_hz))[1] > _MIN_CORRELATION
