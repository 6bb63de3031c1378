"""What a newcomer types at a shell first, and what must come of it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest
import soundfile

from cosydit.stack.process import answers_ok, read_json
from tests import ROOT
from tests.cosydit.stack.test_stop import SHORT_S, is_running, running
from tests.workers import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COSYDIT_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.mark.parametrize(
    "written", ["speech.wav", "hi.wav", "hello.mp3", "batch-results/0001.wav", "bench-results/results.json", "keys.txt"]
)
def test_git_leaves_what_commands_write_alone(written: str) -> None:
    assert subprocess.run(["git", "check-ignore", "-q", written], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("page", ["README.md", "docs/quick-start-cpu.md"])
def test_the_guide_says_what_an_installation_takes(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    for word in ("1.7 GB", "minutes", "4 GB"):
        assert word in text


# Row 2: serve keeps its promise


def test_serve_brings_a_killed_service_back(tmp_path: Path) -> None:
    with running("serve", tmp_path, SHORT_S, "speak:") as started:
        for pid in started.services:
            os.killpg(pid, signal.SIGKILL)
        wait_until(lambda: started.output.count("is ready again (pid ") == 3, "the return of all services")
        new = [int(pid) for pid in re.findall(r"is ready again \(pid (\d+)\)", started.output)]
        assert all(is_running(pid) for pid in new) and not set(new) & set(started.services)
        assert started.process.poll() is None
        started.process.send_signal(signal.SIGTERM)
        started.end()
        assert not any(is_running(pid) for pid in new)


# Row 14: probes of readiness


@pytest.mark.parametrize("answer", [b"GET / HTTP/1.1\r\n\r\n", b"\x00\xff", b""], ids=["itself", "bytes", "nothing"])
def test_whoever_answers_a_probe_in_no_http_is_not_ready(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reply() -> None:
            for _ in range(2):
                connection, _ = server.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(answer)

        thread = threading.Thread(target=reply)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/health"
        assert not answers_ok(url)
        with pytest.raises(OSError):
            read_json(url)
        thread.join()


# Row 16: the README


def test_the_readme_says_for_whom_why_what_it_takes_and_how_it_sounds() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    for heading in ("For whom", "Alternatives", "Requirements", "Licence"):
        assert f"\n## {heading}\n" in text
    for rival in ("Kokoro-FastAPI", "speaches", "vllm-omni", "sglang-omni", "hosted"):
        assert re.search(rf"^\| \[?{rival}", text, re.MULTILINE)
    (sample,) = re.findall(r"\((docs/sounds/[\w.-]+)\)", text)
    samples, rate_hz = soundfile.read(ROOT / sample)
    assert len(samples) > 10 * rate_hz and np.abs(samples).max() > 0.1
