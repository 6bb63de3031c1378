"""What streams and replicas leave in the metrics, with both services faked and time at a standstill unless told."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
import pytest

from gateway import errors
from gateway.core import AudioChunk
from gateway.speech.guard import GuardMode, GuardSettings
from gateway.speech.request import SpeechRequest
from gateway.speech.speaker import PipelineSettings, Speaker
from gateway.telemetry.call import Call, serve_call
from gateway.telemetry.metrics import GatewayMetrics, ReplicaMetrics
from gateway.telemetry.telemetry import Telemetry
from gateway.voices.registry import NamedVoice, VoiceRegistry
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, ManualClock, speech_deltas
from tests.observability.reading import Reading
from token2wav_service.contract import SAMPLE_RATE_HZ

Voices = list[NamedVoice]
UNGUARDED = GuardSettings()


class Watched:
    """A pipeline of fakes whose streams are counted."""

    def __init__(
        self,
        voices: Voices,
        llm: FakeLLM | None = None,
        token2wav: FakeToken2Wav | None = None,
        guard: GuardSettings = UNGUARDED,
    ) -> None:
        self.clock = ManualClock()
        self.telemetry = Telemetry(self.clock)
        self.llm, self.token2wav = llm or FakeLLM(speech_deltas(60)), token2wav or FakeToken2Wav()
        registry = VoiceRegistry(self.token2wav, voices)
        settings, observer = PipelineSettings(max_text_characters=100, guard=guard), self.telemetry.observer
        self.pipeline = Speaker(self.llm, self.token2wav, registry, settings, self.clock, observer=observer)

    async def speak(self, text: str = "hello", dialect: str = "openai") -> None:
        serve_call(Call(dialect))
        async with aclosing(self.pipeline.synthesize(SpeechRequest(text))) as audio:
            async for chunk in audio:
                self.heard(chunk)

    def heard(self, chunk: AudioChunk) -> None:
        """A test may move the clock here."""

    def read(self) -> Reading:
        return Reading(self.telemetry.metrics.registry)


async def test_a_stream_leaves_its_tokens_audio_and_first_audio(voices: Voices) -> None:
    watched = Watched(voices)
    await watched.speak()
    got = watched.read()
    assert got.value("requests_total", dialect="openai", outcome="completed") == 1
    assert got.value("speech_tokens_total") == 60
    assert got.value("audio_seconds_total") == pytest.approx(60 / 25)
    assert got.value("time_to_first_audio_seconds_count") == 1
    assert got.value("wasted_speech_tokens_total") == 0
    assert got.value("streams") == 0
    assert not got.above_zero("failures_total")


@pytest.mark.parametrize(("mode", "counted"), [(GuardMode.OFF, 0), (GuardMode.MEND, 1)], ids=lambda value: str(value))
async def test_segments_that_leave_their_text_are_counted(voices: Voices, mode: GuardMode, counted: int) -> None:
    watched = Watched(voices, FakeLLM(speech_deltas(3)), guard=GuardSettings(mode))
    await watched.speak("A long text that nobody can have said so soon.")
    got = watched.read()
    assert got.value("guarded_segments_total", trouble="short", outcome="heard") == counted
    assert got.value("guarded_segments_total", trouble="loop", outcome="mended") == 0


async def test_slack_and_underruns_come_from_when_chunks_leave(voices: Voices) -> None:
    watched = Watched(voices)
    serve_call(Call("openai"))
    chunks = watched.pipeline.synthesize(SpeechRequest("hello"))
    first = await anext(chunks)
    watched.clock.seconds += first.duration_s - 0.3
    second = await anext(chunks)
    await chunks.aclose()
    got = watched.read()
    assert first.duration_s > 0 and second.duration_s > 0
    assert got.value("chunk_slack_seconds_bucket", le="0.2") == 0
    assert got.value("chunk_slack_seconds_bucket", le="0.5") == 1
    assert got.value("underrun_seconds_total") == 0


async def test_audio_that_comes_after_the_listener_ran_dry_is_an_underrun(voices: Voices) -> None:
    token2wav = FakeToken2Wav(is_held=True)
    watched = Watched(voices, token2wav=token2wav)
    serve_call(Call("openai"))
    chunks = watched.pipeline.synthesize(SpeechRequest("hello"))
    durations = []
    for late_s in (0.0, 0.4):
        waiting = asyncio.ensure_future(anext(chunks))
        while not (token2wav.streams and token2wav.streams[0].pending):
            await asyncio.sleep(0)
        watched.clock.seconds += late_s + (durations[0] if durations else 0.0)
        token2wav.streams[0].answer_all()
        durations.append((await waiting).duration_s)
    await chunks.aclose()
    assert watched.read().value("underrun_seconds_total") == pytest.approx(0.4)


async def test_tokens_of_a_caller_who_left_are_wasted_as_far_as_they_were_not_heard(voices: Voices) -> None:
    watched = Watched(voices)
    serve_call(Call("elevenlabs"))
    chunks = watched.pipeline.synthesize(SpeechRequest("hello"))
    heard = await anext(chunks)
    for _ in range(100):
        await asyncio.sleep(0)
    assert watched.read().value("streams") == 1
    await chunks.aclose()
    got = watched.read()
    assert got.value("requests_total", dialect="elevenlabs", outcome="cancelled") == 1
    assert got.value("cancelled_total") == 1
    assert got.value("wasted_speech_tokens_total") == got.value("speech_tokens_total") - heard.duration_s * 25 > 0
    assert not got.above_zero("failures_total")
    assert got.value("streams") == 0


@pytest.mark.parametrize(
    ("failure", "outcome"),
    [
        pytest.param(errors.Token2WavInterruptedError("x"), "failed", id="a service fails"),
        pytest.param(errors.Token2WavBusyError("x"), "refused", id="no room"),
        pytest.param(errors.InvalidVoicePromptError("x"), "invalid", id="the caller's voice"),
    ],
)
async def test_a_failure_is_counted_by_the_code_of_its_error(
    voices: Voices, failure: errors.GatewayError, outcome: str
) -> None:
    watched = Watched(voices, token2wav=FakeToken2Wav(open_failure=failure))
    with pytest.raises(type(failure)):
        await watched.speak()
    got = watched.read()
    assert got.above_zero("failures_total") == {frozenset({("cause", failure.code)})}
    assert got.value("requests_total", dialect="openai", outcome=outcome) == 1
    assert got.value("admission_refused_total") == (1 if outcome == "refused" else 0)
    assert got.value("streams") == 0


async def test_a_failure_in_mid_stream_wastes_the_tokens_not_heard(voices: Voices) -> None:
    watched = Watched(voices, token2wav=FakeToken2Wav(fail_at=1))
    with pytest.raises(errors.Token2WavInterruptedError):
        await watched.speak()
    got = watched.read()
    spoken = got.value("audio_seconds_total") * 25
    assert 0 < spoken < got.value("speech_tokens_total")
    assert got.value("wasted_speech_tokens_total") == got.value("speech_tokens_total") - spoken


async def test_a_text_refused_before_any_service_is_asked_is_counted_once(voices: Voices) -> None:
    watched = Watched(voices)
    with pytest.raises(errors.TextTooLongError):
        await watched.speak("x" * 101)
    got = watched.read()
    assert got.value("requests_total", dialect="openai", outcome="invalid") == 1
    assert got.value("failures_total", cause="text_too_long") == 1


async def test_the_warm_up_is_nobodys_and_not_counted(voices: Voices) -> None:
    watched = Watched(voices)
    async for _ in watched.pipeline.synthesize(SpeechRequest("hello")):
        pass
    got = watched.read()
    assert not got.above_zero("requests_total")
    assert got.value("audio_seconds_total") == 0


class State(str, Enum):
    READY = "ready"
    EJECTED = "ejected"


@dataclass(frozen=True)
class Replica:
    """A router's word on one replica."""

    service: str = "token2wav"
    address: str = "a:8001"
    state: State = State.READY
    open_streams: int = 3
    free_slots: int | None = 5
    step_s: float | None = 0.03
    failures_total: int = 2
    failovers_total: int = 1


def test_each_replica_is_told_apart_states_are_counted_and_what_is_not_known_is_left_out() -> None:
    metrics = GatewayMetrics()
    sick = replace(Replica(), address="b:8001", state=State.EJECTED)
    metrics.registry.register(
        ReplicaMetrics(lambda: [Replica(), sick], lambda: [Replica("llm", "c:8000", free_slots=None)])
    )
    got = Reading(metrics.registry)
    assert got.value("replicas", service="token2wav", state="ready") == 1
    assert got.value("replicas", service="token2wav", state="ejected") == 1
    assert got.value("replicas", service="llm", state="ejected") == 0
    assert got.value("replica_free_slots", service="token2wav", replica="a:8001") == 5
    assert got.value("replica_step_seconds", service="llm", replica="c:8000") == 0.03
    assert got.value("failovers_total", service="token2wav", replica="b:8001") == 1
    assert got.value("replica_failures_total", service="token2wav", replica="b:8001") == 2
    metrics = GatewayMetrics()
    metrics.registry.register(ReplicaMetrics(lambda: [Replica("llm", "c:8000", free_slots=None)]))
    assert not Reading(metrics.registry).above_zero("replica_free_slots")


def test_each_scrape_asks_anew_and_the_gone_are_gone() -> None:
    metrics, there = GatewayMetrics(), [Replica()]
    metrics.registry.register(ReplicaMetrics(lambda: there))
    assert Reading(metrics.registry).above_zero("replica_open_streams")
    there.clear()
    assert not Reading(metrics.registry).above_zero("replica_open_streams")


@pytest.mark.parametrize(
    ("chunks", "slacks", "silence_s"),
    [
        pytest.param([(0.0, 0.4, 0.0), (0.4, 0.5, 1.0), (0.5, 0.9, 0.0)], 0, 0.0, id="first audio and empty chunks"),
        pytest.param([(0.0, 0.5, 1.0), (0.5, 0.7, 2.0), (0.7, 3.4, 1.0)], 2, 0.0, id="what is left to play adds up"),
        pytest.param([(0.0, 0.0, 1.0), (0.0, 1.3, 1.0), (1.3, 2.2, 1.0)], 2, 0.3, id="an underrun moves the end"),
        pytest.param([(0.0, 0.0, 1.0), (5.0, 5.1, 1.0)], 1, 0.1, id="who asks late waits from then on"),
    ],
)
async def test_a_listener_hears_silence_where_a_chunk_comes_after_the_audio_before_it(
    chunks: list[tuple[float, float, float]], slacks: int, silence_s: float
) -> None:
    """Each chunk: when it was asked for, when it came, and its length."""
    clock = ManualClock()
    telemetry = Telemetry(clock)
    serve_call(Call("openai"))
    stream = telemetry.observer.begin("a")
    for index, (asked_s, came_s, audio_s) in enumerate(chunks):
        clock.seconds = asked_s
        stream.asked()
        clock.seconds = came_s
        stream.heard(AudioChunk(index, np.zeros(round(audio_s * SAMPLE_RATE_HZ), np.float32), False))
    got = Reading(telemetry.metrics.registry)
    assert got.value("chunk_slack_seconds_count") == slacks
    assert got.value("underrun_seconds_total") == pytest.approx(silence_s)
