"""The token2wav client over real gRPC, against a small server that speaks the contract."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gateway import errors
from gateway.chunking.chunker import TokenChunk
from gateway.token2wav.client import Token2WavClient, Token2WavDeadlines
from servicekit.timeouts import LoopLag, timeout
from tests.gateway.token2wav.fake_triton import VOICE_FILE, FakeTriton, error, serving
from token2wav_service.contract import ErrorCode, ServerStatus

STATUS = ServerStatus(4, 0, 0, None, is_draining=False).to_json()
FIRST = TokenChunk(0, 0, tuple(range(18)), False)
LAST = TokenChunk(1, 15, (15, 16, 17), True)
PATIENCE_S = 10.0


async def until_freed(fake: FakeTriton) -> None:
    for _ in range(200):
        if fake.open_streams == 0:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the server still has an open stream")


@asynccontextmanager
async def client_of(
    fake: FakeTriton, deadlines: Token2WavDeadlines | None = None, lag: LoopLag | None = None
) -> AsyncIterator[Token2WavClient]:
    async with serving(fake) as (url, _):
        client = Token2WavClient(url, deadlines, lag)
        yield client
        await client.close()


async def test_a_voice_is_registered_from_samples_and_from_a_file() -> None:
    async with client_of(fake := FakeTriton()) as client:
        assert await client.is_ready()
        voice = await client.register_voice(np.zeros(4000, np.float32))
        await client.register_voice(b"RIFF")
    assert (voice.voice_id, voice.prompt_speech_tokens) == ("v1", (4, 5))
    assert [sorted(set(r) - {"operation"}) for r in fake.requests] == [["reference_wav"], ["reference_audio"]]


async def test_pushes_may_be_pipelined_and_come_back_in_order() -> None:
    async with client_of(fake := FakeTriton()) as client:
        async with client.open_stream("v1", seed=2**40, priority=3) as stream:
            pushes = [stream.push(FIRST), stream.push(LAST)]
            chunks = [await push for push in pushes]
        assert stream.stream_id == "s1"
        await until_freed(fake)
    assert [(c.index, len(c.samples), c.is_last) for c in chunks] == [(0, 180, False), (1, 30, True)]
    assert fake.requests[0] == {"operation": "open", "voice_id": "v1", "seed": [2**40], "priority": [3]}
    assert fake.requests[2]["token_ids"] == [15, 16, 17]
    assert fake.requests[2]["is_last"] == [True]


@pytest.mark.parametrize(
    "waveform",
    [
        pytest.param(np.array([0.1, np.nan, 0.1], np.float32), id="not a number"),
        pytest.param(np.array([np.inf], np.float32), id="infinite"),
        pytest.param(np.array([b"no samples"], np.object_), id="no samples"),
    ],
)
async def test_samples_that_can_t_be_played_fail_at_once(waveform: npt.NDArray[Any]) -> None:
    async with client_of(fake := FakeTriton(waveform=waveform)) as client:
        with pytest.raises(errors.Token2WavProtocolError):
            async with client.open_stream("v1", 0) as stream:
                await asyncio.wait_for(stream.push(FIRST), 5)
        await until_freed(fake)


@asynccontextmanager
async def relayed(port: int) -> AsyncIterator[tuple[str, Callable[[], None], list[asyncio.Task[None]]]]:
    """A way to a port, what has the connections so far hang for ever (of them only the end goes through), and what is
    done when a connection has ended in one direction."""
    relays, writers = list[asyncio.Task[None]](), list[asyncio.StreamWriter]()
    have_hung = [asyncio.Event()]

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, has_hung: asyncio.Event) -> None:
        while data := await reader.read(65536):
            if not has_hung.is_set():
                writer.write(data)
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        has_hung = have_hung[-1]
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", port)
        writers.extend((writer, other_writer))
        pairs = ((reader, other_writer), (other_reader, writer))
        relays.extend(asyncio.create_task(relay(*pair, has_hung)) for pair in pairs)

    def hang() -> None:
        have_hung[-1].set()
        have_hung.append(asyncio.Event())

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", hang, relays
    finally:
        server.close()
        for each in relays:
            each.cancel()
        await asyncio.gather(*relays, return_exceptions=True)
        for writer in writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


@pytest.mark.parametrize("operation", ["status", "open"])
async def test_a_connection_that_hangs_is_given_up(operation: str) -> None:
    fake = FakeTriton(status=STATUS)
    async with serving(fake) as (url, _), relayed(int(url.rpartition(":")[2])) as (way, hang, _):
        client = Token2WavClient(way)
        assert (await client.status()).max_streams == 4
        hang()
        client._deadlines = Token2WavDeadlines(ready_s=0.5, open_s=0.5, close_s=0.1)
        with pytest.raises(errors.Token2WavDeadlineError):
            if operation == "status":
                await client.status()
            else:
                await client.open_stream("v1", 0).__aenter__()
        client._deadlines = Token2WavDeadlines()
        assert (await client.status()).max_streams == 4
        async with client.open_stream("v1", 0) as stream:
            assert len((await stream.push(LAST)).samples) == 30
        await client.close()


@pytest.mark.parametrize("has_streams", [True, False])
async def test_a_connection_that_hung_is_closed_without_a_garbage_collection(has_streams: bool) -> None:
    fake = FakeTriton(status=STATUS)
    async with serving(fake) as (url, _), relayed(int(url.rpartition(":")[2])) as (way, hang, relays):
        client = Token2WavClient(way, Token2WavDeadlines(ready_s=0.5, push_s=1.0, close_s=0.1))
        assert (await client.status()).max_streams == 4
        gc.disable()
        try:
            kept = await _hung(client, hang, streams=2 * has_streams)
            async with timeout(PATIENCE_S):
                await asyncio.gather(*relays[:2])
                await until_freed(fake)
        finally:
            gc.enable()
        assert kept
        await client.close()


async def _hung(client: Token2WavClient, hang: Callable[[], None], streams: int) -> list[Exception]:
    """Have a status and so many streams hang, and return how they failed."""

    async def speak(seed: int) -> None:
        async with client.open_stream("v1", seed) as stream:
            await stream.push(FIRST)
            hang()
            await stream.push(LAST)

    async def ask() -> None:
        await asyncio.sleep(0.2 * bool(streams))
        hang()
        await client.status()

    failures = await asyncio.gather(ask(), *(speak(seed) for seed in range(streams)), return_exceptions=True)
    assert [type(each) for each in failures] == [errors.Token2WavDeadlineError] * (1 + streams)
    return [each for each in failures if isinstance(each, Exception)]


async def test_leaving_early_cancels_the_call() -> None:
    async with client_of(fake := FakeTriton(is_silent=True)) as client:
        with pytest.raises(KeyError):
            async with client.open_stream("v1", 0) as stream:
                push = stream.push(FIRST)
                raise KeyError
        assert isinstance(push.exception(), errors.Token2WavInterruptedError)
        await until_freed(fake)


async def test_cancelling_the_caller_cancels_the_call() -> None:
    async def wait_for_audio(client: Token2WavClient) -> None:
        async with client.open_stream("v1", 0) as stream:
            await stream.push(FIRST)

    async with client_of(fake := FakeTriton(is_silent=True)) as client:
        task = asyncio.create_task(wait_for_audio(client))
        while len(fake.requests) < 2:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until_freed(fake)


@pytest.mark.parametrize(
    ("operation", "code", "expected"),
    [
        ("open", ErrorCode.VOICE_NOT_FOUND, errors.VoiceEvictedError),
        ("open", ErrorCode.RESOURCE_EXHAUSTED, errors.Token2WavBusyError),
        ("open", ErrorCode.INVALID_PROMPT, errors.InvalidVoicePromptError),
        ("open", ErrorCode.INTERNAL, errors.Token2WavFailedError),
        ("open", ErrorCode.UNAVAILABLE, errors.Token2WavUnavailableError),
        ("register", ErrorCode.INVALID_PROMPT, errors.InvalidVoicePromptError),
        ("register", ErrorCode.INVALID_REQUEST, errors.InvalidVoicePromptError),
        ("import", ErrorCode.VOICE_MODEL_MISMATCH, errors.VoiceOutdatedError),
        ("import", ErrorCode.INVALID_VOICE_FILE, errors.VoiceFileError),
        ("import", ErrorCode.RESOURCE_EXHAUSTED, errors.Token2WavBusyError),
    ],
)
async def test_errors_are_typed(operation: str, code: ErrorCode, expected: type[errors.GatewayError]) -> None:
    told = error(code, "the reason")
    async with client_of(FakeTriton(open_error=told, register_error=told)) as client:
        with pytest.raises(expected, match="the reason"):
            if operation == "open":
                await client.open_stream("v1", 0).__aenter__()
            else:
                await (client.register_voice(b"x") if operation == "register" else client.import_voice(b"x"))


async def test_a_voice_is_exported_and_imported_as_bytes() -> None:
    async with client_of(fake := FakeTriton()) as client:
        exported = await client.export_voice("v1")
        voice = await client.import_voice(exported)
    assert (exported, voice.voice_id, voice.prompt_speech_tokens) == (VOICE_FILE, "v1", (4, 5))
    assert [sorted(set(r) - {"operation"}) for r in fake.requests] == [["voice_id"], ["voice_file"]]


async def test_an_error_on_a_push_fails_it_and_all_later_ones() -> None:
    async with client_of(FakeTriton(push_error=error(ErrorCode.INVALID_CHUNK, "token 9999"))) as client:
        with pytest.raises(errors.Token2WavRejectedError, match="token 9999"):
            async with client.open_stream("v1", 0) as stream:
                first, second = stream.push(FIRST), stream.push(LAST)
                with pytest.raises(errors.Token2WavRejectedError):
                    await first
                with pytest.raises(errors.Token2WavRejectedError):
                    await second
                await stream.push(LAST)


async def test_a_foreign_error_text_is_a_failure_inside() -> None:
    async with client_of(FakeTriton(push_error="segfault at 0x0")) as client:
        with pytest.raises(errors.Token2WavFailedError, match="segfault"):
            async with client.open_stream("v1", 0) as stream:
                await stream.push(FIRST)


async def test_a_server_that_ends_the_stream_early_is_reported() -> None:
    async with client_of(FakeTriton(ends_early=True)) as client:
        with pytest.raises(errors.Token2WavInterruptedError, match="before its audio"):
            async with client.open_stream("v1", 0) as stream:
                await stream.push(FIRST)


async def test_a_server_that_dies_in_mid_stream_is_reported() -> None:
    async with serving(fake := FakeTriton(is_silent=True)) as (url, server):
        client = Token2WavClient(url)
        with pytest.raises(errors.Token2WavInterruptedError, match="try again"):
            async with client.open_stream("v1", 0) as stream:
                push = stream.push(FIRST)
                while len(fake.requests) < 2:
                    await asyncio.sleep(0.01)
                await server.stop(None)
                await push
        await client.close()


async def test_a_server_that_is_down_is_unavailable_and_says_what_to_do() -> None:
    async with serving(FakeTriton()) as (url, _):
        pass
    client = Token2WavClient(url)
    assert not await client.is_ready()
    with pytest.raises(errors.Token2WavUnavailableError, match="start it"):
        async with client.open_stream("v1", 0):
            pass
    with pytest.raises(errors.Token2WavUnavailableError):
        await client.register_voice(b"x")
    await client.close()


async def test_a_chunk_without_audio_passes_its_deadline() -> None:
    async with client_of(fake := FakeTriton(is_silent=True), Token2WavDeadlines(push_s=0.05)) as client:
        with pytest.raises(errors.Token2WavDeadlineError, match=r"chunk 0.*stuck") as stuck:
            async with client.open_stream("v1", 0) as stream:
                await stream.push(FIRST)
        assert not stuck.value.serves_others
        await until_freed(fake)


async def test_a_chunk_may_be_late_because_others_are_served() -> None:
    async with client_of(FakeTriton(is_silent=True), Token2WavDeadlines(push_s=0.2)) as client:
        with pytest.raises(errors.Token2WavDeadlineError, match=r"chunk 0.*overloaded") as slow:
            async with client.open_stream("v1", 0) as stream:
                late = stream.push(FIRST)
                while not late.done():
                    client._patience.progressed()
                    await asyncio.sleep(0.01)
                await late
        assert slow.value.serves_others


async def test_a_stream_has_no_deadline_but_its_windows() -> None:
    async with client_of(fake := FakeTriton()) as client:
        async with client.open_stream("v1", 0):
            assert fake.time_left_s is None
        await client.register_voice(b"x")
        assert fake.time_left_s is not None


async def test_a_voice_without_answer_passes_its_deadline() -> None:
    async with client_of(FakeTriton(is_silent=True), Token2WavDeadlines(register_s=0.05)) as client:
        with pytest.raises(errors.Token2WavDeadlineError):
            await client.register_voice(b"x")


async def test_a_chunk_is_waited_for_while_the_server_makes_audio_for_others() -> None:
    push_s = 0.3
    async with client_of(fake := FakeTriton(silent_tokens=1), Token2WavDeadlines(push_s=push_s)) as client:
        async with client.open_stream("v1", 0) as slow, client.open_stream("v1", 1) as other:
            late = slow.push(TokenChunk(0, 0, (1,), False))
            for index in range(8):
                await asyncio.sleep(push_s / 4)
                await other.push(TokenChunk(index, 0, (1, 2), False))
            assert not late.done()
            fake.silence.set()
            assert len((await late).samples)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="before Python 3.11 a limit can't be moved")
async def test_a_stream_that_our_own_standstill_made_late_is_opened() -> None:
    lag, limit_s = LoopLag(), 0.2
    async with client_of(fake := FakeTriton(opens_slowly=True), Token2WavDeadlines(open_s=limit_s), lag) as client:
        loop = asyncio.get_running_loop()
        loop.call_later(limit_s / 2, lag.note, 30.0, 0.0)
        loop.call_later(3 * limit_s, fake.silence.set)
        async with client.open_stream("v1", 0) as stream:
            assert stream.stream_id == "s1"
