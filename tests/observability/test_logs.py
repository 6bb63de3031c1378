"""Lines of JSON, and spans over all services."""

from __future__ import annotations

import json
import logging
import sys
from contextlib import aclosing
from contextvars import copy_context
from datetime import datetime
from typing import Any

import grpc
import numpy as np
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tts_api.tts.v1 import tts_service_pb2, tts_service_pb2_grpc

from gateway import errors
from gateway.core import Sampling, Utterance
from gateway.speech.request import SpeechRequest
from gateway.speech.speaker import Speaker
from gateway.telemetry.call import Call, note_trace, serve_call
from gateway.telemetry.telemetry import Telemetry
from gateway.voices.registry import NamedVoice, VoiceRegistry
from servicekit.clock import SystemClock
from servicekit.logs import JsonFormatter, LogFormat, first_line, log_format_of
from servicekit.tracing import (
    NULL_SPAN,
    NULL_TRACER,
    TRACEPARENT,
    Span,
    Tracer,
    TracingUnavailableError,
    endpoint_of,
    open_tracer,
    trace_headers,
)
from tests.gateway.access.door import BEARER, KEY, opened_door
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, speech_deltas
from token2wav_service.serving.metrics import NO_TRACE, begin_trace
from token2wav_service.types import AudioChunk, ChunkTiming, StreamStatus, StreamSummary, TokenChunk


def record(message: str, *arguments: object, **facts: object) -> logging.LogRecord:
    made = logging.LogRecord("gateway.speech.speaker", logging.WARNING, __file__, 1, message, arguments, None)
    made.__dict__.update(facts)
    return made


def written(made: logging.LogRecord) -> dict[str, str]:
    line = JsonFormatter().format(made)
    assert "\n" not in line
    read: dict[str, str] = json.loads(line)
    return read


def test_a_line_has_its_facts_and_no_others() -> None:
    line = written(record("stream %s said\n%s", "s1", "“ja”", stream_id="s1", request_id=None, secret="key"))
    assert datetime.fromisoformat(line.pop("time")).tzinfo is not None
    assert line == {
        "level": "WARNING",
        "logger": "gateway.speech.speaker",
        "message": "stream s1 said\n“ja”",
        "stream_id": "s1",
    }


def test_an_error_brings_its_traceback() -> None:
    made = record("it failed")
    try:
        raise ValueError("why")
    except ValueError:
        made.exc_info = sys.exc_info()
    assert "ValueError: why" in written(made)["error"]


class Traced(Span):
    @property
    def trace_id(self) -> str:
        return "ab" * 16


def test_lines_of_a_traced_call_name_its_trace() -> None:
    inside, outside = record("x"), record("x")

    def serve() -> None:
        serve_call(Call("openai", Traced()))
        assert note_trace(inside)

    copy_context().run(serve)
    assert note_trace(outside)
    assert written(inside)["trace_id"] == "ab" * 16
    assert "trace_id" not in written(outside)


def test_the_environment_chooses_the_format_and_a_mistake_is_told() -> None:
    assert log_format_of({}) is LogFormat.TEXT
    assert log_format_of({"COSYDIT_LOG_FORMAT": "json"}) is LogFormat.JSON
    with pytest.raises(ValueError, match="text or json"):
        log_format_of({"COSYDIT_LOG_FORMAT": "yaml"})


def test_an_error_is_named_on_one_line() -> None:
    assert first_line(RuntimeError("CUDA error: no driver\nSearch for it elsewhere")) == "CUDA error: no driver"
    assert first_line(RuntimeError()) == "RuntimeError"


Voices = list[NamedVoice]
TRACE, PARENT = "ab" * 16, "cd" * 8
FROM_CLIENT = f"00-{TRACE}-{PARENT}-01"


class Memory:
    """A tracer and what it has recorded."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracer = Tracer("test", SimpleSpanProcessor(self._exporter))

    @property
    def spans(self) -> list[ReadableSpan]:
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, name: str) -> ReadableSpan:
        (span,) = [span for span in self.spans if span.name == name]
        return span


def parent_name(memory: Memory, span: ReadableSpan) -> str | None:
    return next((s.name for s in memory.spans if span.parent and s.context.span_id == span.parent.span_id), None)


class ListeningLLM(FakeLLM):
    """Keeps which headers its request would have carried."""

    headers: dict[str, str]

    async def generate(self, utterance: Utterance, sampling: Sampling, seed: int) -> Any:
        self.headers = trace_headers()
        async with aclosing(super().generate(utterance, sampling, seed)) as deltas:
            async for delta in deltas:
                yield delta


async def test_a_call_is_one_trace_down_to_each_chunk(voices: Voices) -> None:
    memory, llm = Memory(), ListeningLLM(speech_deltas(60))
    async with opened_door(voices, llm=llm, telemetry=Telemetry(SystemClock(), memory.tracer)) as door:
        assert (await door.speak({**BEARER, TRACEPARENT: FROM_CLIENT})).status_code == 200
    call = memory.named("POST /v1/audio/speech")
    assert call.parent is not None and f"{call.parent.span_id:016x}" == PARENT
    assert {f"{span.context.trace_id:032x}" for span in memory.spans} == {TRACE}
    assert parent_name(memory, memory.named("speech")) == "POST /v1/audio/speech"
    for name in ("llm.generate", "token2wav.stream"):
        assert parent_name(memory, memory.named(name)) == "speech"
    chunks = [span for span in memory.spans if span.name == "chunk"]
    assert len(chunks) == len(door.token2wav.streams[0].chunks) > 1
    assert [span.attributes["index"] for span in chunks if span.attributes] == list(range(len(chunks)))
    generate = memory.named("llm.generate").context
    assert llm.headers == {TRACEPARENT: f"00-{TRACE}-{generate.span_id:016x}-01"}
    assert trace_headers() == {}, "nothing is left behind in the caller's context"


async def test_a_grpc_caller_s_trace_goes_on(voices: Voices) -> None:
    memory = Memory()
    async with opened_door(voices, telemetry=Telemetry(SystemClock(), memory.tracer)) as door:
        stub = tts_service_pb2_grpc.TextToSpeechServiceStub(door.channel)
        metadata = (("authorization", f"Bearer {KEY}"), (TRACEPARENT, FROM_CLIENT))
        call = stub.Synthesize(tts_service_pb2.SynthesizeRequest(text="hello"), metadata=metadata, timeout=10)
        assert [message async for message in call]
        with pytest.raises(grpc.aio.AioRpcError):
            async for _ in stub.Synthesize(tts_service_pb2.SynthesizeRequest(text=""), metadata=metadata, timeout=10):
                pass
    assert {f"{span.context.trace_id:032x}" for span in memory.spans} == {TRACE}
    assert len([span for span in memory.spans if span.name == "speech"]) == 1
    failed = [span for span in memory.spans if span.name.endswith("/Synthesize") and not span.status.is_ok]
    assert len(failed) == 1


@pytest.mark.parametrize("end", ["failed", "cancelled"])
async def test_every_span_of_a_stream_that_breaks_off_is_ended(voices: Voices, end: str) -> None:
    memory = Memory()
    llm, token2wav = FakeLLM(speech_deltas(60)), FakeToken2Wav(fail_at=1 if end == "failed" else None)
    telemetry = Telemetry(SystemClock(), memory.tracer)
    observer = telemetry.observer
    pipeline = Speaker(llm, token2wav, VoiceRegistry(token2wav, voices), observer=observer)
    call = Call("openai", memory.tracer.begin("call", None))
    serve_call(call)
    chunks = pipeline.synthesize(SpeechRequest("hello"))
    await anext(chunks)
    if end == "failed":
        with pytest.raises(errors.Token2WavInterruptedError):
            await anext(chunks)
    await chunks.aclose()
    call.span.end()
    names = [span.name for span in memory.spans]
    assert {"call", "speech", "token2wav.stream", "llm.generate", "chunk"} <= set(names)
    speech = memory.named("speech")
    assert speech.attributes is not None and speech.attributes["outcome"] == end
    assert speech.status.is_ok is (end == "cancelled")


async def test_a_call_that_is_not_sampled_leaves_nothing(voices: Voices) -> None:
    memory = Memory()
    async with opened_door(voices, telemetry=Telemetry(SystemClock(), memory.tracer)) as door:
        await door.speak({**BEARER, TRACEPARENT: f"00-{TRACE}-{PARENT}-00"})
    assert memory.spans == []


def test_token2wav_s_spans_are_the_engine_s_own_times() -> None:
    memory = Memory()
    trace = begin_trace(memory.tracer, FROM_CLIENT)
    chunk = TokenChunk("s", 0, tuple(range(18)), True)
    samples = np.zeros(24000, np.float32)
    trace.chunk(chunk, AudioChunk("s", 0, samples, True, ChunkTiming(1.0, 1.25, 1.75, batch_size=4)))
    trace.end(StreamSummary("s", "v", 0, StreamStatus.FINISHED, [18], 24000))
    durations = {s.name: ((s.end_time or 0) - (s.start_time or 0)) / 1e9 for s in memory.spans}
    assert durations["chunk"] == pytest.approx(0.75)
    assert (durations["queue"], durations["step"]) == (pytest.approx(0.25), pytest.approx(0.5))
    assert parent_name(memory, memory.named("step")) == "chunk"
    assert parent_name(memory, memory.named("chunk")) == "token2wav.stream"
    step = memory.named("step")
    assert step.attributes == {"batch_size": 4}


def test_without_a_receiver_or_a_caller_s_trace_nothing_is_made() -> None:
    assert open_tracer("x", None) is NULL_TRACER
    assert NULL_TRACER.begin("x", FROM_CLIENT) is NULL_SPAN
    assert begin_trace(NULL_TRACER, FROM_CLIENT) is NO_TRACE
    assert begin_trace(Memory().tracer, None) is NO_TRACE
    assert endpoint_of({}) is None


def test_without_opentelemetry_a_receiver_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", None)
    with pytest.raises(TracingUnavailableError, match=r"\[tracing\]"):
        open_tracer("x", "http://127.0.0.1:1")
