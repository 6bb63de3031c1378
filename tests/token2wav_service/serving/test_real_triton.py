"""The token2wav adapter in a real tritonserver, on a fake engine: order, leases, errors, metrics."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.token2wav_service.serving.client import (
    StreamClient,
    connected,
    read_metrics,
    text,
    token2wav_metric,
)
from tests.workers import wait_until
from token2wav_service.contract import ErrorCode, decode_error
from token2wav_service.serving.process.server import TritonProcess

pytestmark = pytest.mark.servers

CHUNKS = 20


def test_chunks_of_one_stream_are_answered_in_order(fake_engine_server: TritonProcess) -> None:
    with connected(fake_engine_server) as client:
        stream_id = client.open_stream()
        for index in range(CHUNKS):
            client.push(stream_id, index, first=100 + index, is_last=index == CHUNKS - 1)
        answers = [client.next() for _ in range(CHUNKS + 1)]
    waves = [a for a in answers if "waveform" in a.tensors]
    assert [a.request_id for a in waves] == [f"push-{index}" for index in range(CHUNKS)]
    assert [level(a.tensors["waveform"][0]) for a in waves] == list(range(100, 100 + CHUNKS))
    (lease,) = [a for a in answers if a.request_id == "lease"]
    assert lease.is_final
    assert json.loads(lease.tensors["stream_summary"][0])["status"] == "finished"
    assert sum(a.is_final for a in answers) == CHUNKS + 1


def test_a_voice_travels_out_as_a_file_and_in_again(fake_engine_server: TritonProcess) -> None:
    with connected(fake_engine_server) as client:
        voice = client.ask("register_voice", reference_wav=np.ones(16000, np.float32))[0].tensors["voice_id"]
        exported = client.ask("export_voice", voice_id=text(voice[0].decode()))[0].tensors["voice_file"]
        (imported,) = client.ask("import_voice", voice_file=np.array([bytes(exported[0])], np.object_))
    assert imported.tensors["voice_id"][0] == voice[0]


def test_cancelling_the_call_frees_the_stream(fake_engine_server: TritonProcess) -> None:
    aborted = token2wav_metric(fake_engine_server, "aborted_total")
    with connected(fake_engine_server) as client:
        client.open_stream()
        wait_until(lambda: token2wav_metric(fake_engine_server, "open_streams") == 1, "the stream's opening")
        client.close(cancel=True)
        wait_until(lambda: token2wav_metric(fake_engine_server, "open_streams") == 0, "the stream's release")
    assert token2wav_metric(fake_engine_server, "aborted_total") == aborted + 1


@pytest.mark.parametrize(
    ("operation", "tensors", "code"),
    [
        pytest.param("open", {"voice_id": text("nobody")}, ErrorCode.VOICE_NOT_FOUND, id="unknown voice"),
        pytest.param("import_voice", {"voice_file": text("x")}, ErrorCode.INVALID_VOICE_FILE, id="no voice file"),
        pytest.param(
            "register_voice",
            {"reference_audio": np.array([bytes(range(256))], np.object_)},
            ErrorCode.INVALID_PROMPT,
            id="any bytes",
        ),
        pytest.param("register_voice", {"reference_audio": text("")}, ErrorCode.INVALID_PROMPT, id="no bytes"),
    ],
)
def test_an_error_reaches_the_client_with_its_code(
    fake_engine_server: TritonProcess, operation: str, tensors: dict[str, Any], code: ErrorCode
) -> None:
    with connected(fake_engine_server) as client:
        (answer,) = client.ask(operation, **tensors)
    assert answer.error is not None
    assert decode_error(answer.error)[0] == code


def test_all_metrics_are_exposed(fake_engine_server: TritonProcess) -> None:
    with connected(fake_engine_server) as client:
        client.ask("open", voice_id=text("nobody"))
        client.push(client.open_stream(), 0, first=1, is_last=True)
        wait_until(lambda: token2wav_metric(fake_engine_server, "finished_total") > 0, "the stream's end")
    exposed = read_metrics(f"127.0.0.1:{fake_engine_server.options.metrics_port}")
    names = {name.removeprefix("cosydit_token2wav_") for name in exposed}
    plain = {"open_streams", "slots", "slots_in_use", "queued_chunks", "voices", "voice_bytes", "state_bytes"}
    totals = {"steps_total", "chunks_total", "audio_seconds_total", "aborted_total", "finished_total"}
    totals |= {"deadline_misses_total", "voice_hits_total", "voice_misses_total", "voice_evictions_total"}
    histograms = {"step_batch_size_count", "queue_seconds_count", "step_seconds_count"}
    buckets = {'step_batch_size_bucket{le="1"}', 'queue_seconds_bucket{le="0.005"}', 'step_seconds_bucket{le="0.05"}'}
    assert plain | totals | histograms | buckets | {'failures_total{cause="internal"}'} <= names
    assert exposed['cosydit_token2wav_failures_total{cause="voice_not_found"}'] >= 1
    assert exposed["cosydit_token2wav_queue_seconds_sum"] == pytest.approx(
        0.004 * exposed["cosydit_token2wav_queue_seconds_count"]
    )


def test_a_stream_client_that_only_closes_its_side_still_gets_everything(fake_engine_server: TritonProcess) -> None:
    client = StreamClient(f"127.0.0.1:{fake_engine_server.options.grpc_port}")
    client.push(client.open_stream(), 0, first=7, is_last=True)
    client.close()
    answers = client.received()
    assert [level(a.tensors["waveform"][0]) for a in answers if "waveform" in a.tensors] == [7]


def level(sample: float) -> int:
    """Return the token that the fake engine put into a sample."""
    return round(float(sample) * 10_000)
