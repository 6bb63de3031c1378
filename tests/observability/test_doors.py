"""Metrics at the real doors: which dialect a call spoke, what was refused there, and where a scraper reads it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack

import grpc
import httpx
import pytest
from tts_api.tts.v1 import tts_service_pb2, tts_service_pb2_grpc
from websockets.asyncio.client import connect
from wyoming.tts import Synthesize, SynthesizeVoice

from gateway.access.settings import AccessSettings
from gateway.config import parse_args
from gateway.doors.http import build_app
from gateway.errors import ConfigError
from gateway.host import Host
from gateway.telemetry.exposition import (
    BEAT_INTERVAL_S,
    MAX_CONNECTIONS,
    MAX_SILENCE_S,
    beating,
    metrics_port,
)
from gateway.telemetry.metrics import GatewayMetrics
from gateway.telemetry.telemetry import Telemetry
from gateway.voices.registry import NamedVoice
from servicekit.clock import SystemClock
from tests.gateway.access.door import BEARER, KEY, SMALL, Door, keys, opened_door
from tests.gateway.doors.wyoming_door import ask, listen, opened_wyoming
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, ManualClock, speech_deltas
from tests.observability.reading import Reading, samples_of
from tests.workers import free_ports

Voices = list[NamedVoice]
PATIENCE_S = 10.0


async def speak_in_every_dialect(door: Door) -> None:
    """Say a word through each door."""
    assert (await door.speak(BEARER)).status_code == 200
    answer = await door.http.post("/v1/text-to-speech/default", json={"text": "hello"}, headers=BEARER)
    assert answer.status_code == 200
    request = tts_service_pb2.SynthesizeRequest(text="hello")
    call = tts_service_pb2_grpc.TextToSpeechServiceStub(door.channel).Synthesize(
        request, metadata=(("authorization", f"Bearer {KEY}"),), timeout=PATIENCE_S
    )
    assert [message async for message in call]
    address = f"ws{door.url.removeprefix('http')}/v1/audio/speech/stream"
    async with connect(address, proxy=None, additional_headers=BEARER) as socket:
        for message in ({"type": "session.config"}, {"type": "input.text", "text": "hello"}, {"type": "input.done"}):
            await socket.send(json.dumps(message))
        while '"session.done"' not in str(await asyncio.wait_for(socket.recv(), PATIENCE_S)):
            pass


async def test_every_door_names_its_dialect(voices: Voices) -> None:
    telemetry = Telemetry(SystemClock())
    async with opened_door(voices, telemetry=telemetry) as door:
        await speak_in_every_dialect(door)
    got = Reading(telemetry.metrics.registry)
    for dialect in ("openai", "elevenlabs", "grpc", "websocket"):
        assert got.value("requests_total", dialect=dialect, outcome="completed") == 1, dialect
    assert not got.above_zero("failures_total")


async def test_the_wyoming_door_names_its_dialect_and_its_refusals(voices: Voices) -> None:
    telemetry, llm = Telemetry(SystemClock()), FakeLLM(speech_deltas(10))
    async with opened_wyoming(llm, FakeToken2Wav(), voices, telemetry=telemetry) as door:
        for voice, last in (("anna", "audio-stop"), ("nobody", "error")):
            async with door.client() as client:
                await ask(client, Synthesize("hello", SynthesizeVoice(voice)))
                await listen(client, last)
    got = Reading(telemetry.metrics.registry)
    assert got.value("requests_total", dialect="wyoming", outcome="completed") == 1
    assert got.value("requests_total", dialect="wyoming", outcome="invalid") == 1
    assert got.above_zero("failures_total") == {frozenset({("cause", "voice_not_found")})}


@pytest.mark.parametrize(
    ("headers", "change", "cause", "outcome"),
    [
        pytest.param({}, {}, "http_401", "invalid", id="no key"),
        pytest.param(BEARER, {"speed": "fast"}, "http_400", "invalid", id="an option that does not parse"),
        pytest.param(BEARER, {"voice": "nobody"}, "voice_not_found", "invalid", id="found out by the pipeline"),
    ],
)
async def test_a_refusal_is_counted_once_wherever_it_comes_up(
    voices: Voices, headers: dict[str, str], change: dict[str, str], cause: str, outcome: str
) -> None:
    telemetry = Telemetry(SystemClock())
    async with opened_door(voices, telemetry=telemetry) as door:
        assert (await door.speak(headers, **change)).status_code >= 400
    got = Reading(telemetry.metrics.registry)
    assert got.above_zero("failures_total") == {frozenset({("cause", cause)})}
    assert got.above_zero("requests_total") == {frozenset({("dialect", "openai"), ("outcome", outcome)})}


async def test_a_stream_too_many_is_an_admission_refused(voices: Voices) -> None:
    telemetry, llm = Telemetry(SystemClock()), FakeLLM(speech_deltas(60), gate=asyncio.Event())
    async with opened_door(voices, AccessSettings(fixed_keys=keys("streams=1")), llm, telemetry) as door:
        first = asyncio.create_task(door.speak(BEARER))
        while not door.token2wav.open_streams:
            await asyncio.sleep(0.005)
        assert (await door.speak(BEARER)).status_code == 429
        assert llm.gate is not None
        llm.gate.set()
        assert (await first).status_code == 200
    got = Reading(telemetry.metrics.registry)
    assert got.value("admission_refused_total") == 1
    assert got.value("failures_total", cause="stream_limit_reached") == 1
    assert got.value("requests_total", dialect="openai", outcome="completed") == 1


async def test_a_grpc_call_without_a_key_is_counted(voices: Voices) -> None:
    telemetry = Telemetry(SystemClock())
    async with opened_door(voices, telemetry=telemetry) as door:
        stub = tts_service_pb2_grpc.TextToSpeechServiceStub(door.channel)
        with pytest.raises(grpc.aio.AioRpcError):
            async for _ in stub.Synthesize(tts_service_pb2.SynthesizeRequest(text="hello"), timeout=PATIENCE_S):
                pass
    got = Reading(telemetry.metrics.registry)
    assert got.above_zero("failures_total") == {frozenset({("cause", "http_401")})}
    assert got.value("requests_total", dialect="grpc", outcome="invalid") == 1


async def test_without_keys_the_http_door_answers_metrics() -> None:
    def never() -> Host:
        raise AssertionError("metrics need no gateway")

    app = build_app(never, GatewayMetrics().registry)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as http:
        answer = await http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert ("cosydit_gateway_streams", frozenset()) in samples_of(answer.text)


REQUIRED = ["--tokenizer-dir", "x", "--voices-dir", "x"]


@pytest.mark.parametrize(
    ("options", "has_keys", "is_at_the_door"),
    [
        pytest.param([], False, True, id="in the open"),
        pytest.param([], True, False, id="a caller's key opens no metrics"),
        pytest.param(["--metrics-port", "9464"], False, False, id="a port of their own"),
    ],
)
def test_where_metrics_are(options: list[str], has_keys: bool, is_at_the_door: bool) -> None:
    settings = parse_args([*REQUIRED, *options]).telemetry
    assert settings.is_at_the_door(has_keys) is is_at_the_door


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param(["--metrics-port", "0"], "--metrics-port", id="no port"),
        pytest.param(["--metrics-port", "70000"], "--metrics-port", id="no port that there is"),
        pytest.param(["--otlp-endpoint", "127.0.0.1:4317"], "OTLP/HTTP", id="no URL"),
    ],
)
def test_settings_that_can_not_work_are_refused(options: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_args([*REQUIRED, *options])


def test_the_port_of_metrics_answers_until_it_is_closed_and_a_taken_one_is_said_so() -> None:
    (port,) = free_ports(1)
    registry = GatewayMetrics().registry
    with metrics_port(registry, lambda: 0.0, "127.0.0.1", port) as opened:
        with urllib.request.urlopen(f"http://127.0.0.1:{opened}/metrics", timeout=PATIENCE_S) as answer:
            assert b"cosydit_gateway_streams 0.0" in answer.read()
        with (
            pytest.raises(ConfigError, match="--metrics-port"),
            metrics_port(registry, lambda: 0.0, "127.0.0.1", port),
        ):
            pass
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S)


def test_idle_connections_to_the_port_of_metrics_take_few_threads_and_keep_nobody_out() -> None:
    (port,) = free_ports(1)
    before = threading.active_count()
    with metrics_port(GatewayMetrics().registry, lambda: 0.0, "127.0.0.1", port), ExitStack() as idle:
        for _ in range(4 * MAX_CONNECTIONS):
            idle.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_S))
            assert threading.active_count() - before <= 3 * MAX_CONNECTIONS
        assert ask_livez(port) == (200, "ok\n")
        until = time.monotonic() + PATIENCE_S
        while threading.active_count() - before > MAX_CONNECTIONS + 1 and time.monotonic() < until:
            time.sleep(0.01)
        assert threading.active_count() - before <= MAX_CONNECTIONS + 1


def ask_livez(port: int) -> tuple[int, str]:
    """Return status and text. It blocks: nothing else of this thread's event loop runs meanwhile."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def test_the_gateway_lives_while_its_event_loop_beats_and_not_while_it_stands_still() -> None:
    (port,), clock = free_ports(1), ManualClock()
    async with beating(clock) as silence_s:
        with metrics_port(GatewayMetrics().registry, silence_s, "127.0.0.1", port):
            await asyncio.sleep(0)
            clock.seconds += MAX_SILENCE_S
            assert ask_livez(port) == (200, "ok\n")
            clock.seconds += 1.0
            assert ask_livez(port) == (503, "no beat for 16 s\n")
            await asyncio.sleep(1.5 * BEAT_INTERVAL_S)
            assert ask_livez(port) == (200, "ok\n")


async def test_a_gateway_with_full_doors_lives(voices: Voices) -> None:
    (port,) = free_ports(1)
    async with opened_door(voices, AccessSettings(wire=SMALL)) as door, beating(SystemClock()) as silence_s:
        address = door.url.rpartition(":")[2]
        idle = [await asyncio.open_connection("127.0.0.1", int(address)) for _ in range(SMALL.max_connections)]
        for _, writer in idle:
            writer.write(b"POST /v1/audio/speech HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n")
        await asyncio.sleep(0.1)
        with metrics_port(GatewayMetrics().registry, silence_s, "127.0.0.1", port):
            assert (await door.http.get("/healthz")).status_code == 503
            assert await asyncio.to_thread(ask_livez, port) == (200, "ok\n")
        for _, writer in idle:
            writer.close()
            await writer.wait_closed()
