"""The guard of gRPC, before a real server with both services behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc
import pytest
from google.protobuf.empty_pb2 import Empty
from grpc_health.v1 import health_pb2, health_pb2_grpc
from riva.proto import riva_tts_pb2, riva_tts_pb2_grpc
from starlette.datastructures import Headers
from tts_api.tts.v1 import speech_pb2, tts_service_pb2, tts_service_pb2_grpc

from gateway.access import grpc_access, http_middleware
from gateway.access.caller import CallerLimits
from gateway.access.connections import WireLimits
from gateway.access.grpc_access import MAX_WATCHES, address_of_peer, presented_key
from gateway.access.settings import AccessSettings
from gateway.voices.registry import NamedVoice
from servicekit.timeouts import timeout
from tests.gateway.access.door import KEY, OTHER_KEY, TLS, Door, keys, opened_door
from tests.gateway.doors.grpc_door import CONFIG, END, PATIENCE_S, failure_of, listen, say
from tests.gateway.doors.raw_http2 import HEALTH, STREAMING, SYNTHESIZE, raw_http2
from tests.gateway.fakes import FakeLLM, speech_deltas

Voices = list[NamedVoice]
Metadata = tuple[tuple[str, str], ...]
ANNA: Metadata = (("authorization", f"Bearer {KEY}"),)
BOB: Metadata = (("xi-api-key", OTHER_KEY),)
SERVICE = "/tts_api.tts.v1.TextToSpeechService"
RIVA = riva_tts_pb2.SynthesizeSpeechRequest(text="hello", sample_rate_hz=24000, encoding=1)


def calls(door: Door, metadata: Metadata = (), *, is_silent: bool = False) -> dict[str, Callable[[], Any]]:
    """Every method that needs a key, ready to be called.

    Args:
        door: with the services.
        metadata: of the calls.
        is_silent: streams send no request: gRPC's asynchronous client takes a refusal that comes while it still sends
            for an error of its own.
    """
    tts = tts_service_pb2_grpc.TextToSpeechServiceStub(door.channel)
    riva = riva_tts_pb2_grpc.RivaSpeechSynthesisStub(door.channel)
    whole = tts_service_pb2.SynthesizeRequest(text="hello", config=speech_pb2.SpeechConfig())
    return {
        "Synthesize": lambda: tts.Synthesize(whole, metadata=metadata),
        "StreamingSynthesize": lambda: tts.StreamingSynthesize(
            None if is_silent else iter([CONFIG, say(text="hello"), END]), metadata=metadata
        ),
        "ListVoices": lambda: tts.ListVoices(tts_service_pb2.ListVoicesRequest(), metadata=metadata),
        "Riva Synthesize": lambda: riva.Synthesize(RIVA, metadata=metadata),
        "Riva SynthesizeOnline": lambda: riva.SynthesizeOnline(None if is_silent else iter([RIVA]), metadata=metadata),
    }


async def finish(begin: Callable[[], Any]) -> None:
    call = begin()
    if hasattr(call, "__aiter__"):
        await listen(call)
    else:
        await call


@pytest.mark.parametrize("metadata", [(), (("authorization", "Bearer wrong"),), (("authorization", KEY),)])
async def test_every_method_refuses_without_a_key(voices: Voices, metadata: Metadata) -> None:
    async with opened_door(voices) as door:
        for name, begin in calls(door, metadata, is_silent=True).items():
            code, details, trailing = await failure_of(begin())
            assert (code, trailing["error-code"]) == (grpc.StatusCode.UNAUTHENTICATED, "invalid_api_key"), name
            assert KEY not in details
        assert door.llm.utterances == []


@pytest.mark.parametrize("metadata", [ANNA, BOB], ids=["bearer", "xi-api-key"])
async def test_every_method_lets_a_known_key_in(voices: Voices, metadata: Metadata) -> None:
    async with opened_door(voices) as door:
        for begin in calls(door, metadata).values():
            await finish(begin)
        assert len(door.llm.utterances) == 4


@pytest.mark.parametrize("first", [KEY, "wrong"])
def test_of_two_keys_the_first_counts_at_both_doors(first: str) -> None:
    pairs = [("authorization", f"Bearer {first}"), ("authorization", "Bearer other")]
    raw = [(name.encode(), value.encode()) for name, value in pairs]
    assert presented_key(pairs) == first.encode() == http_middleware.presented_key(Headers(raw=raw))


async def test_what_clients_ask_without_their_key_is_open_and_reflection_is_not(voices: Voices) -> None:
    async with opened_door(voices) as door:
        riva = riva_tts_pb2_grpc.RivaSpeechSynthesisStub(door.channel)
        answer = await riva.GetRivaSynthesisConfig(riva_tts_pb2.RivaSynthesisConfigRequest())
        assert len(answer.model_config) == 1
        health = health_pb2_grpc.HealthStub(door.channel)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status > 0
        path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        reflect = door.channel.stream_stream(path, Empty.SerializeToString, Empty.FromString)
        assert (await failure_of(reflect(iter([Empty()]))))[0] is grpc.StatusCode.UNAUTHENTICATED
        await listen(reflect(iter([Empty()]), metadata=ANNA))


async def test_used_up_audio_is_told_with_when_to_come_back(voices: Voices) -> None:
    async with opened_door(voices, AccessSettings(fixed_keys=keys("audio_s_per_hour=1"))) as door:
        await finish(calls(door, ANNA)["Synthesize"])
        await door.until_idle()
        for name in ("Synthesize", "StreamingSynthesize", "Riva Synthesize", "Riva SynthesizeOnline"):
            code, _, trailing = await failure_of(calls(door, ANNA)[name]())
            assert (code, trailing["error-code"]) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "audio_limit_reached"), name
            assert (trailing["retry-after"], trailing["grpc-retry-pushback-ms"]) == ("3660", "-1")
        await finish(calls(door, BOB)["Synthesize"])


async def test_a_cancelled_call_gives_its_stream_back(voices: Voices) -> None:
    llm = FakeLLM(speech_deltas(60), gate=asyncio.Event(), ungated=30)
    async with opened_door(voices, AccessSettings(fixed_keys=keys("streams=1")), llm) as door:
        call = tts_service_pb2_grpc.TextToSpeechServiceStub(door.channel).StreamingSynthesize(metadata=ANNA)
        await call.write(CONFIG)
        await call.write(say(text="Hello there. "))
        await call.write(say(flush=tts_service_pb2.Flush()))
        await call.read()
        await call.read()
        code, _, trailing = await failure_of(calls(door, ANNA)["Riva Synthesize"]())
        assert (code, trailing["grpc-retry-pushback-ms"]) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "1000")
        call.cancel()
        await door.until_idle()
        assert llm.gate is not None
        llm.gate.set()
        await finish(calls(door, ANNA)["Riva Synthesize"])


async def test_without_keys_a_caller_is_its_address(voices: Voices) -> None:
    async with opened_door(voices, AccessSettings(limits=CallerLimits(audio_s_per_day=100.0))) as door:
        await finish(calls(door)["Synthesize"])
        assert door.access.ledger.audio_s("127.0.0.1", 60.0) == 1.0


async def test_it_speaks_over_tls(voices: Voices) -> None:
    async with opened_door(voices, AccessSettings(fixed_keys=keys(), tls=TLS)) as door:
        await finish(calls(door, ANNA)["StreamingSynthesize"])
        async with grpc.aio.insecure_channel(door.grpc_address) as channel:
            clear = tts_service_pb2_grpc.TextToSpeechServiceStub(channel)
            call = clear.ListVoices(tts_service_pb2.ListVoicesRequest(), metadata=ANNA, timeout=5)
            assert (await failure_of(call))[0] is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("peer", "address"),
    [("unix:/tmp/a/10.0.0.7:412", "10.0.0.7"), ("unix:/tmp/a/::1:412", "::1"), ("", "-")],
)
def test_addresses_are_read_from_grpcs_names_of_peers(peer: str, address: str) -> None:
    assert address_of_peer(peer) == address


def test_binary_metadata_is_no_key() -> None:
    assert presented_key((("authorization", b"Bearer x"), ("xi-api-key", ""))) is None


def watch(door: Door, metadata: Metadata = ()) -> Any:
    """Watch the health; the first answer comes at once."""
    return health_pb2_grpc.HealthStub(door.channel).Watch(health_pb2.HealthCheckRequest(), metadata=metadata)


async def test_watching_the_health_needs_a_key_and_asking_for_it_does_not(voices: Voices) -> None:
    async with opened_door(voices) as door:
        assert (await failure_of(watch(door)))[0] is grpc.StatusCode.UNAUTHENTICATED
        call = watch(door, ANNA)
        assert (await call.read()).status > 0
        call.cancel()
        assert (await health_pb2_grpc.HealthStub(door.channel).Check(health_pb2.HealthCheckRequest())).status > 0


async def test_watches_are_few_and_leave_room_for_speech(voices: Voices) -> None:
    async with opened_door(voices) as door:
        watches = [watch(door, ANNA) for _ in range(MAX_WATCHES * 3 // 4)]
        for call in watches:
            await call.read()
        assert (await failure_of(watch(door, ANNA)))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        watches.append(watch(door, BOB))
        await watches[-1].read()
        await finish(calls(door, ANNA)["Synthesize"])
        for call in watches:
            call.cancel()
        await asyncio.sleep(0.1)
        again = watch(door, ANNA)
        assert (await again.read()).status > 0
        again.cancel()


@pytest.mark.parametrize(
    ("path", "headers"), [(SYNTHESIZE, ANNA), (STREAMING, ANNA), (HEALTH, ())], ids=["unary", "streaming", "no key"]
)
async def test_calls_whose_message_never_comes_leave_room_for_others(
    voices: Voices, path: str, headers: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_access, "MAX_OPEN_CALLS", 8)
    async with opened_door(voices, AccessSettings(fixed_keys=keys(), wire=WireLimits(max_connections=8))) as door:
        async with raw_http2(door.ports["gRPC"]) as client:
            streams = {client.call(path, headers) for _ in range(30)}
            async with timeout(PATIENCE_S):
                while len(client.ended) < len(streams) - 6:
                    await asyncio.sleep(0.01)
            await finish(calls(door, BOB)["Synthesize"])
        async with timeout(PATIENCE_S):  # the others are given up, and their room is free again
            while True:
                with suppress(grpc.aio.AioRpcError):
                    await finish(calls(door, ANNA)["Riva SynthesizeOnline"])
                    break


@pytest.mark.parametrize("name", ["Synthesize", "StreamingSynthesize", "Riva SynthesizeOnline"])
async def test_a_call_whose_message_never_comes_is_ended(voices: Voices, name: str) -> None:
    wire = WireLimits(body_timeout_s=0.2)
    async with opened_door(voices, AccessSettings(fixed_keys=keys(), wire=wire)) as door:
        path = "/nvidia.riva.tts.RivaSpeechSynthesis/SynthesizeOnline" if "Riva" in name else f"{SERVICE}/{name}"
        call = door.channel.stream_stream(path)(metadata=ANNA)
        code, details, trailing = await asyncio.wait_for(failure_of(call), PATIENCE_S)
    assert (code, trailing["error-code"]) == (grpc.StatusCode.INVALID_ARGUMENT, "invalid_request")
    assert "no whole message came within 0.2 s" in details
