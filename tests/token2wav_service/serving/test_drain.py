"""The launcher's count of open streams: what it can't learn it doesn't take for none."""

from __future__ import annotations

import http.server
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from token2wav_service.serving.process import drain as drain_module
from token2wav_service.serving.process.command import ServerOptions
from token2wav_service.serving.process.drain import drain, open_streams

TIMEOUT_S = 0.2


@dataclass
class FakeServer:
    """Answers each reading of its metrics as scripted, the last one for good; None: too late."""

    script: list[tuple[int, str] | None]
    reads: int = 0
    returncode: int | None = None
    options: ServerOptions = field(default_factory=lambda: ServerOptions(Path("unused"), metrics_port=1))

    def raise_drain_flag(self) -> None:
        pass

    def answer(self) -> tuple[int, str] | None:
        self.reads += 1
        return self.script.pop(0) if len(self.script) > 1 else self.script[0]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    monkeypatch.setattr(drain_module, "_PROBE_TIMEOUT_S", TIMEOUT_S)
    monkeypatch.setattr(drain_module, "SETTLE_S", 0.0)
    fake = FakeServer([OPEN])

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = fake.answer()
            if answer is None:
                time.sleep(2 * TIMEOUT_S)
                return
            self.send_response(answer[0])
            self.end_headers()
            self.wfile.write(answer[1].encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        fake.options = ServerOptions(Path("unused"), metrics_port=listening.server_port)
        yield fake
        listening.shutdown()
        thread.join()


OPEN = (200, "cosydit_token2wav_open_streams 5\n")
NONE_OPEN = (200, "cosydit_token2wav_open_streams 0\n")


def _drain(server: Any, timeout_s: float = 20.0) -> bool:
    return drain(server, timeout_s, threading.Event())


@pytest.mark.parametrize(
    "unknown", [pytest.param(None, id="too late"), pytest.param((503, "busy"), id="an error instead")]
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


def test_where_nobody_listens_no_stream_is_open(server: FakeServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    server.options = ServerOptions(Path("unused"), metrics_port=port)
    assert open_streams(server) == 0  # type: ignore[arg-type]
