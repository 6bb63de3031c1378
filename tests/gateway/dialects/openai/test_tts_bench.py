"""The public harness `tts_bench` finds what it asks for, target by target, with no option but its target and address.

What it sends, and what it makes of the answer, was read in nari-labs/benchmarks at commit a2d65e1 (Apache-2.0):
tts_bench/targets.py, audio.py and cli.py. The code here is our own.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import aiohttp
import numpy as np
import pytest

from gateway.audio import AudioFormat
from gateway.voices.profile import VoiceAliases
from gateway.voices.registry import NamedVoice
from tests.gateway.audio.signals import decoded
from tests.gateway.doors.http_door import Door, opened_door
from tests.gateway.fakes import FakeLLM, speech_deltas
from tests.gateway.speaking import SPEECH_TOKENS, SpeakingToken2Wav, spoken_sound

Voices = list[NamedVoice]

MODEL, VOICE, LANGUAGE = "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice", "Ryan", "English"
"""What its command line asks for where nobody says otherwise."""
PCM_TYPES = {"audio/pcm", "audio/l16", "application/octet-stream", "audio/raw"}
WAV_TYPES = {"audio/wav", "audio/x-wav", "application/octet-stream"}
PROMPT = "The committee approved the revised budget after a short discussion."


@dataclass(frozen=True)
class Target:
    """What one target's requests and answers have of their own."""

    response_format: str
    content_types: set[str]
    fields: dict[str, str] = field(default_factory=dict)
    rate_header: str | None = None


TARGETS = {
    "vllm-omni": Target("pcm", PCM_TYPES, {"stream_format": "audio"}),
    "sglang-omni": Target("pcm", PCM_TYPES, rate_header="x-sample-rate"),
    "mstar": Target("wav", WAV_TYPES),
    "voxserve": Target("pcm", PCM_TYPES),
    "nari": Target("pcm", PCM_TYPES),
}


def request_of(target: Target) -> dict[str, object]:
    return {
        "model": MODEL,
        "input": PROMPT,
        "voice": VOICE,
        "language": LANGUAGE,
        "stream": True,
        "non_streaming_mode": False,
        "response_format": target.response_format,
        **target.fields,
    }


async def speak_to(door: Door, target: Target) -> bytes:
    """Ask as the harness does, after its look at /health; return the body."""
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{door.url}/health") as health:
            assert 200 <= health.status < 300
        async with session.post(f"{door.url}/v1/audio/speech", json=request_of(target)) as answer:
            assert answer.status == 200, await answer.text()
            assert answer.headers["content-type"].split(";")[0].strip().lower() in target.content_types
            if target.rate_header is not None:
                assert int(answer.headers[target.rate_header]) == 24_000
            pieces = answer.content.iter_any()
            body = await anext(pieces)
            assert door.llm.running == 1, "the first audio leaves while the LLM still speaks"
            assert door.llm.gate is not None
            door.llm.gate.set()
            return body + b"".join([piece async for piece in pieces])


@pytest.mark.parametrize("name", TARGETS)
async def test_a_target_gets_its_audio_while_it_is_made(voices: Voices, name: str) -> None:
    target, llm = TARGETS[name], FakeLLM(speech_deltas(SPEECH_TOKENS))
    async with opened_door(llm, SpeakingToken2Wav(), voices, aliases=VoiceAliases()) as door:
        await door.until_ready()
        llm.gate, llm.ungated = asyncio.Event(), 20
        body = await speak_to(door, target)
    samples, rate_hz = decoded(body, AudioFormat(target.response_format), 24_000)
    assert rate_hz == 24_000
    np.testing.assert_allclose(samples, spoken_sound(), atol=1e-4)
    assert llm.utterances[-1].text == PROMPT


async def test_before_it_can_speak_the_harness_is_told_to_wait(voices: Voices) -> None:
    llm = FakeLLM([])
    async with opened_door(llm, SpeakingToken2Wav(), voices, aliases=VoiceAliases()) as door:
        assert (await door.http.get("/health")).status_code == 503
