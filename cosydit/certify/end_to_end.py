"""Checks of the whole system, started as `cosydit serve` starts it: a sentence through each protocol, then listeners.

A door's function speaks one text and hands on its audio, 16-bit PCM at 24 kHz, as it comes.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Any

import grpc
import numpy as np
from tts_api.tts.v1 import speech_pb2, tts_service_pb2, tts_service_pb2_grpc

from cosydit.bench.doors import PIECES_OF_A_CHUNK_S, HttpDoor, PreparedRequest
from cosydit.bench.inputs import read_samples
from cosydit.bench.load import LoadGenerator, LoadPlan
from cosydit.bench.metrics import summarize
from cosydit.bench.types import LoadResult, SpeechInput
from cosydit.certify.check import TEXTS, VOICE, CheckContext, CheckFailedError, Findings, NotRunError
from cosydit.certify.recognition import RATE_HZ, FloatArray, SphinxRecogniser, keep_audio, words_of
from cosydit.cli.stack_options import choice_lines, gpu_shared
from cosydit.stack.host import find_host, for_host, with_served_form
from cosydit.stack.stack import PORT_COUNT, LocalStack, Ports, StackOptions
from gateway.client import OnAudio, speak_over_http, speak_over_triton
from llm_service.vocab import SPEECH_TOKENS_PER_SECOND
from servicekit.clock import SystemClock
from servicekit.gpu_host import AUTO
from token2wav_service.contract import SAMPLE_RATE_HZ
from token2wav_service.features.audio import resample
from token2wav_service.serving.process.server import free_ports

READY_TIMEOUT_S, TIMEOUT_S, LEAST_SECONDS = 600.0, 120.0, 0.2
LEAST_TOKENS_A_LETTER, MOST_TOKENS_A_LETTER = 0.5, 6.0
"""Bounds of 25 Hz speech tokens for each letter that no speech passes; English takes about 1.6."""
_tts_stub: Callable[[Any], Any] = tts_service_pb2_grpc.TextToSpeechServiceStub  # the stubs have no types
ROUND = 4
"""Requests of each listener between two looks at the time."""
KEPT_AUDIO = 5
LEAST_WORDS = 0.5
"""Share of the words that must be understood: the recogniser understands three quarters and more of the demo voice's
words, and none of noise."""
_JOBS = [PreparedRequest(SpeechInput(f"text-{number}", text), None) for number, text in enumerate(TEXTS)]


def running(context: CheckContext) -> LocalStack:
    """Return the whole system, started by the first check that asks."""
    return context.shared("the whole system", partial(_started, context))


def check_start(context: CheckContext, found: Findings) -> None:
    """All services become ready."""
    began_s = time.perf_counter()
    stack = running(context)
    found.tell("ready after", time.perf_counter() - began_s, "s")
    found.notes += [*choice_lines(stack.options, find_host(context.plan.device), None), *stack.describe()]


def check_door(context: CheckContext, found: Findings, name: str) -> None:
    """One sentence: when its first audio comes, how long it is, and whether it is speech."""
    options = running(context).options
    _timed(name, options)  # what the first request of a door loads is not its speed
    ttfa_s, total_s, samples = _timed(name, options)
    keep_audio(context, found, f"door-{name}", samples)
    seconds = len(samples) / SAMPLE_RATE_HZ
    found.tell("time to first audio", 1000 * ttfa_s, "ms")
    found.tell("audio", seconds, "s", least=LEAST_SECONDS)
    found.tell("seconds spent a second of audio", total_s / seconds)
    if context.plan.is_audible:
        rate = seconds * SPEECH_TOKENS_PER_SECOND / sum(map(str.isalnum, TEXTS[0]))
        found.tell("tokens a letter", rate, least=LEAST_TOKENS_A_LETTER, most=MOST_TOKENS_A_LETTER)


def check_words(context: CheckContext, found: Findings) -> None:
    """A recogniser understands the bundled sentences; only of weights that were trained."""
    if not context.plan.is_audible:
        raise NotRunError("the weights are random and speak noise; give the official ones with --checkpoint")
    recogniser, options = SphinxRecogniser(), running(context).options
    words, understood = 0, 0
    for seed, row in enumerate(read_samples()):
        pieces: list[bytes] = []
        speak_over_http(options.gateway_url, row.text, VOICE, pieces.append, SystemClock(), TIMEOUT_S, seed)
        samples = _samples_of(pieces)
        heard = recogniser.transcribe(resample(samples, SAMPLE_RATE_HZ, RATE_HZ))
        said = Counter(words_of(row.text))
        words, understood = words + said.total(), understood + (said & Counter(words_of(heard))).total()
        found.notes.append(f"{row.text} -> {heard}")
        if seed < KEPT_AUDIO:
            keep_audio(context, found, f"sentence-{row.utt}", samples)
    found.tell("share of words understood", understood / words, least=LEAST_WORDS)


def check_load(context: CheckContext, found: Findings) -> None:
    """Listeners ask again and again, and nothing fails."""
    result = asyncio.run(_under_load(running(context).options.gateway_url, context))
    told = summarize(result)
    found.tell("listeners", context.plan.load_streams)
    found.tell("seconds", result.wall_s, "s")
    found.tell("answers", told.requests - told.failures, least=1)
    found.tell("failed answers", told.failures, most=0)
    found.notes += [str(record.error)[:300] for record in result.records if not record.is_ok][:3]
    if told.ttfa_s is not None:
        for percent in (50, 95):
            found.tell(f"time to first audio, {percent} %", 1000 * told.ttfa_s.percentiles[percent], "ms")


async def _under_load(url: str, context: CheckContext) -> LoadResult:
    """Ask until the time is over or a request has failed."""
    listeners, result, began_s = context.plan.load_streams, LoadResult([], [], 0.0), time.perf_counter()
    async with aclosing(HttpDoor(url, TIMEOUT_S, VOICE)) as door:
        load = LoadGenerator(door.speak, lambda job: job.input.utt, SystemClock(), PIECES_OF_A_CHUNK_S)
        while result.wall_s < context.plan.load_s and all(record.is_ok for record in result.records):
            records = (await load.run(_JOBS, LoadPlan(listeners, ROUND * listeners), lambda _: None)).records
            result = LoadResult(result.records + records, [], time.perf_counter() - began_s)
    return result


@contextmanager
def _started(context: CheckContext) -> Iterator[LocalStack]:
    host = find_host(context.plan.device)
    options = StackOptions(
        checkpoint=context.checkpoint,
        work_dir=context.plan.work_dir / "certify",
        ports=Ports(*free_ports(PORT_COUNT)),
        settings=context.plan.settings,
        ready_timeout_s=READY_TIMEOUT_S,
        llm_backend=AUTO,
        gateway={"wyoming_port": "0"},
    )
    options = with_served_form(for_host(options, host))
    stack = LocalStack(options, with_gateway=True)
    with gpu_shared(options, host), stack:
        yield stack


def _timed(name: str, options: StackOptions) -> tuple[float, float, FloatArray]:
    """Return seconds to the first audio, seconds to the last, and the samples [N]."""
    began = time.perf_counter()
    told: list[tuple[float, bytes]] = []
    DOORS[name](options, lambda pcm: told.append((time.perf_counter() - began, pcm)))
    total_s = time.perf_counter() - began
    heard = [(at_s, pcm) for at_s, pcm in told if pcm]
    if not heard:
        raise CheckFailedError("the answer ended without any audio; see the services' logs")
    return heard[0][0], total_s, _samples_of([pcm for _, pcm in heard])


def _samples_of(pieces: list[bytes]) -> FloatArray:
    """Return 16-bit PCM as samples [N] in +-1."""
    return np.frombuffer(b"".join(pieces), "<i2").astype(np.float32) / 32768


def _openai(options: StackOptions, hear: OnAudio) -> None:
    speak_over_http(options.gateway_url, TEXTS[0], VOICE, hear, SystemClock(), TIMEOUT_S, seed=1)


def _grpc(options: StackOptions, hear: OnAudio) -> None:
    config = speech_pb2.SpeechConfig(voice=speech_pb2.Voice(name=VOICE))
    request = tts_service_pb2.SynthesizeRequest(text=TEXTS[0], config=config)
    with grpc.insecure_channel(f"127.0.0.1:{options.ports.gateway_grpc}") as channel:
        for answer in _tts_stub(channel).Synthesize(request, timeout=TIMEOUT_S):
            hear(answer.audio.content)


def _triton(options: StackOptions, hear: OnAudio) -> None:
    speak_over_triton(options.token2wav_url, TEXTS[0], None, None, hear, SystemClock(), TIMEOUT_S)


DOORS: dict[str, Callable[[StackOptions, OnAudio], None]] = {"openai": _openai, "grpc": _grpc, "triton": _triton}
"""The three protocols that the services and the drop-in model have; the other doors are the gateway's own code."""
