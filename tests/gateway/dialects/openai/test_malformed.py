"""Bodies that nobody should send, while a neighbour is spoken to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.core import Sampling, SpeechTokenDelta, Utterance
from gateway.voices.registry import NamedVoice
from tests.gateway.doors.http_door import Door, opened_door
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, speech_deltas
from tests.workers import is_whole

NEIGHBOUR = "I am the neighbour."
TOKENS = 60

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
FIELDS = ("model", "input", "voice", "response_format", "speed", "stream_format", "seed", "priority", "language")
GOOD = {"model": "m", "input": "hello", "voice": "default", "response_format": "pcm"}
spoiled = st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=10), json_values, max_size=4)
bodies = st.one_of(
    st.binary(max_size=200),
    json_values.map(lambda value: json.dumps(value).encode()),
    spoiled.map(lambda fields: json.dumps(fields).encode()),
    spoiled.map(lambda fields: json.dumps({**GOOD, **fields}).encode()),
    st.integers(1, 40).map(lambda length: json.dumps(GOOD).encode()[:-length]),
)


@dataclass
class PatientLLM(FakeLLM):
    """Holds the neighbour's speech back in its middle."""

    release: asyncio.Event = field(default_factory=asyncio.Event)

    async def generate(self, utterance: Utterance, sampling: Sampling, seed: int) -> AsyncGenerator[SpeechTokenDelta]:
        count = 0
        async for delta in super().generate(utterance, sampling, seed):
            if utterance.text == NEIGHBOUR and count == TOKENS // 2:
                await self.release.wait()
            count += 1
            yield delta


@pytest.mark.slow
def test_malformed_bodies_leave_process_and_neighbour_well(voices: list[NamedVoice]) -> None:
    loop, stack = asyncio.new_event_loop(), AsyncExitStack()
    try:
        llm = PatientLLM(speech_deltas(TOKENS))
        door = loop.run_until_complete(stack.enter_async_context(opened_door(llm, FakeToken2Wav(), voices)))
        neighbour = loop.create_task(_listen(door))
        loop.run_until_complete(_until_spoken_to(llm))
        _send_malformed(loop, door)
        assert not neighbour.done()
        llm.release.set()
        samples = loop.run_until_complete(neighbour)
        loop.run_until_complete(door.until_idle())
    finally:
        loop.run_until_complete(stack.aclose())
        loop.close()
    assert samples == [16383] * TOKENS * 960


def _send_malformed(loop: asyncio.AbstractEventLoop, door: Door) -> None:
    @settings(
        max_examples=1000 if is_whole() else 300,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(bodies)
    def send(raw: bytes) -> None:
        response = loop.run_until_complete(door.http.post("/v1/audio/speech", content=raw))
        if response.status_code != httpx.codes.OK:
            assert response.status_code in (400, 404), response.text
            assert set(response.json()["error"]) == {"message", "type", "param", "code"}

    send()


async def _until_spoken_to(llm: PatientLLM) -> None:
    while not any(utterance.text == NEIGHBOUR for utterance in llm.utterances):
        await asyncio.sleep(0.01)


async def _listen(door: Door) -> list[int]:
    body = {**GOOD, "input": NEIGHBOUR}
    async with httpx.AsyncClient(base_url=door.url, timeout=600, trust_env=False) as http:
        response = await http.post("/v1/audio/speech", json=body)
    return np.frombuffer(response.content, "<i2").tolist()
