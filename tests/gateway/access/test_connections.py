"""Connections that ask nothing, or too slowly, keep nobody out and end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager

import httpx
import pytest
import uvicorn
from tts_api.tts.v1 import tts_service_pb2, tts_service_pb2_grpc
from wyoming.client import AsyncTcpClient
from wyoming.info import Describe
from wyoming.tts import SynthesizeStart

from gateway.access.connections import Connections, WireLimits
from gateway.access.settings import AccessSettings, TlsFiles, uvicorn_options
from gateway.voices.registry import NamedVoice
from servicekit.timeouts import timeout
from tests.gateway.access.door import BEARER, KEY, TLS, Door, keys, opened_door
from tests.gateway.doors.raw_http2 import STREAMING, raw_http2

Voices = list[NamedVoice]
ROOM = 8
HEAD = b"POST /v1/audio/speech HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n"
WITH_KEY = HEAD + f"authorization: Bearer {KEY}\r\n\r\n".encode()
PATIENCE_S = 10.0
AT_ONCE = 64


def wire(**changes: float) -> AccessSettings:
    limits = {"max_connections": ROOM, "head_timeout_s": 300.0, "body_timeout_s": 300.0, **changes}
    return AccessSettings(fixed_keys=keys(), wire=WireLimits(**limits))  # type: ignore[arg-type]


def connection(door: Door, sent: bytes = b"") -> AbstractAsyncContextManager[asyncio.StreamReader]:
    return connected(door.ports["HTTP"], sent)


@asynccontextmanager
async def connected(port: int, sent: bytes = b"") -> AsyncIterator[asyncio.StreamReader]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    try:
        yield reader
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)


async def status_of(door: Door, headers: dict[str, str] | None = BEARER) -> int:
    async with httpx.AsyncClient(base_url=door.url, trust_env=False, timeout=PATIENCE_S, verify=False) as client:
        return (await client.get("/caller", headers=headers)).status_code


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="not a byte"),
        pytest.param(b"GET / HTTP/1.1\r\nhost: l", id="half a head"),
        pytest.param(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n", id="asked and stayed"),
        pytest.param(HEAD + b"\r\n", id="a body without a key"),
    ],
)
async def test_connections_that_ask_nothing_make_room(sent: bytes, voices: Voices) -> None:
    async with opened_door(voices, wire()) as door, AsyncExitStack() as held:
        for _ in range(3 * ROOM):
            await held.enter_async_context(connection(door, sent))
        assert [await status_of(door) for _ in range(3)] == [200, 200, 200]


async def test_those_that_wait_longest_make_room_first(voices: Voices) -> None:
    async with opened_door(voices, wire()) as door, AsyncExitStack() as held:
        readers = [await held.enter_async_context(connection(door)) for _ in range(ROOM)]
        assert await status_of(door) == 200
        assert await asyncio.wait_for(_end(readers[0]), PATIENCE_S) == b""
        assert not readers[-1].at_eof()


async def test_requests_under_way_are_not_closed_for_others(voices: Voices) -> None:
    async with opened_door(voices, wire()) as door, AsyncExitStack() as held:
        for _ in range(ROOM):
            await held.enter_async_context(connection(door, WITH_KEY))
        await asyncio.sleep(0.1)
        assert await status_of(door) == 503


async def test_one_address_may_not_have_all_connections(voices: Voices) -> None:
    async with opened_door(voices, wire(max_connections_per_peer=3)) as door, AsyncExitStack() as held:
        for _ in range(3):
            await held.enter_async_context(connection(door, WITH_KEY))
        async with connection(door) as fourth:
            assert await asyncio.wait_for(_end(fourth), PATIENCE_S) == b""


@pytest.mark.parametrize(
    ("sent", "limits"),
    [
        pytest.param(b"", {"head_timeout_s": 0.2}, id="not a byte"),
        pytest.param(b"GET / HTTP/1.1\r\nx: ", {"head_timeout_s": 0.2}, id="half a head"),
        pytest.param(WITH_KEY, {"body_timeout_s": 0.2}, id="no body"),
        pytest.param(WITH_KEY + b"{", {"body_timeout_s": 0.2}, id="a byte of the body"),
    ],
)
async def test_what_comes_too_slowly_is_closed(sent: bytes, limits: dict[str, float], voices: Voices) -> None:
    async with opened_door(voices, wire(**limits)) as door, connection(door, sent) as reader:
        await asyncio.wait_for(_end(reader), PATIENCE_S)


@pytest.mark.slow
async def test_a_second_head_on_one_connection_has_its_deadline_too(voices: Voices) -> None:
    async with opened_door(voices, wire(head_timeout_s=0.2)) as door:
        async with connection(door, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\nGET / HT") as reader:
            assert b"200 OK" in await asyncio.wait_for(_end(reader), PATIENCE_S)


async def test_a_body_that_goes_on_after_the_answer_is_closed_however_fast_it_comes(voices: Voices) -> None:
    head = HEAD.replace(b"100000", b"30000000") + b"\r\n"
    async with opened_door(voices, wire(body_timeout_s=0.2)) as door:
        reader, writer = await asyncio.open_connection("127.0.0.1", door.ports["HTTP"])
        writer.write(head)
        assert b"401" in await asyncio.wait_for(reader.readline(), PATIENCE_S)
        with pytest.raises(ConnectionError):
            for _ in range(200):
                writer.write(bytes(8192))
                await writer.drain()
                await asyncio.sleep(0.05)


async def test_a_body_that_keeps_to_the_rate_may_take_its_time(voices: Voices) -> None:
    async with opened_door(voices, wire(body_timeout_s=0.3)) as door:

        async def body() -> AsyncIterator[bytes]:
            for _ in range(8):
                yield b" " * 16 * 1024
                await asyncio.sleep(0.1)

        async with httpx.AsyncClient(base_url=door.url, trust_env=False, timeout=PATIENCE_S, verify=False) as client:
            answer = await client.post("/v1/audio/speech", content=body(), headers=BEARER)
    assert answer.status_code in (400, 413)


@pytest.mark.parametrize("tls", [None, TLS], ids=["clear", "TLS"])
@pytest.mark.parametrize("name", ["HTTP", "gRPC", "Wyoming"])
async def test_silent_connections_keep_nobody_out_at_any_door(voices: Voices, name: str, tls: TlsFiles | None) -> None:
    settings = AccessSettings(is_insecure=True, tls=tls, wire=WireLimits(max_connections=ROOM, head_timeout_s=300.0))
    async with opened_door(voices, settings) as door, AsyncExitStack() as held:
        readers = [await held.enter_async_context(connected(door.ports[name])) for _ in range(2 * ROOM)]
        await asyncio.wait_for(_end(readers[0]), PATIENCE_S)
        if name == "HTTP":
            assert await status_of(door) == 200
        elif name == "gRPC":
            await tts_service_pb2_grpc.TextToSpeechServiceStub(door.channel).ListVoices(
                tts_service_pb2.ListVoicesRequest(), timeout=PATIENCE_S
            )
        else:
            async with AsyncTcpClient("127.0.0.1", door.ports[name]) as client:
                await client.write_event(Describe().event())
                assert await asyncio.wait_for(client.read_event(), PATIENCE_S) is not None


@pytest.mark.parametrize("tls", [None, TLS], ids=["clear", "TLS"])
@pytest.mark.parametrize("name", ["HTTP", "gRPC"])
async def test_a_handshake_that_does_not_end_is_ended(voices: Voices, name: str, tls: TlsFiles | None) -> None:
    settings = AccessSettings(tls=tls, wire=WireLimits(head_timeout_s=0.3))
    async with opened_door(voices, settings) as door, connected(door.ports[name]) as reader:
        await asyncio.wait_for(_end(reader), PATIENCE_S)


@pytest.mark.parametrize("name", ["gRPC", "Wyoming"])
async def test_one_address_has_so_many_connections_at_every_door(voices: Voices, name: str) -> None:
    """What asks something is closed for nobody, so the address's next connection is."""
    async with opened_door(voices, AccessSettings(wire=WireLimits(max_connections_per_peer=2))) as door:
        async with AsyncExitStack() as held:
            for _ in range(2):
                if name == "gRPC":
                    client = await held.enter_async_context(raw_http2(door.ports[name]))
                    client.call(STREAMING)
                else:
                    begin = SynthesizeStart().event()
                    wyoming = await held.enter_async_context(AsyncTcpClient("127.0.0.1", door.ports[name]))
                    await wyoming.write_event(begin)
            await asyncio.sleep(0.2)
            reader = await held.enter_async_context(connected(door.ports[name]))
            await asyncio.wait_for(_end(reader), PATIENCE_S)


async def _end(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


def test_the_door_s_loop_is_asyncio_s_whose_connections_are_counted_even_where_uvloop_is_installed() -> None:
    options = uvicorn_options(AccessSettings(), Connections())
    assert uvicorn.Config(lambda: None, **options).loop == "asyncio"


@pytest.mark.parametrize("name", ["HTTP", "gRPC", "Wyoming"])
async def test_connections_that_come_all_at_once_wait_in_the_kernel(voices: Voices, name: str) -> None:
    """The kernel drops those beyond its bound, and their callers try again after a second, or three, or seven."""
    async with opened_door(voices) as door, timeout(PATIENCE_S):
        with ExitStack() as held:
            for _ in range(AT_ONCE):  # the event loop accepts none meanwhile
                held.enter_context(socket.create_connection(("127.0.0.1", door.ports[name]), timeout=PATIENCE_S))
            while len(door.access.connections._open) < AT_ONCE:
                await asyncio.sleep(0.01)
        while len(door.access.connections._open) >= AT_ONCE:
            await asyncio.sleep(0.01)
