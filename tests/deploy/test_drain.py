"""Waiting until a service is idle: what it reads, and that it always ends."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence

import pytest

import servicekit.drain
from servicekit.drain import main, sum_of, wait_until_idle
from tests.virtual_time import ManualClock
from tests.workers import QuietHandler, listening

STREAMS = "cosydit_token2wav_open_streams"


def drained(texts: Sequence[str | OSError], *, timeout_s: float = 60.0) -> tuple[str, float]:
    """Wait on a service whose metrics are `texts`, one a reading; return the reason and the seconds it took."""
    time, remaining = ManualClock(), iter(texts)

    def read() -> str:
        answer = next(remaining)
        if isinstance(answer, OSError):
            raise answer
        return answer

    reason = wait_until_idle(read, [STREAMS], settle_s=5.0, timeout_s=timeout_s, clock=time, sleep=time.advance)
    return reason, time.now()


def test_every_sample_of_the_named_metrics_counts_and_no_other() -> None:
    samples = [f'{STREAMS}{{model="a b",version="1"}} 2.000000', f"{STREAMS} 1 1700000000000", f"{STREAMS}_total 9"]
    text = "\n".join([f"# TYPE {STREAMS} gauge", *samples, "other 7"])
    assert sum_of(text, [STREAMS]) == 3
    assert sum_of(text, [STREAMS, "other"]) == 10
    assert sum_of("", [STREAMS]) == 0


def test_it_settles_first_and_ends_with_the_last_stream() -> None:
    assert drained([f"{STREAMS} 0"]) == ("nothing is under way", 5.0)
    assert drained([f"{STREAMS} 2", f"{STREAMS} 1", f"{STREAMS} 0"]) == ("nothing is under way", 6.0)


def test_it_ends_when_its_time_is_up() -> None:
    reason, took_s = drained([f"{STREAMS} 3"] * 100, timeout_s=10.0)
    assert reason == "3 still under way after 10 s"
    assert took_s == 10.0


def test_a_busy_service_is_asked_again() -> None:
    assert drained([f"{STREAMS} 2", *[TimeoutError()] * 9, f"{STREAMS} 0"]) == ("nothing is under way", 10.0)
    reason, took_s = drained([TimeoutError()] * 100, timeout_s=10.0)
    assert (reason, took_s) == ("an unknown number is still under way after 10 s", 10.0)


def test_one_failure_is_not_the_end_and_several_are() -> None:
    reset = ConnectionResetError("reset")
    assert drained([reset, reset, f"{STREAMS} 1", reset, f"{STREAMS} 0"])[0] == "nothing is under way"
    assert "reset" in drained([f"{STREAMS} 1", reset, reset, reset])[0]
    assert "refused" in drained([f"{STREAMS} 1", ConnectionRefusedError("refused")])[0]


def test_a_late_answer_over_http_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servicekit.drain, "_READ_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(TimeoutError):
        servicekit.drain._read(f"http://127.0.0.1:{silent.getsockname()[1]}/metrics")


def test_a_service_that_is_gone_is_not_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", "http://127.0.0.1:9/metrics", "--metric", STREAMS, "--settle-s", "0"]) == 0
    assert "can't be read" in capsys.readouterr().err


@pytest.fixture
def metrics_url() -> Iterator[str]:
    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"{STREAMS} 0\n".encode())

    with listening(Handler) as port:
        yield f"http://127.0.0.1:{port}/metrics"


def test_the_command_reads_the_metrics_over_http(metrics_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", metrics_url, "--metric", STREAMS, "--settle-s", "0"]) == 0
    assert "nothing is under way" in capsys.readouterr().err
