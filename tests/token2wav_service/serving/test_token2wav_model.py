"""The token2wav adapter against fakes of Triton and the engine: every request ends exactly once, every exit frees."""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.token2wav_service.engine.factory import make_engine, make_prompt
from tests.token2wav_service.serving.fakes import FakeEngineLoop, FakePbUtils, FakeRequest
from token2wav_service.engine.loop import ServingLoop
from token2wav_service.errors import CapacityError, InvalidPromptError
from token2wav_service.python_backend.inputs import Responder
from token2wav_service.serving.token2wav_model import Token2WavModel
from token2wav_service.types import FloatArray, VoiceFeatures

WAIT_S = 10.0


def text(value: str) -> Any:
    return np.array([value.encode()], dtype=np.object_)


def decode_audio(data: bytes) -> FloatArray:
    if data == b"not audio":
        raise InvalidPromptError("not an audio file: send WAV, FLAC or OGG")
    return np.ones(len(data), np.float32)


class Harness:
    """An adapter with its fakes, and the requests a client would send."""

    def __init__(self, engine: Any = None) -> None:
        self.engine = engine or FakeEngineLoop()
        self.pb_utils = FakePbUtils()
        self.model = Token2WavModel(
            self.pb_utils, self.engine, decode_audio, lease_poll_interval_s=0.005, metrics_interval_s=0.005
        )

    def send(self, operation: str, **tensors: Any) -> FakeRequest:
        request = FakeRequest({"operation": text(operation), **tensors})
        self.model.execute([request])
        return request

    def ask(self, operation: str, **tensors: Any) -> FakeRequest:
        request = self.send(operation, **tensors)
        assert request.sender.done.wait(WAIT_S), f"{operation} got no FINAL"
        assert request.sender.finals == 1
        return request

    def register(self) -> Any:
        answer = self.ask("register_voice", reference_wav=np.ones(16000, np.float32))
        return answer.sender.sent[0].named()["voice_id"]

    def open(self, **tensors: Any) -> tuple[FakeRequest, Any]:
        lease = self.send("open", voice_id=self.register(), **tensors)
        return lease, lease.sender.sent[0].named()["stream_id"]

    def push_tensors(self, stream_id: Any, index: int = 0, is_last: bool = False, first: int = 5) -> dict[str, Any]:
        return {
            "stream_id": stream_id,
            "chunk_index": np.array([index], np.int32),
            "token_ids": np.array([first, 6, 7], np.int32),
            "is_last": np.array([is_last], np.bool_),
        }


@pytest.fixture
def harness() -> Iterator[Harness]:
    made = Harness()
    yield made
    if not made.model._stopping.is_set():
        made.model.finalize()


def test_register_voice_answers_with_the_id_and_the_prompt_tokens(harness: Harness) -> None:
    answer = harness.ask("register_voice", reference_wav=np.ones(16000, np.float32))
    named = answer.sender.sent[0].named()
    assert named["voice_id"][0] == b"voice-16000"
    assert named["prompt_speech_tokens"].dtype == np.int32
    np.testing.assert_array_equal(named["prompt_speech_tokens"], np.arange(5))


def test_register_voice_decodes_an_audio_file(harness: Harness) -> None:
    answer = harness.ask("register_voice", reference_audio=np.array([b"x" * 321], dtype=np.object_))
    assert answer.sender.sent[0].named()["voice_id"][0] == b"voice-321"


def test_register_voice_does_not_block_other_requests(harness: Harness) -> None:
    harness.engine.hold_voices = True
    waiting = harness.send("register_voice", reference_wav=np.ones(8, np.float32))
    harness.ask("abort", stream_id=text("none"))
    assert waiting.sender.finals == 0
    harness.model.finalize()
    assert waiting.sender.error().startswith("UNAVAILABLE: ")


class NewVoice:
    """A voice that is told by its tokens and made until `go_on`, and a stream in it whose only chunk was pushed."""

    def __init__(self, harness: Harness, is_made: bool = True) -> None:
        self.go_on, runner = threading.Event(), harness.engine.engine.runner
        prepare = runner.prepare_voice

        def held_up(features: VoiceFeatures) -> Any:
            assert self.go_on.wait(WAIT_S)
            if not is_made:
                raise CapacityError("no room for the voice")
            return prepare(features)

        runner.prepare_voice = held_up
        self.told = harness.ask("register_voice", reference_wav=make_prompt().samples).sender.sent[0].named()
        self.lease = harness.send("open", voice_id=self.told["voice_id"])
        (opened,) = self.lease.sender.sent
        self.push = harness.send("push", **harness.push_tensors(opened.named()["stream_id"], is_last=True))


@pytest.mark.parametrize("is_made", [True, False])
def test_a_voice_is_told_by_its_tokens_and_what_a_stream_speaks_in_it_waits_until_it_is_ready(is_made: bool) -> None:
    harness = Harness(ServingLoop(make_engine()))
    voice = NewVoice(harness, is_made)
    file = harness.send("export_voice", voice_id=voice.told["voice_id"])
    assert len(voice.told["prompt_speech_tokens"]) and not file.sender.sent
    assert harness.engine.stats().open_streams == 1 and not voice.push.sender.sent

    voice.go_on.set()
    for request in (file, voice.lease, voice.push):
        assert request.sender.done.wait(WAIT_S)
    assert ("voice_file" in file.sender.sent[0].named()) == is_made
    if is_made:
        assert len(voice.push.sender.sent[0].named()["waveform"])
    else:
        assert voice.push.sender.error().startswith("RESOURCE_EXHAUSTED: no room")
    harness.engine.engine.check_integrity()
    assert harness.engine.stats().open_streams == 0
    harness.model.finalize()


@pytest.mark.parametrize("leaves", [True, False])
def test_a_stream_that_waits_for_its_voice_ends_with_its_caller_or_its_server(leaves: bool) -> None:
    harness = Harness(ServingLoop(make_engine()))
    voice = NewVoice(harness)
    if leaves:
        voice.lease.sender.cancelled = True
    else:
        threading.Timer(0.1, voice.go_on.set).start()
        harness.model.finalize()
    for request in (voice.lease, voice.push):
        assert request.sender.done.wait(WAIT_S) and request.sender.finals == 1
    assert voice.push.sender.error().startswith("CANCELLED: " if leaves else "UNAVAILABLE: ")
    assert harness.engine.stats().open_streams == 0
    voice.go_on.set()
    if leaves:
        harness.model.finalize()
    harness.engine.engine.check_integrity()
    assert harness.engine.engine.voices.cache.stats().pinned_voices == 0


def test_an_exported_voice_is_imported_without_its_audio(harness: Harness) -> None:
    exported = harness.ask("export_voice", voice_id=harness.register()).sender.sent[0].named()["voice_file"]
    harness.engine.voices.clear()
    imported = harness.ask("import_voice", voice_file=exported).sender.sent[0].named()
    np.testing.assert_array_equal(imported["prompt_speech_tokens"], np.arange(5))
    lease = harness.send("open", voice_id=imported["voice_id"])
    assert "stream_id" in lease.sender.sent[0].named()


def test_a_stream_answers_its_chunks_and_ends_with_a_summary(harness: Harness) -> None:
    lease, stream_id = harness.open(seed=np.array([7], np.int64))
    first = harness.ask("push", **harness.push_tensors(stream_id, 0, first=5))
    last = harness.ask("push", **harness.push_tensors(stream_id, 1, is_last=True, first=9))
    assert lease.sender.done.wait(WAIT_S)
    assert first.sender.sent[0].named()["waveform"][0] == pytest.approx(5e-4)
    assert last.sender.sent[0].named()["waveform"].dtype == np.float32
    summary = json.loads(lease.sender.sent[1].named()["stream_summary"][0])
    assert (summary["status"], summary["seed"]) == ("finished", 7)
    assert lease.sender.finals == 1
    assert harness.engine.streams == {}


def test_a_cancelled_lease_aborts_the_stream_and_frees_it(harness: Harness) -> None:
    lease, stream_id = harness.open()
    with harness.engine.paused():
        push = harness.send("push", **harness.push_tensors(stream_id))
        lease.sender.cancelled = True
        assert lease.sender.done.wait(WAIT_S)
    assert push.sender.done.wait(WAIT_S)
    assert push.sender.error().startswith("CANCELLED: ")
    assert json.loads(lease.sender.sent[-1].named()["stream_summary"][0])["status"] == "aborted"
    assert harness.engine.streams == {}


def test_audio_that_can_not_be_sent_is_an_error_and_ends_its_stream(harness: Harness) -> None:
    lease, stream_id = harness.open()
    push = FakeRequest({"operation": text("push"), **harness.push_tensors(stream_id)})
    push.sender.failing_sends = 1
    harness.model.execute([push])
    assert push.sender.done.wait(WAIT_S)
    assert push.sender.error().startswith("INTERNAL: the response could not be sent")
    assert lease.sender.done.wait(WAIT_S)
    assert json.loads(lease.sender.sent[-1].named()["stream_summary"][0])["status"] == "aborted"
    harness.model.finalize()
    assert harness.pb_utils.metrics['cosydit_token2wav_failures_total{cause="internal"}'].total == 1


def test_a_sender_that_closes_when_it_fails_costs_its_stream_only(harness: Harness) -> None:
    lease, stream_id = harness.open()
    push = FakeRequest({"operation": text("push"), **harness.push_tensors(stream_id)})
    push.sender.failing_sends, push.sender.closes_on_failure = 1, True
    harness.model.execute([push])
    assert lease.sender.done.wait(WAIT_S)
    assert harness.engine.streams == {}


def test_an_open_that_can_not_be_answered_leaves_no_stream(harness: Harness) -> None:
    request = FakeRequest({"operation": text("open"), "voice_id": harness.register()})
    request.sender.failing_sends = 1
    harness.model.execute([request])
    assert request.sender.error().startswith("INTERNAL: ") and request.sender.finals == 1
    assert harness.engine.streams == {}


def test_a_request_that_can_not_even_be_refused_costs_no_other(harness: Harness) -> None:
    mute, other = (FakeRequest({"operation": text("dance")}) for _ in range(2))
    mute.sender.failing_sends = 100
    nobody = FakeRequest({"operation": text("dance")})
    nobody.get_response_sender = None  # type: ignore[assignment, method-assign]
    harness.model.execute([mute, nobody, other])
    assert other.sender.error().startswith("INVALID_REQUEST: ")


def test_where_room_is_short_the_audio_goes_before_its_final_flag() -> None:
    request = FakeRequest({})
    request.sender.failing_sends, request.sender.closes_on_failure = 1, True
    responder = Responder(FakePbUtils(), request, free_bytes=lambda: 100)
    assert not responder.finish({"waveform": np.ones(50, np.float32)})
    assert request.sender.finals == 1
    assert "could not be sent" in request.sender.error()


def test_a_cancelled_registration_is_neither_decoded_nor_made() -> None:
    decoding, go_on, decoded = threading.Event(), threading.Event(), []
    harness = Harness(ServingLoop(make_engine()))

    def decode(data: bytes) -> FloatArray:
        decoded.append(data)
        decoding.set()
        assert go_on.wait(WAIT_S)
        return make_prompt().samples

    harness.model._decode_audio = decode
    requests = [harness.send("register_voice", reference_audio=text(f"audio {n}")) for n in range(3)]
    assert decoding.wait(WAIT_S)
    requests[1].sender.cancelled = True
    go_on.set()
    for request in requests:
        assert request.sender.done.wait(WAIT_S)
    assert requests[1].sender.error().startswith("CANCELLED: ")
    assert decoded == [b"audio 0", b"audio 2"] and len(requests[2].sender.sent[0].named()["prompt_speech_tokens"])
    harness.model.finalize()


def test_more_prompts_than_can_wait_are_refused() -> None:
    go_on, harness = threading.Event(), Harness(ServingLoop(make_engine()))
    harness.model._decode_audio = lambda data: np.full(len(data), go_on.wait(WAIT_S), np.float32)
    requests = [harness.send("register_voice", reference_audio=text("x")) for _ in range(40)]
    refused = [request for request in requests if request.sender.finals]
    go_on.set()
    assert len(refused) == 8
    assert refused[0].sender.error().startswith("RESOURCE_EXHAUSTED: ")
    for request in requests:
        assert request.sender.done.wait(WAIT_S)
    harness.model.finalize()


def test_abort_ends_the_stream_and_may_be_repeated(harness: Harness) -> None:
    lease, stream_id = harness.open()
    harness.ask("abort", stream_id=stream_id)
    harness.ask("abort", stream_id=stream_id)
    assert lease.sender.finals == 1
    assert harness.engine.streams == {}


def test_a_request_cancelled_before_it_is_served_changes_nothing(harness: Harness) -> None:
    request = FakeRequest({"operation": text("open"), "voice_id": harness.register()})
    request.sender.cancelled = True
    harness.model.execute([request])
    assert request.sender.error().startswith("CANCELLED: ")
    assert harness.engine.streams == {}


def test_a_push_waits_for_no_answer_of_the_server(harness: Harness) -> None:
    _, stream_id = harness.open()
    push = FakeRequest({"operation": text("push"), **harness.push_tensors(stream_id)})
    push.sender.is_cancelled = pytest.fail  # type: ignore[assignment, method-assign]
    harness.model.execute([push])
    assert push.sender.done.wait(WAIT_S)
    assert "waveform" in push.sender.sent[0].named()


def test_finalize_ends_open_leases(harness: Harness) -> None:
    lease, _ = harness.open()
    harness.model.finalize()
    assert lease.sender.finals == 1


def test_priority_and_seed_reach_the_engine(harness: Harness) -> None:
    _, stream_id = harness.open(seed=np.array([2**40], np.int64), priority=np.array([2], np.int32))
    options = harness.engine.streams[stream_id[0].decode()].options
    assert (options.seed, options.priority) == (2**40, 2)


def test_an_answered_request_lets_its_sender_go_so_that_the_model_can_unload() -> None:
    request = FakeRequest({})
    responder = Responder(FakePbUtils(), request)
    sender = weakref.ref(request.sender)
    del request
    responder.finish()
    assert sender() is None


def test_metrics_follow_the_engine(harness: Harness) -> None:
    _, stream_id = harness.open()
    harness.ask("push", **harness.push_tensors(stream_id))
    harness.open()
    harness.model.finalize()
    metrics = harness.pb_utils.metrics
    assert metrics["cosydit_token2wav_chunks_total"].total == 1
    assert metrics["cosydit_token2wav_step_batch_size"].observed == [1.0]
    assert metrics["cosydit_token2wav_open_streams"].total == 0
    assert metrics["cosydit_token2wav_aborted_total"].total == 2
    assert metrics["cosydit_token2wav_queue_seconds"].observed == [0.004]
    assert metrics["cosydit_token2wav_step_seconds"].observed == [0.05]
    assert metrics["cosydit_token2wav_slots"].total == 64


def test_errors_are_counted_by_their_cause_and_once(harness: Harness) -> None:
    harness.ask("open", voice_id=text("nobody"))
    harness.ask("dance")
    _, stream_id = harness.open()
    harness.ask("push", **harness.push_tensors(stream_id, first=FakeEngineLoop.FAILING_TOKEN))
    harness.model.finalize()
    metrics = harness.pb_utils.metrics
    causes = ("voice_not_found", "invalid_request", "internal", "unavailable")
    totals = {cause: metrics[f'cosydit_token2wav_failures_total{{cause="{cause}"}}'].total for cause in causes}
    assert totals == {"voice_not_found": 1, "invalid_request": 1, "internal": 1, "unavailable": 0}


GOOD_PUSH = {
    "stream_id": text("stream-1"),
    "chunk_index": np.array([0], np.int32),
    "token_ids": np.array([1, 2, 3], np.int32),
    "is_last": np.array([False]),
}


@pytest.mark.parametrize(
    ("operation", "tensors", "code"),
    [
        pytest.param("dance", {}, "INVALID_REQUEST", id="unknown operation"),
        pytest.param("register_voice", {}, "INVALID_REQUEST", id="no audio"),
        pytest.param(
            "register_voice",
            {"reference_wav": np.ones(9, np.float32), "reference_audio": text("x")},
            "INVALID_REQUEST",
            id="two audios",
        ),
        pytest.param("register_voice", {"reference_wav": np.ones(9, np.float64)}, "INVALID_REQUEST", id="dtype"),
        pytest.param(
            "register_voice", {"reference_wav": np.array([np.nan], np.float32)}, "INVALID_REQUEST", id="not finite"
        ),
        pytest.param("register_voice", {"reference_audio": text("not audio")}, "INVALID_PROMPT", id="not audio"),
        pytest.param("export_voice", {"voice_id": text("nobody")}, "VOICE_NOT_FOUND", id="export of an unknown voice"),
        pytest.param("import_voice", {"voice_file": text("x")}, "INVALID_VOICE_FILE", id="import of any bytes"),
        pytest.param("open", {"voice_id": text("nobody")}, "VOICE_NOT_FOUND", id="unknown voice"),
        pytest.param(
            "open", {"voice_id": np.array([b"\xff"], dtype=np.object_)}, "INVALID_REQUEST", id="voice not UTF-8"
        ),
        pytest.param(
            "open", {"voice_id": text("v"), "priority": np.array([0], np.int32)}, "INVALID_REQUEST", id="priority 0"
        ),
        pytest.param("push", GOOD_PUSH, "STREAM_NOT_FOUND", id="unknown stream"),
        pytest.param(
            "push", {k: v for k, v in GOOD_PUSH.items() if k != "is_last"}, "INVALID_REQUEST", id="no is_last"
        ),
        pytest.param(
            "push", GOOD_PUSH | {"chunk_index": np.array([0, 1], np.int32)}, "INVALID_REQUEST", id="two indices"
        ),
        pytest.param("push", GOOD_PUSH | {"token_ids": np.array([1], np.int64)}, "INVALID_REQUEST", id="int64 tokens"),
    ],
)
def test_a_bad_request_is_a_typed_error_with_final(
    harness: Harness, operation: str, tensors: dict[str, Any], code: str
) -> None:
    answer = harness.ask(operation, **tensors)
    assert answer.sender.error().startswith(f"{code}: ")
    assert harness.engine.streams == {}


def test_a_bug_in_the_engine_is_an_internal_error_and_not_a_crash(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(stream_id: str) -> None:
        raise RuntimeError("bug")

    monkeypatch.setattr(harness.engine, "abort", explode)
    assert harness.ask("abort", stream_id=text("x")).sender.error().startswith("INTERNAL: RuntimeError: bug")
