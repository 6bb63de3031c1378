"""`cosydit top`, rendered to text from pages of metrics."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from cosydit.cli.main import main
from cosydit.cli.scrape import EMPTY, Follower, Scrape, WatchedService, Window, quantile
from cosydit.cli.top_view import draw
from cosydit.stack.stack import RUNNING_FILE, announced, running_metrics
from tests.virtual_time import ManualClock
from tests.workers import QuietHandler, free_ports, listening

GATEWAY = """
# TYPE cosydit_gateway_streams gauge
cosydit_gateway_streams 7
# TYPE cosydit_gateway_requests counter
cosydit_gateway_requests_total{dialect="openai",outcome="completed"} %(completed)d
cosydit_gateway_requests_total{dialect="riva",outcome="failed"} 2
# TYPE cosydit_gateway_time_to_first_audio_seconds histogram
cosydit_gateway_time_to_first_audio_seconds_bucket{le="0.1"} 0
cosydit_gateway_time_to_first_audio_seconds_bucket{le="0.2"} %(completed)d
cosydit_gateway_time_to_first_audio_seconds_bucket{le="+Inf"} %(completed)d
# TYPE cosydit_gateway_underrun_seconds counter
cosydit_gateway_underrun_seconds_total %(silence)f
# TYPE cosydit_gateway_audio_seconds counter
cosydit_gateway_audio_seconds_total %(audio)f
"""
TOKEN2WAV = """
# TYPE cosydit_token2wav_slots gauge
cosydit_token2wav_slots 64
cosydit_token2wav_slots_in_use 60
# TYPE cosydit_token2wav_step_batch_size histogram
cosydit_token2wav_step_batch_size_sum 30
cosydit_token2wav_step_batch_size_count 12
# TYPE cosydit_token2wav_deadline_misses_total counter
cosydit_token2wav_deadline_misses_total 3
# TYPE cosydit_token2wav_chunks_total counter
cosydit_token2wav_chunks_total 30
"""
VLLM = """
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m"} 12
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{model_name="m"} 9
"""


def gateway(completed: int = 40, silence: float = 0.0, audio: float = 100.0) -> str:
    return GATEWAY % {"completed": completed, "silence": silence, "audio": audio}


def service(address: str, after: str, before: str | None = None, apart_s: float = 10.0) -> WatchedService:
    earlier = EMPTY if before is None else Scrape.parse(before, 0.0)
    return WatchedService(address, Window(earlier, Scrape.parse(after, apart_s)))


def rendered(*gateways: WatchedService, **others: list[WatchedService]) -> str:
    console = Console(file=io.StringIO(), width=80, color_system=None)
    console.print(draw({"gateway": gateways, "token2wav": [], "llm": [], **others}, "now"))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def line_with(text: str, word: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if word in line]
    return line.split()


def test_the_window_s_numbers_are_drawn_for_each_service() -> None:
    before, after = gateway(20, 0.0, 100.0), gateway(40, 2.0, 200.0)
    others = {"token2wav": [service("t:8002", TOKEN2WAV)], "llm": [service("l:8000", VLLM)]}
    text = rendered(service("g:8080", after, before), **others)
    assert "cosydit top  now" in text
    listeners, requests = (line.split() for line in text.splitlines() if "g:8080" in line)
    assert listeners == "g:8080 7 150 ms 195 ms - 2 % 10".split()
    assert requests == "g:8080 2 - 0 - - -".split()
    assert line_with(text, "t:8002") == "t:8002 60/64 2.5 - - - - 10 % -".split()
    assert line_with(text, "l:8000") == "l:8000 12 9 - - -".split()


def test_a_counter_that_restarted_counts_from_its_new_start() -> None:
    window = Window(Scrape.parse(gateway(40), 0.0), Scrape.parse(gateway(10), 10.0))
    assert window.rate("cosydit_gateway_requests_total", outcome="completed") == 1.0


@pytest.mark.parametrize(
    ("buckets", "share", "expected"),
    [
        pytest.param([(1.0, 0.0), (2.0, 10.0), (math.inf, 10.0)], 0.5, 1.5, id="within a bucket"),
        pytest.param([(1.0, 10.0), (math.inf, 10.0)], 0.5, 0.5, id="the first one begins at 0"),
        pytest.param([(-1.0, 10.0), (0.0, 10.0), (math.inf, 10.0)], 0.5, -1.0, id="below the lowest bound"),
        pytest.param([(-1.0, 0.0), (0.0, 10.0), (math.inf, 10.0)], 0.5, -0.5, id="negative values"),
        pytest.param([(1.0, 1.0), (math.inf, 10.0)], 0.9, 1.0, id="above the highest bound"),
        pytest.param([(1.0, 0.0), (math.inf, 0.0)], 0.9, None, id="nothing was counted"),
        pytest.param([], 0.9, None, id="no such histogram"),
    ],
)
def test_quantiles_are_those_of_promql(
    buckets: list[tuple[float, float]], share: float, expected: float | None
) -> None:
    got = quantile(buckets, share)
    assert got == (pytest.approx(expected) if expected is not None else None)


@pytest.mark.parametrize(
    ("silence", "expected"),
    [(100.0, "100 %"), (250.0, "250 %"), (42.0, "42 %"), (0.52, "0.52 %"), (0.00001, "0 %"), (0.0, "0 %")],
)
def test_shares_are_plain_numbers(silence: float, expected: str) -> None:
    text = rendered(service("g:8080", gateway(silence=silence, audio=100.0)))
    assert expected in text and "e+" not in text and "e-" not in text


@contextmanager
def served(pages: list[str], status: int = 200) -> Iterator[str]:
    """Serve one page after the other; the last one again and again."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            page = (pages.pop(0) if len(pages) > 1 else pages[0]).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

    with listening(Handler) as port:
        yield f"http://127.0.0.1:{port}/metrics"


def test_looks_are_compared_over_the_window() -> None:
    clock = ManualClock()
    with served([gateway(0), gateway(20), gateway(60), gateway(120)]) as url:
        follower, rates = Follower(url, window_s=10.0, clock=clock), []
        for _ in range(4):
            found = follower.read()
            assert found.window is not None
            rates.append(found.window.rate("cosydit_gateway_requests_total", outcome="completed"))
            clock.seconds += 10.0
    assert rates == [None, 2.0, 4.0, 6.0]


def test_the_command_draws_once_and_says_if_nothing_answered(capsys: pytest.CaptureFixture[str]) -> None:
    (dead,) = free_ports(1)
    nowhere = f"http://127.0.0.1:{dead}/metrics"
    with served([gateway()]) as url:
        assert main(["top", "--once", "--gateway", url, "--token2wav", nowhere, "--llm", nowhere]) == 0
    assert "since the services' start" in capsys.readouterr().out
    assert main(["top", "--once", "--gateway", nowhere, "--token2wav", nowhere, "--llm", nowhere]) == 1
    drawn = capsys.readouterr()
    assert drawn.out.count("no answer") == 4, "listeners, requests, token2wav, LLM"
    assert "is `cosydit serve` running, and is this its --work-dir?" in drawn.err


def test_metrics_behind_api_keys_say_what_they_need(capsys: pytest.CaptureFixture[str]) -> None:
    with served([""], status=401) as url:
        assert main(["top", "--once", "--gateway", url, "--token2wav", url, "--llm", url]) == 1
    assert "401: needs --metrics-port" in capsys.readouterr().out


def test_the_services_of_a_running_serve_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served([gateway()]) as url, served([TOKEN2WAV]) as first, served([TOKEN2WAV]) as second, served([VLLM]) as llm:
        with announced(tmp_path, {"gateway": [url], "token2wav": [first, second], "llm": [llm]}):
            assert main(["top", "--once", "--work-dir", str(tmp_path)]) == 0
    drawn = capsys.readouterr().out
    for found in (url, first, second, llm):
        assert found.removeprefix("http://").removesuffix("/metrics") in drawn
    assert "no answer" not in drawn


def test_what_is_named_wins_over_what_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (dead,) = free_ports(1)
    with served([gateway()]) as url, announced(tmp_path, {"gateway": [f"http://127.0.0.1:{dead}/"]}):
        assert main(["top", "--once", "--work-dir", str(tmp_path), "--gateway", url]) == 0
    assert url.removeprefix("http://").removesuffix("/metrics") in capsys.readouterr().out


def test_a_run_that_has_ended_is_not_found(tmp_path: Path) -> None:
    metrics = {"gateway": ["http://127.0.0.1:8080/metrics"]}
    with announced(tmp_path, metrics):
        assert running_metrics(tmp_path) == metrics
        left = (tmp_path / RUNNING_FILE).read_text()
    assert running_metrics(tmp_path) == {}
    # A killed run leaves its file.
    (tmp_path / RUNNING_FILE).write_text(left.replace(f'"pid": {os.getpid()}', '"pid": 99999999'))
    assert running_metrics(tmp_path) == {}


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        pytest.param("--gateway", "127.0.0.1:8080/metrics", "such as http://", id="no scheme"),
        pytest.param("--token2wav", "localhost:8002", "such as http://", id="a name that reads as a scheme"),
        pytest.param("--llm", "http://", "such as http://", id="no host"),
        pytest.param("--llm", "http://[::1", "such as http://", id="no address"),
        pytest.param("--llm", "http://host:port/metrics", "such as http://", id="no port"),
    ],
)
def test_an_option_that_can_not_work_is_an_error_of_usage(
    capsys: pytest.CaptureFixture[str], option: str, value: str, expected: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["top", "--once", f"{option}={value}"])
    assert ended.value.code == 2
    complaint = capsys.readouterr().err.splitlines()[-1]
    assert option in complaint and repr(value) in complaint and expected in complaint
