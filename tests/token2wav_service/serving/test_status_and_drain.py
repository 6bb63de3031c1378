"""A server that says how busy it is, and one that stops without cutting a stream off, in parts and whole."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.token2wav_service.serving.client import StreamClient, text
from tests.token2wav_service.serving.conftest import FAKE_ENGINE_MODEL, write_model
from tests.token2wav_service.serving.fakes import FakeEngineLoop, FakePbUtils, FakeRequest
from tests.token2wav_service.serving.test_token2wav_model import WAIT_S, decode_audio
from tests.token2wav_service.serving.test_token2wav_model import text as text_tensor
from tests.workers import QuietHandler, free_ports, listening, wait_until
from token2wav_service.contract import ErrorCode, ServerStatus, decode_error
from token2wav_service.python_backend.server_process import DRAIN_FLAG_VARIABLE
from token2wav_service.serving.process import health
from token2wav_service.serving.process.health import drain, open_streams
from token2wav_service.serving.process.installation import ServerOptions
from token2wav_service.serving.token2wav_model import Token2WavModel

SERVER_WAIT_S = 60.0


def _model() -> Token2WavModel:
    return Token2WavModel(FakePbUtils(), FakeEngineLoop(), decode_audio)


def _ask(model: Token2WavModel, operation: str, **tensors: object) -> FakeRequest:
    request = FakeRequest({"operation": text_tensor(operation), **tensors})
    model.execute([request])
    assert request.sender.done.wait(WAIT_S)
    return request


@pytest.mark.parametrize("is_draining", [False, True])
def test_the_status_says_what_the_engine_says_and_whether_the_server_drains(
    is_draining: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DRAIN_FLAG_VARIABLE, str(tmp_path / "flag"))
    if is_draining:
        (tmp_path / "flag").touch()
    model = _model()
    answer = _ask(model, "status").sender.sent[0].named()["status"]
    assert ServerStatus.from_json(answer[0].decode()) == ServerStatus(4, 0, 0, 0.01, is_draining)
    model.finalize()


def test_the_status_of_a_failed_engine_is_draining() -> None:
    model = _model()
    model._engine.is_stopped = True  # type: ignore[attr-defined]
    answer = _ask(model, "status").sender.sent[0].named()["status"]
    assert ServerStatus.from_json(answer[0].decode()).is_draining
    model.finalize()


@contextmanager
def launched(folder: Path, model_text: str = FAKE_ENGINE_MODEL) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run the launcher on a token2wav_dit with this model.py; gives its process and gRPC address."""
    repository = write_model(folder, model_text)
    http, grpc, metrics = map(str, free_ports(3))
    command = [sys.executable, "-m", "token2wav_service.serving", "--model-repository", str(repository)]
    command += ["--http-port", http, "--grpc-port", grpc, "--metrics-port", metrics, "--exit-timeout-s", "1"]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": path})
    try:
        wait_until(lambda: process.poll() is not None or b"Started Metrics" in (folder / "log").read_bytes(), "start")
        assert process.poll() is None, (folder / "log").read_text()
        yield process, f"127.0.0.1:{grpc}"
    finally:
        process.kill()
        process.wait()


@pytest.mark.servers
def test_a_stopped_server_lets_its_streams_end_and_takes_no_others(tmp_path: Path) -> None:
    with launched(tmp_path) as (process, address):
        client, newcomer = StreamClient(address), StreamClient(address)
        stream_id = client.open_stream()
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: _is_draining(newcomer), "draining")
        refusal = newcomer.ask("open", voice_id=text("any"))[-1].error
        assert decode_error(refusal or "")[0] is ErrorCode.UNAVAILABLE
        for index in range(3):
            client.push(stream_id, index, first=100, is_last=index == 2)
        answers = [client.next() for _ in range(4)]
        assert sum("waveform" in answer.tensors for answer in answers) == 3
        assert process.poll() is None
        client.close()
        newcomer.close()
        assert process.wait(SERVER_WAIT_S) == 0


@pytest.mark.servers
def test_a_second_signal_ends_the_wait(tmp_path: Path) -> None:
    with launched(tmp_path) as (process, address):
        client = StreamClient(address)
        client.open_stream()
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: _is_draining(client), "draining")
        process.send_signal(signal.SIGTERM)
        assert process.wait(SERVER_WAIT_S) == 0
        client.close(cancel=True)


def _is_draining(client: StreamClient) -> bool:
    return ServerStatus.from_json(client.ask("status")[0].tensors["status"][0].decode()).is_draining


TIMEOUT_S = 0.2


@dataclass
class FakeServer:
    """Answers each question for its status as scripted, the last one for good; None: too late."""

    script: list[tuple[int, str] | None]
    reads: int = 0
    returncode: int | None = None
    options: ServerOptions = field(default_factory=lambda: ServerOptions(Path("unused"), http_port=1))

    def raise_drain_flag(self) -> None:
        pass

    def answer(self) -> tuple[int, str] | None:
        self.reads += 1
        return self.script.pop(0) if len(self.script) > 1 else self.script[0]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    monkeypatch.setattr(health, "_PROBE_TIMEOUT_S", TIMEOUT_S)
    (tmp_path / "token2wav_dit").mkdir()
    fake = FakeServer([OPEN])

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            answer = fake.answer()
            if answer is None:
                time.sleep(2 * TIMEOUT_S)
                return
            self.send_response(answer[0])
            self.end_headers()
            self.wfile.write(answer[1].encode())

    with listening(Handler) as port:
        fake.options = ServerOptions(tmp_path, http_port=port)
        yield fake


OPEN, NONE_OPEN = (
    (200, json.dumps({"status": ServerStatus(4, streams, 0, 0.01, is_draining=True).to_json()})) for streams in (5, 0)
)


def _drain(server: Any, timeout_s: float = 20.0) -> bool:
    return drain(server, timeout_s, threading.Event())


@pytest.mark.parametrize(
    "unknown", [pytest.param(None, id="too late"), pytest.param((503, '{"error": "busy"}'), id="an error instead")]
)
def test_a_reading_that_fails_does_not_count_as_no_streams(server: FakeServer, unknown: tuple[int, str] | None) -> None:
    server.script = [OPEN, unknown, OPEN, NONE_OPEN]
    assert _drain(server)
    assert server.reads == 4


def test_a_server_that_never_answers_is_waited_for_until_the_time_is_up(server: FakeServer) -> None:
    server.script = [None]
    assert not _drain(server, timeout_s=0.6)
    assert server.reads > 1


def test_a_server_that_has_exited_is_not_waited_for(server: FakeServer) -> None:
    server.returncode = 0
    assert _drain(server)
    assert server.reads == 0


def test_where_nobody_listens_no_stream_is_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert open_streams(f"127.0.0.1:{port}") == 0
