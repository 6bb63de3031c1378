"""A caller who stands still holds neither service for longer than it is waited for."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from riva.proto import riva_tts_pb2
from tts_api.tts.v1 import tts_service_pb2

from gateway.host import HostLimits
from gateway.voices.registry import NamedVoice
from tests.gateway.doors.grpc_door import CONFIG, END, Door, failure_of, opened_grpc, say
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, speech_deltas

IMPATIENT = HostLimits(run_ahead_s=math.inf, reader_timeout_s=0.3)


def whole(door: Door) -> Any:
    return door.tts.Synthesize(tts_service_pb2.SynthesizeRequest(text="hello"))


def written(door: Door) -> Any:
    return door.tts.StreamingSynthesize(iter([CONFIG, say(text="hello"), END]))


def online(door: Door) -> Any:
    request = riva_tts_pb2.SynthesizeSpeechRequest(text="hello", encoding=1, sample_rate_hz=24000)
    return door.riva.SynthesizeOnline(iter([request]))


@pytest.mark.slow
@pytest.mark.parametrize("ask", [whole, written, online])
async def test_a_reader_who_stands_still_is_given_up(voices: list[NamedVoice], ask: Callable[[Door], Any]) -> None:
    llm, token2wav = FakeLLM(speech_deltas(25 * 3600, per_delta=50)), FakeToken2Wav()
    async with opened_grpc(llm, token2wav, voices, limits=IMPATIENT) as door:
        call = ask(door)
        await call.read()
        while not token2wav.open_streams:
            await asyncio.sleep(0.01)
        await door.until_idle()
        status, details, metadata = await failure_of(call)
    assert (status, metadata["error-code"]) == (grpc.StatusCode.CANCELLED, "stalled_reader")
    assert "stood still for 0.3 s" in details
