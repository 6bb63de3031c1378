"""The token2wav adapter in a real tritonserver, on a fake engine: order, leases, errors, metrics."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.triton.client import WAIT_S, StreamClient, read_metrics, text
from token2wav_service.contract import ErrorCode, decode_error
from token2wav_service.triton.server import TritonProcess

POLL_S = 0.02


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(POLL_S)


def metric(server: TritonProcess, name: str) -> float:
    return read_metrics(server.options.metrics_address).get(f"cosydit_token2wav_{name}", 0.0)


def test_chunks_of_one_stream_are_answered_in_order(fake_engine_server: TritonProcess) -> None:
    client = connect(fake_engine_server)
    stream_id = client.open_stream()
    for index in range(20):
        client.push(stream_id, index, first=100 + index, is_last=index == 19)
    answers = [client.next() for _ in range(41)]
    client.close()
    waves = [a for a in answers if "waveform" in a.tensors]
    assert [a.request_id for a in waves] == [f"push-{index}" for index in range(20)]
    assert [round(float(a.tensors["waveform"][0]) * 10_000) for a in waves] == list(range(100, 120))
    (lease,) = [a for a in answers if a.request_id == "lease"]
    assert lease.is_final
    assert json.loads(lease.tensors["stream_summary"][0])["status"] == "finished"
    assert sum(a.is_final for a in answers) == 21


def test_eight_streams_at_once_each_get_their_own_audio(fake_engine_server: TritonProcess) -> None:
    heard: dict[int, set[int]] = {}

    def speak(level: int) -> None:
        client = connect(fake_engine_server)
        stream_id = client.open_stream()
        for index in range(5):
            client.push(stream_id, index, first=level, is_last=index == 4)
        waves = [a.tensors["waveform"] for a in (client.next() for _ in range(11)) if "waveform" in a.tensors]
        heard[level] = {round(float(value) * 10_000) for wave in waves for value in wave}
        client.close()

    threads = [threading.Thread(target=speak, args=(1000 + n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert heard == {1000 + n: {1000 + n} for n in range(8)}


def test_cancelling_the_call_frees_the_stream(fake_engine_server: TritonProcess) -> None:
    aborted = metric(fake_engine_server, "aborted_total")
    client = connect(fake_engine_server)
    client.open_stream()
    wait_until(lambda: metric(fake_engine_server, "open_streams") == 1, "the stream's opening")
    client.close(cancel=True)
    wait_until(lambda: metric(fake_engine_server, "open_streams") == 0, "the stream's release")
    assert metric(fake_engine_server, "aborted_total") == aborted + 1


def test_killing_the_client_process_frees_the_stream(fake_engine_server: TritonProcess) -> None:
    program = (
        "import sys, time\nfrom tests.triton.client import StreamClient\n"
        "client = StreamClient(sys.argv[1])\nclient.open_stream()\nprint('open', flush=True)\ntime.sleep(600)"
    )
    command = [sys.executable, "-c", program, fake_engine_server.options.grpc_address]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            wait_until(lambda: metric(fake_engine_server, "open_streams") == 1, "the stream's opening")
        finally:
            process.kill()
    wait_until(lambda: metric(fake_engine_server, "open_streams") == 0, "the stream's release")


@pytest.mark.parametrize(
    ("operation", "tensors", "code"),
    [
        pytest.param("open", {"voice_id": text("nobody")}, ErrorCode.VOICE_NOT_FOUND, id="unknown voice"),
        pytest.param("dance", {}, ErrorCode.INVALID_REQUEST, id="unknown operation"),
        pytest.param(
            "register_voice", {"reference_wav": np.zeros(800, np.float32)}, ErrorCode.INVALID_PROMPT, id="silent"
        ),
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
    fake_engine_server: TritonProcess, operation: str, tensors: dict[str, object], code: ErrorCode
) -> None:
    client = connect(fake_engine_server)
    (answer,) = client.ask(operation, **tensors)
    client.close()
    assert answer.error is not None
    assert decode_error(answer.error)[0] == code


def test_all_metrics_are_exposed(fake_engine_server: TritonProcess) -> None:
    client = connect(fake_engine_server)
    client.push(client.open_stream(), 0, first=1, is_last=True)
    wait_until(lambda: metric(fake_engine_server, "finished_total") > 0, "the stream's end")
    client.close()
    names = {
        name.removeprefix("cosydit_token2wav_") for name in read_metrics(fake_engine_server.options.metrics_address)
    }
    plain = {"open_streams", "voices", "voice_bytes", "state_bytes"}
    totals = {"steps_total", "chunks_total", "audio_seconds_total", "aborted_total", "finished_total"}
    assert plain | totals | {'step_batch_size_bucket{le="1"}', "step_batch_size_count"} <= names
