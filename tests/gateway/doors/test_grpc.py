"""The gRPC server around the dialects: health, reflection, limits, callers who stand still, its port and its end."""

from __future__ import annotations

import asyncio
import gc
import math
import random
import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from riva.proto import riva_tts_pb2
from tts_api.tts.v1 import speech_pb2, tts_service_pb2

from gateway.access.access import Access
from gateway.access.caller import CallerLimits
from gateway.access.connections import Connections, WireLimits
from gateway.doors.grpc import GrpcSettings
from gateway.errors import ConfigError
from gateway.host import HostLimits
from gateway.speech.request import SpeechRequest, check_request
from gateway.voices.registry import NamedVoice
from tests.gateway.doors.grpc_door import (
    CANCEL,
    CONFIG,
    END,
    FLUSH,
    PATIENCE_S,
    Door,
    failure_of,
    listen,
    opened_grpc,
    say,
)
from tests.gateway.doors.raw_http2 import SYNTHESIZE, raw_http2
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, ManualClock, speech_deltas
from tests.gateway.routing.fakes import until

HELLO = tts_service_pb2.SynthesizeRequest(text="Hello.")
SERVICES = ("tts_api.tts.v1.TextToSpeechService", "nvidia.riva.tts.RivaSpeechSynthesis")


async def health_of(door: Door, service: str) -> int:
    stub: Any = health_pb2_grpc.HealthStub(door.channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    return int(answer.status)


@pytest.mark.parametrize("service", ["", *SERVICES])
async def test_health_is_that_of_the_gateway(voices: list[NamedVoice], service: str) -> None:
    settings = GrpcSettings(port=0, health_interval_s=0.01)
    async with opened_grpc(FakeLLM(speech_deltas(5)), FakeToken2Wav(), voices, settings) as door:
        assert await health_of(door, service) == health_pb2.HealthCheckResponse.NOT_SERVING, "not warmed up yet"
        await door.readiness.warm_up()
        for status in (health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING):
            await asyncio.wait_for(_until_health(door, service, status), PATIENCE_S)
            door.llm.ready = False


async def _until_health(door: Door, service: str, status: int) -> None:
    while await health_of(door, service) != status:
        await asyncio.sleep(0.01)


async def test_reflection_shows_the_services_and_their_messages(voices: list[NamedVoice]) -> None:
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="tts_api.tts.v1.SpeechConfig"),
    ]
    async with opened_grpc(FakeLLM([]), FakeToken2Wav(), voices) as door:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(door.channel)
        listed, described = (await listen(stub.ServerReflectionInfo(iter(requests)))).messages
    names = {service.name for service in listed.list_services_response.service}
    assert names > set(SERVICES)
    assert b"SpeechConfig" in described.file_descriptor_response.file_descriptor_proto[0]


@pytest.mark.parametrize(
    "method",
    [
        *("grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "grpc.health.v1.Health/Check"),
        *(f"{SERVICES[0]}/Synthesize", f"{SERVICES[0]}/StreamingSynthesize"),
        *(f"{SERVICES[1]}/Synthesize", f"{SERVICES[1]}/SynthesizeOnline"),
    ],
)
async def test_bytes_that_are_no_message_are_the_callers_fault_everywhere(
    voices: list[NamedVoice], method: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened_grpc(FakeLLM([]), FakeToken2Wav(), voices) as door:
        for data in (b"\xff\xff\xff", b"\x0a\x02\xff\xfe"):
            if method.endswith(("Check", "/Synthesize")):
                call = door.channel.unary_stream(f"/{method}")(data)
            else:
                call = door.channel.stream_stream(f"/{method}")(iter([data]))
            assert (await failure_of(call))[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("megabytes", [5, 7])
async def test_messages_up_to_the_limit_are_taken(voices: list[NamedVoice], megabytes: int) -> None:
    limits = WireLimits(max_grpc_message_bytes=6 * 2**20)
    access = Access(None, CallerLimits(), ManualClock(), connections=Connections(limits))
    prompt = speech_pb2.VoicePrompt(audio=b"RIFF" + bytes(megabytes * 2**20))
    config = speech_pb2.SpeechConfig(voice=speech_pb2.Voice(prompt=prompt))
    request = tts_service_pb2.SynthesizeRequest(text="Hello.", config=config)
    async with opened_grpc(FakeLLM(speech_deltas(5)), FakeToken2Wav(), voices, access=access) as door:
        async with grpc.aio.insecure_channel(door.address, [("grpc.max_send_message_length", -1)]) as channel:
            call = channel.unary_stream(f"/{SERVICES[0]}/Synthesize", type(request).SerializeToString)(request)
            if megabytes == 5:
                assert (await listen(call)).messages
            else:
                assert (await failure_of(call))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_refused_message_is_freed_without_the_collector_of_cycles(voices: list[NamedVoice]) -> None:
    size, kinds = 2**20, {"_ServicerContext", "_Caller"}

    def kept() -> set[str]:
        return kinds & {type(each).__name__ for each in gc.get_objects()}

    async with opened_grpc(FakeLLM([]), FakeToken2Wav(), voices) as door:
        gc.collect()
        gc.disable()
        try:
            async with raw_http2(int(door.address.rpartition(":")[2])) as client:
                stream = client.call(SYNTHESIZE)
                await until(lambda: kept() == kinds, "the call")
                await client.send(stream, size, size + 5)  # nothing but zeros are too many values
                await until(lambda: stream in client.ended, "the refusal")
            await until(lambda: not kept(), "the end of what the call held")
        finally:
            gc.enable()


@pytest.mark.slow
async def test_calls_that_come_while_the_event_loop_is_busy_are_all_answered(voices: list[NamedVoice]) -> None:
    async with opened_grpc(FakeLLM([]), FakeToken2Wav(), voices) as door:
        list_voices = door.channel.unary_unary(f"/{SERVICES[0]}/ListVoices")
        calls = [list_voices(b"") for _ in range(2500)]
        await asyncio.sleep(0)  # all are sent
        time.sleep(0.3)  # the loop stands still, so gRPC keeps what comes
        answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [answer for answer in answers if isinstance(answer, BaseException)] == []


@pytest.mark.parametrize("timeout_s", [None, 30.0])
async def test_admission_is_told_how_long_the_client_waits(
    voices: list[NamedVoice], monkeypatch: pytest.MonkeyPatch, timeout_s: float | None
) -> None:
    asked: list[SpeechRequest] = []
    check = check_request
    monkeypatch.setattr(
        "gateway.speech.speaker.check_request", lambda request, most: asked.append(request) or check(request, most)
    )
    async with opened_grpc(FakeLLM(speech_deltas(5)), FakeToken2Wav(), voices) as door:
        async with grpc.aio.insecure_channel(door.address) as channel:
            send = tts_service_pb2.SynthesizeRequest.SerializeToString
            await listen(channel.unary_stream(f"/{SERVICES[0]}/Synthesize", send)(HELLO, timeout=timeout_s))
    (request,) = asked
    if timeout_s is None:
        assert request.patience_s is None
    else:
        # The header grpc-timeout has three digits here: gRPC rounds a deadline of ten seconds and more up to a tenth.
        assert request.patience_s is not None and 0 < request.patience_s <= timeout_s + 0.1


async def test_a_port_in_use_is_told(voices: list[NamedVoice]) -> None:
    async with opened_grpc(FakeLLM([]), FakeToken2Wav(), voices) as door:
        settings = GrpcSettings(port=int(door.address.rpartition(":")[2]))
        with pytest.raises(ConfigError, match="--grpc-port"):
            async with opened_grpc(FakeLLM([]), FakeToken2Wav(), voices, settings):
                pass


async def test_calls_under_way_end_well_when_the_door_closes(voices: list[NamedVoice]) -> None:
    gate = asyncio.Event()
    llm, token2wav = FakeLLM(speech_deltas(60), gate=gate, ungated=30), FakeToken2Wav()
    door_context = opened_grpc(llm, token2wav, voices)
    door = await door_context.__aenter__()
    async with grpc.aio.insecure_channel(door.address) as channel:
        call = channel.unary_stream(
            f"/{SERVICES[0]}/Synthesize",
            tts_service_pb2.SynthesizeRequest.SerializeToString,
            tts_service_pb2.SynthesizeResponse.FromString,
        )(HELLO)
        await call.read()
        asyncio.get_running_loop().call_later(0.05, gate.set)
        closing = asyncio.create_task(door_context.__aexit__(None, None, None))
        heard = await listen(call)
        await closing
    assert heard.finished.sent_samples == 60 * 960
    assert token2wav.open_streams == 0


async def test_callers_that_leave_at_any_moment_leave_nothing_behind(voices: list[NamedVoice]) -> None:
    rng = random.Random(7)
    async with opened_grpc(FakeLLM(speech_deltas(100)), FakeToken2Wav(), voices) as door:
        await asyncio.gather(*(_leave_early(door, rng) for _ in range(60)))
        await door.until_idle()
        assert (await listen(door.tts.Synthesize(HELLO))).finished.sent_samples == 100 * 960


async def _leave_early(door: Door, rng: random.Random) -> None:
    call = door.tts.StreamingSynthesize(timeout=rng.choice([0.01, 0.05, None]))
    try:
        await call.write(CONFIG)
        for _ in range(rng.randrange(4)):
            await call.write(rng.choice([say(text="A sentence to speak. And"), FLUSH, CANCEL]))
            await asyncio.sleep(rng.random() / 100)
        if rng.random() < 0.5:
            await asyncio.wait_for(call.read(), 0.05)
    except (grpc.aio.AioRpcError, asyncio.TimeoutError, asyncio.InvalidStateError):
        pass
    call.cancel()


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
