"""The drop-in entry against fakes of Triton and of the pipeline: tensors in, waveform out, one FINAL each."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from gateway.core import AudioChunk, InlineVoice
from gateway.dialects.cosyvoice2_dit import drop_in
from gateway.errors import GatewayError, LLMUnavailableError, TextTooLongError, UnsupportedOptionError
from gateway.speech.request import SpeechRequest
from gateway.text import WHOLE_TEXT, TextOptions, plain_front_end
from gateway.text.styles import Style, StyleRule
from tests import ROOT
from tests.token2wav_service.serving.fakes import FakePbUtils, FakeRequest

WAIT_S = 10.0


class FakePipeline:
    """Speaks three chunks of two samples, the second chunk empty; `hold` keeps it from ending."""

    def __init__(self) -> None:
        self.requests: list[SpeechRequest] = []
        self.error: GatewayError | None = None
        self.hold = False
        self.running = 0
        self.began = threading.Semaphore(0)

    async def synthesize(self, request: SpeechRequest) -> AsyncGenerator[AudioChunk, None]:
        self.requests.append(request)
        self.running += 1
        self.began.release()
        try:
            yield AudioChunk(0, np.array([0.1, 0.2], np.float32), False)
            yield AudioChunk(1, np.zeros(0, np.float32), False)
            while self.hold:
                await asyncio.sleep(0.001)
            if self.error is not None:
                raise self.error
            yield AudioChunk(2, np.array([0.3, 0.4], np.float32), True)
        finally:
            self.running -= 1


class Harness:
    """Both kinds of the model on one fake pipeline."""

    def __init__(self, max_requests: int = 8, default_voice: str | None = "default") -> None:
        self.pipeline = FakePipeline()
        self.is_closed = False
        pb_utils = FakePbUtils()
        self.runner = drop_in.PipelineRunner(self._open)
        parts = (pb_utils, self.runner, drop_in.SpeechRequests(pb_utils, default_voice))
        self.streaming = drop_in.StreamingModel(*parts, max_requests=max_requests)
        self.whole = drop_in.WholeModel(*parts)
        self.streaming.cancel_poll_interval_s = self.whole.cancel_poll_interval_s = 0.002

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[FakePipeline]:
        yield self.pipeline
        self.is_closed = True

    def ask(self, request: FakeRequest) -> FakeRequest:
        self.streaming.execute([request])
        assert request.sender.done.wait(WAIT_S)
        assert request.sender.finals == 1
        return request

    def close(self) -> None:
        if not self.is_closed:
            self.runner.close()


@pytest.fixture
def harness() -> Iterator[Harness]:
    made = Harness()
    yield made
    made.close()


def speech_request(parameters: dict[str, Any] | None = None, **changes: Any) -> FakeRequest:
    tensors = {
        "reference_wav": np.arange(8, dtype=np.float32)[None] / 10,
        "reference_wav_len": np.array([[8]], np.int32),
        "reference_text": np.array([[b"hello"]], np.object_),
        "target_text": np.array([["你好".encode()]], np.object_),
    } | changes
    given = {name: value for name, value in tensors.items() if value is not None}
    return FakeRequest(given, json.dumps(parameters or {}))


def test_chunks_stream_with_the_batch_dimension_and_an_empty_final(harness: Harness) -> None:
    answer = harness.ask(speech_request())
    waves = [response.named()["waveform"] for response in answer.sender.sent]
    assert [wave.shape for wave in waves] == [(1, 2), (1, 2)]
    assert waves[1].tolist() == [[pytest.approx(0.3), pytest.approx(0.4)]]


def test_the_original_tensors_become_a_speech_request(harness: Harness) -> None:
    harness.ask(speech_request())
    (request,) = harness.pipeline.requests
    assert request.text == "你好"
    assert isinstance(request.voice, InlineVoice)
    assert request.voice.transcript == "hello"
    assert len(request.voice.audio) == 8


def test_reference_wav_len_trims_the_padding(harness: Harness) -> None:
    harness.ask(speech_request(reference_wav_len=np.array([[3]], np.int32)))
    voice = harness.pipeline.requests[0].voice
    assert isinstance(voice, InlineVoice)
    np.testing.assert_allclose(np.asarray(voice.audio), [0.0, 0.1, 0.2])


def test_without_a_reference_the_default_voice_speaks(harness: Harness) -> None:
    harness.ask(speech_request(reference_wav=None, reference_wav_len=None, reference_text=None))
    assert harness.pipeline.requests[0].voice == "default"


def test_priority_class_and_seed_reach_the_pipeline(harness: Harness) -> None:
    harness.ask(speech_request({"priority_class": 2, "seed": "17"}))
    (request,) = harness.pipeline.requests
    assert (request.priority, request.seed) == (2, 17)


def test_a_style_reaches_the_pipeline(harness: Harness) -> None:
    harness.ask(speech_request({"style": "happy"}))
    harness.ask(speech_request())
    asked, plain = (request.text_options.style for request in harness.pipeline.requests)
    assert asked is not None and (asked.words, plain) == ("happy", None)


def test_a_style_is_refused_where_the_checkpoint_takes_none() -> None:
    options = TextOptions(style=Style("happy"))
    plain_front_end(styles=StyleRule(is_declared=True, refuses=True)).open(options, WHOLE_TEXT)
    with pytest.raises(UnsupportedOptionError, match="got style, but this checkpoint takes no instructions"):
        plain_front_end(styles=StyleRule(refuses=True)).open(options, WHOLE_TEXT)


def test_a_cancelled_request_stops_the_work(harness: Harness) -> None:
    harness.pipeline.hold = True
    request = speech_request()
    harness.streaming.execute([request])
    assert harness.pipeline.began.acquire(timeout=WAIT_S)
    request.sender.cancelled = True
    assert request.sender.done.wait(WAIT_S)
    assert request.sender.error().startswith("CANCELLED: ")
    assert harness.pipeline.running == 0


def test_execute_returns_only_when_there_is_room_for_another_request() -> None:
    harness = Harness(max_requests=1)
    harness.pipeline.hold = True
    first, second = speech_request(), speech_request()
    thread = threading.Thread(target=lambda: [harness.streaming.execute([r]) for r in (first, second)])
    thread.start()
    assert harness.pipeline.began.acquire(timeout=WAIT_S)
    assert len(harness.pipeline.requests) == 1
    harness.pipeline.hold = False
    assert second.sender.done.wait(WAIT_S)
    thread.join(WAIT_S)
    assert not thread.is_alive()
    harness.close()


def test_finalize_answers_what_still_runs(harness: Harness) -> None:
    harness.pipeline.hold = True
    request = speech_request()
    harness.streaming.execute([request])
    assert harness.pipeline.began.acquire(timeout=WAIT_S)
    harness.streaming.finalize()
    assert request.sender.finals == 1
    assert harness.is_closed


def test_a_request_not_decoupled_is_answered_with_one_whole_waveform(harness: Harness) -> None:
    (answer,) = harness.whole.execute([speech_request()])
    np.testing.assert_allclose(answer.named()["waveform"], [[0.1, 0.2, 0.3, 0.4]], rtol=1e-6)


def test_a_whole_request_that_is_cancelled_stops_the_work(harness: Harness) -> None:
    harness.pipeline.hold = True
    request = speech_request()
    request.sender.cancelled = True
    (answer,) = harness.whole.execute([request])
    assert answer.error.message().startswith("CANCELLED: ")


ERRORS = [
    pytest.param(LLMUnavailableError("no LLM at http://x; start it"), "UNAVAILABLE: no speech LLM", id="LLM down"),
    pytest.param(TextTooLongError("too long; split it"), "INVALID_REQUEST: too long", id="text too long"),
]


@pytest.mark.parametrize(("error", "expected"), ERRORS)
def test_an_error_of_the_pipeline_is_an_error_response(harness: Harness, error: GatewayError, expected: str) -> None:
    harness.pipeline.error = error
    assert harness.ask(speech_request()).sender.sent[-1].error.message().startswith(expected)  # type: ignore[union-attr]
    (answer,) = harness.whole.execute([speech_request()])
    assert answer.error.message().startswith(expected)


BAD_REQUESTS = [
    pytest.param({"target_text": None}, {}, id="no text"),
    pytest.param({"target_text": np.array([[b"\xff\xfe"]], np.object_)}, {}, id="text not UTF-8"),
    pytest.param({"reference_wav_len": np.array([[9]], np.int32)}, {}, id="length beyond the wave"),
    pytest.param({"reference_wav": None, "reference_wav_len": None}, {}, id="transcript without audio"),
    pytest.param({"reference_wav": np.array([[np.nan]], np.float32)}, {}, id="not finite"),
    pytest.param({}, {"priority_class": "high"}, id="priority not a number"),
]


@pytest.mark.parametrize(("changes", "parameters"), BAD_REQUESTS)
def test_a_bad_request_is_refused_before_the_pipeline(
    harness: Harness, changes: dict[str, Any], parameters: dict[str, Any]
) -> None:
    assert harness.ask(speech_request(parameters, **changes)).sender.error().startswith("INVALID_REQUEST: ")
    (answer,) = harness.whole.execute([speech_request(parameters, **changes)])
    assert answer.error.message().startswith("INVALID_REQUEST: ")
    assert harness.pipeline.requests == []


def test_without_voices_a_request_must_bring_its_own() -> None:
    harness = Harness(default_voice=None)
    answer = harness.ask(speech_request(reference_wav=None, reference_wav_len=None, reference_text=None))
    assert "send 16 kHz mono FP32" in answer.sender.error()
    harness.close()


@pytest.mark.slow
def test_the_entry_imports_no_torch() -> None:
    program = "import sys; import gateway.dialects.cosyvoice2_dit.drop_in; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60, cwd=ROOT).returncode == 0
