"""Whatever bytes come as a message, the process lives and other calls go on; the server runs in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from riva.proto import riva_tts_pb2
from tts_api.tts.v1 import speech_pb2, tts_service_pb2, tts_service_pb2_grpc

from gateway.voices.registry import NamedVoice
from tests.gateway.doors.grpc_door import CONFIG, PATIENCE_S, opened_grpc, say
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, speech_deltas
from tests.workers import is_whole

TTS, RIVA = "/tts_api.tts.v1.TextToSpeechService/", "/nvidia.riva.tts.RivaSpeechSynthesis/"
METHODS = {
    "Synthesize": TTS + "Synthesize",
    "StreamingSynthesize": TTS + "StreamingSynthesize",
    "Riva's Synthesize": RIVA + "Synthesize",
    "SynthesizeOnline": RIVA + "SynthesizeOnline",
}
CALLERS_FAULT = (grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
VALID = [
    tts_service_pb2.SynthesizeRequest(
        text="Hello.", config=speech_pb2.SpeechConfig(seed=1, voice=speech_pb2.Voice(name="anna"))
    ).SerializeToString(),
    CONFIG.SerializeToString(),
    say(text="Hello. ").SerializeToString(),
    riva_tts_pb2.SynthesizeSpeechRequest(
        text="Hello.", sample_rate_hz=22050, zero_shot_data=riva_tts_pb2.ZeroShotData(audio_prompt=b"RIFF")
    ).SerializeToString(),
]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A valid message with some bytes changed, and perhaps its end cut off."""
    message = bytearray(draw(st.sampled_from(VALID)))
    for at in draw(st.lists(st.integers(0, len(message) - 1), min_size=1, max_size=4)) if message else ():
        message[at] = draw(st.integers(0, 255))
    return bytes(message[: draw(st.integers(0, len(message)))])


EXAMPLES = 500 if is_whole() else 150
"""Of each method; each dialect has two."""
MESSAGES = st.binary(max_size=64) | damaged()


@dataclass
class ThreadedDoor:
    """A door that others talk to without an event loop."""

    llm: FakeLLM
    token2wav: FakeToken2Wav
    address: str = ""
    is_open: threading.Event = field(default_factory=threading.Event)
    is_over: threading.Event = field(default_factory=threading.Event)

    async def serve(self, voices: list[NamedVoice]) -> None:
        async with opened_grpc(self.llm, self.token2wav, voices) as door:
            self.address = door.address
            self.is_open.set()
            await asyncio.to_thread(self.is_over.wait)


@contextmanager
def threaded_door(voices: list[NamedVoice]) -> Iterator[ThreadedDoor]:
    door = ThreadedDoor(FakeLLM(speech_deltas(20)), FakeToken2Wav())
    thread = threading.Thread(target=lambda: asyncio.run(door.serve(voices)))
    thread.start()
    try:
        assert door.is_open.wait(PATIENCE_S)
        yield door
    finally:
        door.is_over.set()
        thread.join()


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[grpc.Channel]:
    folder: Path = tmp_path_factory.mktemp("voices")
    for name in ("default", "anna"):
        (folder / f"{name}.wav").write_bytes(b"RIFF" + name.encode())
    voices = [NamedVoice(name, folder / f"{name}.wav", f"I am {name}.") for name in ("anna", "default")]
    with threaded_door(voices) as door, grpc.insecure_channel(door.address) as channel:
        yield channel
        assert door.token2wav.streams, "some messages were valid"


def outcome_of(channel: grpc.Channel, method: str, messages: list[bytes]) -> grpc.StatusCode:
    """Send raw messages, as a stream where the method takes one; return the status."""
    try:
        if method in (METHODS["Synthesize"], METHODS["Riva's Synthesize"]):
            list(channel.unary_stream(method)(messages[0], timeout=PATIENCE_S))
        else:
            list(channel.stream_stream(method)(iter(messages), timeout=PATIENCE_S))
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_malformed_messages_are_the_callers_fault_and_harm_no_other_call(channel: grpc.Channel, method: str) -> None:
    sent = threading.Event()

    def slow_text() -> Iterator[tts_service_pb2.StreamingSynthesizeRequest]:
        yield CONFIG
        yield say(text="The neighbour speaks. And")
        sent.wait(60)
        yield say(text=" ends well.")

    neighbour = tts_service_pb2_grpc.TextToSpeechServiceStub(channel).StreamingSynthesize(slow_text())
    next(neighbour)

    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None)
    @given(st.lists(MESSAGES, min_size=1, max_size=3))
    def send(messages: list[bytes]) -> None:
        assert outcome_of(channel, method, messages) in CALLERS_FAULT

    send()
    sent.set()
    heard = list(neighbour)
    assert heard[-1].finished.reason == speech_pb2.FINISH_REASON_COMPLETED
    assert heard[-1].finished.sent_characters == len("The neighbour speaks. And ends well.")
