"""Checks of the whole system, started as `cosydit serve` starts it: one sentence through every door."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import grpc
import httpx
import numpy as np
import numpy.typing as npt
from riva.proto import riva_tts_pb2, riva_tts_pb2_grpc
from tts_api.tts.v1 import speech_pb2, tts_service_pb2, tts_service_pb2_grpc
from websockets.asyncio.client import connect
from wyoming.audio import AudioChunk
from wyoming.client import AsyncTcpClient
from wyoming.tts import Synthesize, SynthesizeVoice

from cosydit.bench.doors import DoorOptions, SpeechJob, TritonStreamDoor
from cosydit.bench.types import SpeechInput
from cosydit.certify.audio_faults import find_faults
from cosydit.certify.check import Check, CheckFailedError, Findings
from cosydit.certify.context import TEXTS, VOICE, CheckContext, keep_audio
from cosydit.cli.stack_options import choice_lines, gpu_shared
from cosydit.stack.host import find_host, for_host, with_served_form
from cosydit.stack.stack import PORT_COUNT, LocalStack, Ports, StackOptions
from llm_service.vocab import SPEECH_TOKENS_PER_SECOND
from servicekit.gpu_host import AUTO
from servicekit.timeouts import timeout
from token2wav_service.contract import SAMPLE_RATE_HZ

AREA = "end-to-end"
PAGE = "troubleshooting.md"
STACK = "stack"
"""Name for `shares` of all checks that need the whole system."""
READY_TIMEOUT_S = 600.0
TIMEOUT_S = 120.0
TEXT, SHORT_TEXT = TEXTS[0], "The boat crossed the bay."
LEAST_TOKENS_A_LETTER, MOST_TOKENS_A_LETTER = 0.7, 4.0
"""Bounds of 25 Hz speech tokens for each letter; English takes about 1.6."""
LONGEST_SILENCE_S = 1.5
LARGEST_SILENT_SHARE = 0.6
LARGEST_CLIPPED_SHARE = 0.001
LEAST_SECONDS = 0.2
_PCM16_SCALE = 32768.0
_ONE_CALLER = {"BLS_INSTANCE_NUM": "1"}
_MAX_MESSAGE = 1 << 24

FloatArray = npt.NDArray[np.float32]
# The stubs have no types.
_tts_stub: Callable[[Any], Any] = tts_service_pb2_grpc.TextToSpeechServiceStub
_riva_stub: Callable[[Any], Any] = riva_tts_pb2_grpc.RivaSpeechSynthesisStub


@dataclass(frozen=True)
class RunningStack:
    """The services and where their doors are."""

    stack: LocalStack
    ready_s: float
    wyoming_port: int
    chosen: list[str]
    """Settings chosen for this host, a line each."""

    @property
    def options(self) -> StackOptions:
        """What runs and where."""
        return self.stack.options


Door = Callable[[RunningStack, str], AsyncIterator[bytes]]
"""Speaks a text; yields 16-bit PCM at 24 kHz as it comes."""


def checks() -> list[Check]:
    """Return the checks of this area."""
    start = Check(AREA, "start", check_start, PAGE, READY_TIMEOUT_S + TIMEOUT_S, STACK)
    pages = {"triton": "api/triton.md", "grpc": "api/grpc.md", "riva": "api/grpc.md", "wyoming": "smart-home.md"}
    doors = [
        Check(AREA, name, partial(check_door, name=name, door=door), pages.get(name, "api/index.md"), shares=STACK)
        for name, door in DOORS.items()
    ]
    return [start, *(replace(each, timeout_s=READY_TIMEOUT_S + TIMEOUT_S) for each in doors)]


def running(context: CheckContext) -> RunningStack:
    """Return the whole system, started by the first check that asks."""
    return context.shared(STACK, partial(_started, context))


def check_start(context: CheckContext, found: Findings) -> None:
    """All services become ready."""
    started = running(context)
    found.tell("ready after", started.ready_s, "s")
    for line in [*started.chosen, *started.stack.describe()]:
        found.note(line)


def check_door(context: CheckContext, found: Findings, name: str, door: Door) -> None:
    """One sentence: when its first audio comes, how long it is, and whether anything is wrong with it."""
    started = running(context)
    text = SHORT_TEXT if context.plan.is_short else TEXT
    if not context.plan.is_short:
        asyncio.run(_spoken(door, started, text))  # what the first request of a door loads is not its speed
    ttfa_s, total_s, samples = asyncio.run(_spoken(door, started, text))
    keep_audio(context, found, f"door-{name}", samples)
    judge_audio(context, found, text, samples)
    found.tell("time to first audio", 1000 * ttfa_s, "ms")
    found.tell("seconds spent a second of audio", total_s / (len(samples) / SAMPLE_RATE_HZ))


def judge_audio(context: CheckContext, found: Findings, text: str, samples: FloatArray) -> None:
    """Keep what is wrong with the audio of a text; of random weights only its length and clipping say anything."""
    seconds = len(samples) / SAMPLE_RATE_HZ
    found.at_least("audio", seconds, LEAST_SECONDS, "s")
    faults = find_faults(samples, SAMPLE_RATE_HZ)
    letters = sum(map(str.isalnum, text))
    rate = seconds * SPEECH_TOKENS_PER_SECOND / letters
    if not context.plan.is_audible:
        found.tell("tokens a letter", rate)
        found.tell("clipped samples", faults.clipped_samples)
        return
    found.at_least("tokens a letter", rate, LEAST_TOKENS_A_LETTER)
    found.at_most("tokens a letter", rate, MOST_TOKENS_A_LETTER)
    found.at_most("longest silence", faults.longest_silence_s, LONGEST_SILENCE_S, "s")
    found.at_most("silent share", faults.silent_share, LARGEST_SILENT_SHARE)
    found.at_most("clipped share", faults.clipped_samples / len(samples), LARGEST_CLIPPED_SHARE)


@contextmanager
def _started(context: CheckContext) -> Iterator[RunningStack]:
    *ports, wyoming_port = context.ports(PORT_COUNT + 1)
    host = find_host(context.plan.device)
    options = StackOptions(
        checkpoint=context.checkpoint,
        work_dir=context.scratch("stack"),
        ports=Ports(*ports),
        settings={**(_ONE_CALLER if context.plan.is_short else {}), **context.plan.settings},
        ready_timeout_s=READY_TIMEOUT_S,
        llm_backend=AUTO,
        gateway_options=("--wyoming-port", str(wyoming_port)),
    )
    options = with_served_form(for_host(options, host))
    stack = LocalStack(options, with_gateway=True)
    began = time.perf_counter()
    try:
        with gpu_shared(options, host) as mps, stack:
            for service in stack.services:
                context.started(service.pid)
            yield RunningStack(stack, time.perf_counter() - began, wyoming_port, choice_lines(options, host, mps))
    finally:
        _keep_logs(context, options)


def _keep_logs(context: CheckContext, options: StackOptions) -> None:
    """Copy the services' logs, whose folder goes away, to the certificate's."""
    context.log_dir.mkdir(parents=True, exist_ok=True)
    for path in options.log_dir.glob("*.log"):
        (context.log_dir / f"stack_{path.name}").write_bytes(path.read_bytes())


async def _spoken(door: Door, started: RunningStack, text: str) -> tuple[float, float, FloatArray]:
    """Return seconds to the first audio, seconds to the last, and the samples [N]."""
    began = time.perf_counter()
    pieces: list[bytes] = []
    first_s = 0.0

    async def listen() -> None:
        nonlocal first_s
        async for pcm in door(started, text):
            if pcm and not pieces:
                first_s = time.perf_counter() - began
            pieces.append(pcm)

    async with timeout(TIMEOUT_S):
        await listen()
    total_s = time.perf_counter() - began
    if not any(pieces):
        raise CheckFailedError("the answer ended without any audio; see the services' logs")
    return first_s, total_s, np.frombuffer(b"".join(pieces), "<i2").astype(np.float32) / _PCM16_SCALE


async def _openai(started: RunningStack, text: str) -> AsyncIterator[bytes]:
    body = {"model": "cosydit", "input": text, "voice": VOICE, "response_format": "pcm", "seed": 1}
    async for pcm in _posted(f"{started.options.gateway_url}/v1/audio/speech", body):
        yield pcm


async def _elevenlabs(started: RunningStack, text: str) -> AsyncIterator[bytes]:
    url = f"{started.options.gateway_url}/v1/text-to-speech/{VOICE}/stream?output_format=pcm_24000"
    async for pcm in _posted(url, {"text": text, "seed": 1}):
        yield pcm


async def _posted(url: str, body: dict[str, Any]) -> AsyncIterator[bytes]:
    async with (
        httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False) as client,
        client.stream("POST", url, json=body) as response,
    ):
        if response.status_code != httpx.codes.OK:
            raise CheckFailedError(f"{url} answered {response.status_code}: {(await response.aread())[:300]!r}")
        async for pcm in response.aiter_bytes():
            yield pcm


async def _speech_socket(started: RunningStack, text: str) -> AsyncIterator[bytes]:
    messages = (
        {"type": "session.config", "voice": VOICE, "response_format": "pcm", "stream_audio": True},
        {"type": "input.text", "text": text},
        {"type": "input.done"},
    )
    async for answer in _socket_answers(started, "/v1/audio/speech/stream", messages):
        if isinstance(answer, bytes):
            yield answer
        elif answer.get("type") == "error":
            raise CheckFailedError(str(answer))
        elif answer.get("type") == "session.done":
            return


async def _elevenlabs_socket(started: RunningStack, text: str) -> AsyncIterator[bytes]:
    path = f"/v1/text-to-speech/{VOICE}/stream-input?output_format=pcm_24000"
    messages = ({"text": " "}, {"text": f"{text} ", "flush": True}, {"text": ""})
    async for answer in _socket_answers(started, path, messages):
        if isinstance(answer, dict) and answer.get("audio"):
            yield base64.b64decode(answer["audio"])
        if isinstance(answer, dict) and answer.get("isFinal"):
            return


async def _socket_answers(
    started: RunningStack, path: str, messages: tuple[dict[str, Any], ...]
) -> AsyncIterator[bytes | dict[str, Any]]:
    url = f"ws{started.options.gateway_url.removeprefix('http')}{path}"
    async with connect(url, proxy=None, max_size=_MAX_MESSAGE) as socket:
        for message in messages:
            await socket.send(json.dumps(message))
        async for raw in socket:
            yield raw if isinstance(raw, bytes) else json.loads(raw)


async def _grpc(started: RunningStack, text: str) -> AsyncIterator[bytes]:
    config = speech_pb2.SpeechConfig(voice=speech_pb2.Voice(name=VOICE))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{started.options.ports.gateway_grpc}") as channel:
        async for answer in _tts_stub(channel).Synthesize(tts_service_pb2.SynthesizeRequest(text=text, config=config)):
            yield bytes(answer.audio.content)


async def _riva(started: RunningStack, text: str) -> AsyncIterator[bytes]:
    request = riva_tts_pb2.SynthesizeSpeechRequest(text=text, voice_name=VOICE, sample_rate_hz=SAMPLE_RATE_HZ)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{started.options.ports.gateway_grpc}") as channel:
        async for answer in _riva_stub(channel).SynthesizeOnline(iter([request])):
            yield bytes(answer.audio)


async def _wyoming(started: RunningStack, text: str) -> AsyncIterator[bytes]:
    async with AsyncTcpClient("127.0.0.1", started.wyoming_port) as client:
        await client.write_event(Synthesize(text=text, voice=SynthesizeVoice(name=VOICE)).event())
        while (event := await client.read_event()) is not None and event.type != "audio-stop":
            if event.type == "error":
                raise CheckFailedError(str(event.data))
            if AudioChunk.is_type(event.type):
                yield AudioChunk.from_event(event).audio


async def _triton(started: RunningStack, text: str) -> AsyncIterator[bytes]:
    heard: list[FloatArray] = []
    options = DoorOptions(started.options.token2wav_url, TIMEOUT_S, lambda _, samples: heard.append(samples))
    door = TritonStreamDoor(options)
    try:
        async for _ in door.speak(SpeechJob(SpeechInput("certify", text), None), "certify"):
            for samples in heard:
                yield (np.clip(samples, -1, 1) * (_PCM16_SCALE - 1)).astype("<i2").tobytes()
            heard.clear()
    finally:
        await door.close()


DOORS: dict[str, Door] = {
    "openai": _openai,
    "elevenlabs": _elevenlabs,
    "speech-socket": _speech_socket,
    "elevenlabs-socket": _elevenlabs_socket,
    "grpc": _grpc,
    "riva": _riva,
    "wyoming": _wyoming,
    "triton": _triton,
}
