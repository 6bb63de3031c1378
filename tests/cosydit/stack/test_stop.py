"""However `cosydit serve` and `cosydit say` are stopped, no service is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from cosydit.stack.checkpoint.checkpoints import CheckpointLayout
from cosydit.stack.process import ServiceProcess, ServiceSpec, ServiceStartError, stopped_by_signals
from cosydit.stack.stack import LocalStack, StackOptions, announced, running_metrics
from tests.workers import free_ports, wait_until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 60.0
INTERRUPTED = 130
LONG_S, SHORT_S = "30", "0"


class Running:
    """A command over fake services."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def output(self) -> str:
        return self._log.read_text()

    @property
    def services(self) -> list[int]:
        return [int(pid) for pid in re.findall(r"pid (\d+), log", self.output)]

    def end(self) -> int:
        return self.process.wait(PATIENCE_S)


@contextmanager
def running(command: str, tmp_path: Path, ending_s: str, last_word: str) -> Iterator[Running]:
    log = tmp_path / "out"
    ports = [str(port) for port in free_ports(7)]
    arguments = [sys.executable, "-m", "tests.cosydit.stack.fake_services", command, str(tmp_path), ending_s, *ports]
    with log.open("wb") as out:
        process = subprocess.Popen(arguments, stdout=out, stderr=out, start_new_session=True, cwd=ROOT)
    started = Running(process, log)
    try:
        wait_until(lambda: last_word in started.output, f"{last_word!r} in {log}")
        yield started
    finally:
        for pid in [process.pid, *started.services]:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        process.wait()


def test_serve_says_where_everything_is_and_other_commands_find_it(tmp_path: Path) -> None:
    with announced(tmp_path, {"llm": []}), running("serve", tmp_path, SHORT_S, "speak:") as started:
        assert f"another `cosydit serve` uses {tmp_path}" in started.output
        metrics = running_metrics(tmp_path)
        assert set(metrics) == {"gateway", "token2wav", "llm"}
        url = metrics["gateway"][0].removesuffix("/metrics")
        ours = rf"logs +{tmp_path}/logs$", rf"watch +cosydit top --work-dir {tmp_path}$"
        for line in (rf"page +{url}/$", rf"base URL +{url}/v1", r"gRPC +127\.0\.0\.1:\d+$", *ours):
            assert re.search(line, started.output, re.MULTILINE), started.output
        started.process.send_signal(signal.SIGTERM)
        started.end()
    assert running_metrics(tmp_path) == {}


def is_running(pid: int) -> bool:
    """Tell whether a process that need not be our child lives; a zombie does not."""
    stat = Path(f"/proc/{pid}/stat")
    with suppress(OSError):
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.parametrize(
    ("command", "last_word", "services", "number"),
    [
        ("serve", "speak:", 3, signal.SIGINT),
        ("serve", "speak:", 3, signal.SIGHUP),
        ("say", "speaking", 2, signal.SIGTERM),
    ],
)
def test_each_signal_that_ends_a_command_ends_its_services(
    tmp_path: Path, command: str, last_word: str, services: int, number: int
) -> None:
    with running(command, tmp_path, SHORT_S, last_word) as started:
        assert len(started.services) == services
        started.process.send_signal(number)
        assert started.end() == INTERRUPTED
        assert not any(map(is_running, started.services))


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_kills_all_services_at_once(tmp_path: Path, second: int) -> None:
    with running("serve", tmp_path, LONG_S, "speak:") as started:
        started.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert all(map(is_running, started.services)), "they may take their time"
        started.process.send_signal(second)
        assert started.end() == INTERRUPTED
        assert not any(map(is_running, started.services))


def test_a_signal_that_was_to_be_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopped_by_signals(lambda: None):
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_error_shows_the_log_of_this_run_alone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("an error of yesterday\n")
    service = ServiceProcess(
        ServiceSpec("broken", [sys.executable, "-c", "print('no GPU')"], "http://127.0.0.1:9/", log)
    )
    with service, pytest.raises(ServiceStartError, match=r"exited with status 0; the end of .*log:\nno GPU$"):
        service.wait_ready(30.0)
    assert log.read_text() == "an error of yesterday\nno GPU\n"


def test_an_interrupted_stop_kills_what_would_not_end(tmp_path: Path) -> None:
    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    spec = ServiceSpec("stubborn", [sys.executable, "-c", program], "", tmp_path / "log")
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    service = ServiceProcess(spec)
    service.start()
    while not spec.log_path.read_text():
        time.sleep(0.02)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            service.stop()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert service.returncode == -signal.SIGKILL


def test_the_services_of_a_killed_serve_end_as_at_any_stop(tmp_path: Path) -> None:
    with running("serve", tmp_path, "0.5", "speak:") as started:
        services = started.services
        assert len(services) == 3 and all(map(is_running, services))
        started.process.kill()
        started.end()
        wait_until(lambda: not any(map(is_running, services)), "the services' end")


@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_serve_that_stops_too_slowly_takes_its_services_along(tmp_path: Path, is_frozen: bool) -> None:
    ports = [str(port) for port in free_ports(7)]
    command = [sys.executable, "-m", "tests.cosydit.stack.fake_services", "serve", str(tmp_path), LONG_S, *ports]
    serve = ServiceProcess(ServiceSpec("serve", command, "", tmp_path / "out", stop_timeout_s=0.5))
    serve.start()
    started = Running(serve._process, tmp_path / "out")  # type: ignore[arg-type]
    services: list[int] = []
    try:
        wait_until(lambda: "speak:" in started.output, "the start")
        services = started.services
        assert len(services) == 3 and all(map(is_running, services))
        if is_frozen:
            os.kill(serve.pid, signal.SIGSTOP)
        serve.stop()
        wait_until(lambda: not any(map(is_running, services)), "the services' end", patience_s=1.0)
    finally:
        serve.kill()
        for pid in services:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def test_a_killed_service_takes_along_what_it_started_in_a_session_of_its_own(tmp_path: Path) -> None:
    program = (
        "import subprocess, time\n"
        "print(subprocess.Popen(['sleep', '60'], start_new_session=True).pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    service = ServiceProcess(ServiceSpec("parent", [sys.executable, "-c", program], "", tmp_path / "log"))
    with service:
        while not (told := service.spec.log_path.read_text().strip()):
            time.sleep(0.02)
        assert is_running(int(told))
        os.kill(service.pid, signal.SIGKILL)
    assert not is_running(int(told))


def test_a_gateway_whose_stop_fails_keeps_no_backend_from_being_stopped(tmp_path: Path) -> None:
    class Noted(ServiceProcess):
        def stop(self) -> None:
            stopped.append(self.spec.name)
            if self.spec.name == "gateway":
                raise KeyboardInterrupt

    stopped: list[str] = []
    stack = LocalStack(StackOptions(CheckpointLayout.under(tmp_path), tmp_path), with_gateway=True)
    stack._backends = [Noted(service.spec) for service in stack._backends]
    stack.services = [*stack._backends, Noted(stack.services[-1].spec)]
    with pytest.raises(KeyboardInterrupt):
        stack.stop()
    assert sorted(stopped) == ["gateway", "llm_service", "token2wav_service"]


def test_a_service_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    service = ServiceProcess(ServiceSpec("sleeper", ["sleep", "60"], "", tmp_path / "log"))
    thread = threading.Thread(target=service.start)
    thread.start()
    thread.join()
    try:
        with suppress(subprocess.TimeoutExpired):
            service._process.wait(0.5)  # type: ignore[union-attr]
        assert service.returncode is None
    finally:
        service.stop()
