"""Encoding beside an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gateway.audio import AsyncEncoder, AudioEncoder, AudioFormat, OutputFormat
from gateway.core import FloatArray
from tests.gateway.audio.signals import cut, encoded, speech_like

PATIENCE_S = 5


class BlockingEncoder:
    """Encodes only once it is let; remembers which thread did what."""

    def __init__(self, *, is_light: bool = False) -> None:
        self.is_light = is_light
        self.is_started = threading.Event()
        self.may_end = threading.Event()
        self.is_closed = threading.Event()
        self.was_working_at_close = False
        self.thread: threading.Thread | None = None
        self._is_working = False

    def encode(self, samples: FloatArray) -> bytes:
        self._is_working = True
        self.thread = threading.current_thread()
        self.is_started.set()
        self.may_end.wait(PATIENCE_S)
        self._is_working = False
        return b"bytes"

    def finish(self) -> bytes:
        return b""

    def close(self) -> None:
        self.was_working_at_close = self._is_working
        self.is_closed.set()


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


async def encode_one(encoder: BlockingEncoder, executor: ThreadPoolExecutor) -> None:
    async with AsyncEncoder(encoder, executor) as opened:
        await opened.encode(np.zeros(1, np.float32))


@pytest.mark.parametrize("audio_format", [AudioFormat.PCM, AudioFormat.FLAC])
async def test_the_bytes_are_those_of_the_encoder(audio_format: AudioFormat, executor: ThreadPoolExecutor) -> None:
    if audio_format is AudioFormat.FLAC:
        pytest.importorskip("av", reason="the audio extra is not installed")
    output, pieces = OutputFormat(audio_format), cut(speech_like(5000), [600, 2000])

    async with AsyncEncoder(AudioEncoder(output), executor) as encoder:
        parts = [await encoder.encode(piece) for piece in pieces]
        parts.append(await encoder.finish())

    assert b"".join(parts) == encoded(AudioEncoder(output), pieces)


async def test_heavy_work_leaves_the_loop_free(executor: ThreadPoolExecutor) -> None:
    blocking = BlockingEncoder()
    async with AsyncEncoder(blocking, executor) as encoder:
        work = asyncio.create_task(encoder.encode(np.zeros(1, np.float32)))
        while not blocking.is_started.is_set():
            await asyncio.sleep(0)
        blocking.may_end.set()

        assert await work == b"bytes"
    assert blocking.thread is not threading.current_thread()


async def test_light_work_stays_on_the_loop(executor: ThreadPoolExecutor) -> None:
    blocking = BlockingEncoder(is_light=True)
    blocking.may_end.set()

    await encode_one(blocking, executor)

    assert blocking.thread is threading.current_thread()
    assert blocking.is_closed.is_set()


async def test_a_cancelled_caller_waits_for_nothing_and_the_codec_is_freed_after_its_work(
    executor: ThreadPoolExecutor,
) -> None:
    blocking = BlockingEncoder()
    caller = asyncio.create_task(encode_one(blocking, executor))
    while not blocking.is_started.is_set():
        await asyncio.sleep(0)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)

    assert caller.cancelled()
    assert not blocking.is_closed.is_set()
    blocking.may_end.set()
    assert blocking.is_closed.wait(PATIENCE_S)
    assert not blocking.was_working_at_close


async def test_a_caller_cancelled_before_a_thread_is_free_frees_its_codec_at_once(
    executor: ThreadPoolExecutor,
) -> None:
    in_the_way, blocking = BlockingEncoder(), BlockingEncoder()
    busy = executor.submit(in_the_way.encode, np.zeros(1, np.float32))
    caller = asyncio.create_task(encode_one(blocking, executor))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)

    assert blocking.is_closed.is_set()
    assert not blocking.is_started.is_set()
    in_the_way.may_end.set()
    assert busy.result(PATIENCE_S) == b"bytes"


async def test_an_encoders_error_reaches_the_caller_and_the_codec_is_freed(executor: ThreadPoolExecutor) -> None:
    pytest.importorskip("av", reason="the audio extra is not installed")
    encoder = AudioEncoder(OutputFormat(AudioFormat.FLAC))
    encoder.close()

    with pytest.raises(ValueError, match="finished or closed"):
        async with AsyncEncoder(encoder, executor) as closed:
            await closed.encode(np.zeros(1, np.float32))
