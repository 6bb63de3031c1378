"""Services that are down or die in mid-stream: a typed error for the caller, and the survivor left clean."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from cosydit.stack.checkpoint.checkpoints import CheckpointLayout
from cosydit.stack.process import ServiceProcess, busy_ports
from cosydit.stack.stack import LocalStack
from gateway.app import open_gateway
from gateway.chunking.policies import ChunkSettings
from gateway.config import GatewayConfig
from gateway.core import FloatArray
from gateway.errors import LLMError, LLMUnavailableError, NotReadyError, Token2WavError, Token2WavUnavailableError
from gateway.host import Host
from gateway.llm.routed import RoutedSpeechLM
from gateway.routing.replica import RoutingSettings
from gateway.speech.request import SpeechRequest, SpeechResult
from gateway.speech.session import SpeechSession
from servicekit.timeouts import timeout
from tests.e2e.conftest import RunningStack, make_options
from tests.raw_clients import stop_and_continue
from tests.workers import is_whole, wait_until
from token2wav_service.contract import SAMPLES_PER_TOKEN
from token2wav_service.serving.process.health import model_processes

pytestmark = pytest.mark.servers

LONG_TEXT = "A long text keeps both services busy while one of them goes away. " * 3

READY_S = 120.0
IMPATIENT = RoutingSettings(failover_s=1.0, restart_wait_s=1.0, admission_wait_s=1.0)
SAME_AUDIO_DB = 45.0
STANDSTILL_S = 8.0 if is_whole() else 3.0
"""Of SIGSTOP."""


@pytest.fixture(scope="module")
def stack(checkpoint: CheckpointLayout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    with LocalStack(make_options(checkpoint, tmp_path_factory.mktemp("mortal"), BLS_INSTANCE_NUM="1")) as stack:
        yield stack


@pytest.fixture
def mortal(stack: LocalStack) -> RunningStack:
    """A stack to be broken; what the test before left dead is started again."""
    for service in stack.services:
        if service.returncode is not None:
            _start_again(stack, service)
    return RunningStack(stack)


def _start_again(stack: LocalStack, service: ServiceProcess) -> None:
    ports = stack.options.ports
    service.stop()
    wait_until(
        lambda: (
            not busy_ports(
                (ports.llm, ports.llm_grpc) if service is stack.services[0] else (ports.triton_http, ports.triton_grpc)
            )
        ),
        f"the end of what {service.spec.name}'s killed launcher had started",
    )
    service.start()
    service.wait_ready(READY_S)


@asynccontextmanager
async def _gateway(running: RunningStack, routing: RoutingSettings = IMPATIENT) -> AsyncIterator[Host]:
    options = running.options
    config = GatewayConfig(
        tokenizer_dir=options.checkpoint.llm_dir,
        voices_dir=options.checkpoint.voices_dir,
        llm_url=options.token_url,
        token2wav_url=options.token2wav_url,
        routing=routing,
        chunks=ChunkSettings("exponential"),  # the same cuts in every run: waveforms are compared
    )
    async with open_gateway(config) as gateway:
        yield gateway


def _kill(service: ServiceProcess) -> None:
    os.killpg(service.pid, signal.SIGKILL)
    wait_until(lambda: service.returncode is not None, f"{service.spec.name}'s death")


async def _speak_until_dead(gateway: Host, victim: ServiceProcess) -> SpeechResult:
    result = SpeechResult()
    # Twice: on a busy machine the LLM has said the text once before its first audio comes.
    async for _ in gateway.pipeline.synthesize(SpeechRequest(2 * LONG_TEXT, seed=0), result):
        if victim.returncode is None:
            _kill(victim)
    return result


async def _speak_once_back(gateway: Host) -> SpeechResult:
    """Ask until the gateway has seen that token2wav is back: a probe and a new connection take up to a second each."""
    async with timeout(READY_S):
        while True:
            result = SpeechResult()
            try:
                async for _ in gateway.pipeline.synthesize(SpeechRequest("Back again.", seed=0), result):
                    pass
            except Token2WavUnavailableError:
                continue
            return result


async def test_token2wav_dying_in_mid_stream_staying_down_and_coming_back(mortal: RunningStack) -> None:
    triton = mortal.stack.services[1]
    async with _gateway(mortal) as gateway:
        with pytest.raises(Token2WavError):
            await _speak_until_dead(gateway, triton)
        wait_until(lambda: mortal.llm_metric("requests_running") == 0, "the LLM's release of the request")
        with pytest.raises(Token2WavUnavailableError):
            await _speak_until_dead(gateway, triton)
        await asyncio.to_thread(_start_again, mortal.stack, triton)
        assert (await _speak_once_back(gateway)).audio_samples > 0


async def test_a_stream_goes_on_at_its_sample_when_the_only_token2wav_is_started_again(mortal: RunningStack) -> None:
    triton = mortal.stack.services[1]
    async with _gateway(mortal, RoutingSettings()) as gateway, _speaking_as_if_unbroken(gateway):
        await asyncio.to_thread(_kill, triton)
        await asyncio.to_thread(_start_again, mortal.stack, triton)


@asynccontextmanager
async def _speaking_as_if_unbroken(gateway: Host) -> AsyncIterator[asyncio.Task[FloatArray]]:
    """Have something happen while a text is spoken; all is heard that is heard when nothing happens."""
    unbroken, has_begun = await _samples(gateway, asyncio.Event()), asyncio.Event()
    speaking = asyncio.create_task(_samples(gateway, has_begun))
    await has_begun.wait()
    yield speaking
    heard = await speaking
    assert len(heard) == len(unbroken)
    noise = np.mean((heard - unbroken) ** 2)
    assert noise == 0 or 10 * np.log10(np.mean(unbroken**2) / noise) >= SAME_AUDIO_DB


async def test_a_stream_goes_on_at_its_sample_after_its_only_model_process_stood_still(mortal: RunningStack) -> None:
    triton = mortal.stack.services[1]
    routing = RoutingSettings(restart_wait_s=READY_S)
    async with _gateway(mortal, routing) as gateway, _speaking_as_if_unbroken(gateway) as speaking:
        await stop_and_continue(await asyncio.to_thread(_model_processes, triton.pid), STANDSTILL_S)
        while not speaking.done():  # Triton goes on, or aborts: at once, or when its client comes back
            if triton.returncode is not None:
                await asyncio.to_thread(_start_again, mortal.stack, triton)
            await asyncio.sleep(0.1)


def _model_processes(launcher: int) -> list[int]:
    servers = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return [pid for server in servers for pid in model_processes(int(server))]


async def test_the_llm_dying_in_mid_stream_and_staying_down(mortal: RunningStack) -> None:
    llm = mortal.stack.services[0]
    async with _gateway(mortal) as gateway:
        with pytest.raises(LLMError):
            await _speak_until_dead(gateway, llm)
        wait_until(lambda: mortal.token2wav_metric("open_streams") == 0, "token2wav's release of the stream")
        with pytest.raises(LLMUnavailableError, match=mortal.options.token_url):
            await _speak_until_dead(gateway, llm)
        with pytest.raises(NotReadyError):
            await gateway.readiness.check()
    assert mortal.token2wav_metric("open_streams") == 0


async def test_a_text_goes_on_being_spoken_while_it_is_written_when_the_only_llm_is_started_again(
    mortal: RunningStack,
) -> None:
    llm = mortal.stack.services[0]
    async with _gateway(mortal, RoutingSettings()) as gateway:
        request = SpeechRequest("", seed=0, is_interleaved=True)
        session = SpeechSession(gateway.pipeline, request, pause_s=READY_S)
        session.write(LONG_TEXT)
        heard = 0
        async for audio in session.audio():
            if not heard:
                await asyncio.to_thread(_kill, llm)
                await asyncio.to_thread(_start_again, mortal.stack, llm)
                session.write("And this was written while nobody could speak.")
                session.end()
            heard += len(audio.samples)
        (result,) = session.results
        (span,) = result.spans
        assert span.segment.text.endswith("while nobody could speak.") and result.finish_reason is not None
        assert heard == result.speech_tokens * SAMPLES_PER_TOKEN
        assert isinstance(gateway.readiness.llm, RoutedSpeechLM)
        assert sum(status.failovers_total for status in gateway.readiness.llm.snapshot()) >= 1
        assert mortal.llm_metric("requests_running") == 0


async def _samples(gateway: Host, has_begun: asyncio.Event) -> FloatArray:
    """Speak a text that takes long; say when its first audio has come."""
    pieces = []
    async for audio in gateway.pipeline.synthesize(SpeechRequest(LONG_TEXT, seed=0)):
        pieces.append(audio.samples)
        if len(audio.samples):
            has_begun.set()
    return np.concatenate(pieces)
