"""What the images install and what they start, run here without Docker: the very commands, in bare environments.

It takes minutes and 2 GB, so it is asked for: COSYDIT_IMAGE_COMMANDS=1 pytest tests/deploy/test_image_commands.py
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.deploy.dockerfiles import install_commands
from tests.deploy.tools import DEPLOY, ROOT, compose_v2
from tests.e2e.conftest import wait_until
from tests.workers import free_ports

pytestmark = [
    pytest.mark.servers,
    pytest.mark.slow,
    pytest.mark.skipif(
        os.environ.get("COSYDIT_IMAGE_COMMANDS") != "1", reason="takes minutes: set COSYDIT_IMAGE_COMMANDS=1"
    ),
]
PYTHONS = {"gateway": "3.12", "cpu": "3.11"}
"""Image -> the Python of its base."""
INSTALL_TIMEOUT_S = 1800
KEY = "a-key-for-this-test-alone"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tracked files."""
    directory = tmp_path_factory.mktemp("sources")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, directory / name)
    return directory


@pytest.fixture(scope="module")
def environments(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each image's virtual environment, installed by the commands of its Dockerfile."""
    made = {}
    for image, version in PYTHONS.items():
        made[image] = tmp_path_factory.mktemp(image) / "opt"
        tools = tmp_path_factory.mktemp(f"{image}-tools")
        (tools / "python3").symlink_to(find_python(version))
        for arguments in install_commands(DEPLOY / "docker" / f"{image}.Dockerfile"):
            placed = [str(made[image]) if each == "/opt/cosydit" else each for each in arguments]
            subprocess.run(
                ["bash", "deploy/docker/install.sh", *placed],
                cwd=sources,
                env={**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"},
                check=True,
                timeout=INSTALL_TIMEOUT_S,
            )
    return made


def find_python(version: str) -> Path:
    candidates = [
        shutil.which(f"python{version}"),
        *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python3")),
    ]
    for candidate in filter(None, candidates):
        if subprocess.run([candidate, "-c", "import ensurepip"], capture_output=True, check=False).returncode == 0:
            return Path(candidate)
    pytest.skip(f"there is no Python {version}")


class Stack:
    """The services of compose.yaml with cpu.yaml as processes: their commands, with paths and ports of this machine."""

    def __init__(self, environments: dict[str, Path], work_dir: Path) -> None:
        names = ("8000", "18000", "8001", "8002", "8080", "50051", "9464")
        self.ports = dict(zip(names, map(str, free_ports(len(names))), strict=True))
        self._environments = environments
        self._work_dir = work_dir
        text = compose_v2().output(
            *("--env-file", "env.example", "-f", "compose.yaml", "-f", "cpu.yaml", "config"), cwd=DEPLOY / "compose"
        )
        self._services = yaml.safe_load(text)["services"]
        self._own_ports = {
            "llm": [f"--port={self.ports['8000']}"],
            "token2wav": [
                f"--http-port={self.ports['18000']}",
                f"--grpc-port={self.ports['8001']}",
                f"--metrics-port={self.ports['8002']}",
            ],
            "gateway": [
                f"--port={self.ports['8080']}",
                f"--grpc-port={self.ports['50051']}",
                f"--metrics-port={self.ports['9464']}",
            ],
        }

    def moved(self, word: str) -> str:
        """Return a word of a command as it must be here."""
        for told, here in (
            ("http://llm:8000", f"http://127.0.0.1:{self.ports['8000']}"),
            ("dns:llm:8000", f"http://127.0.0.1:{self.ports['8000']}"),
            ("dns:token2wav:8001", f"127.0.0.1:{self.ports['8001']}"),
            ("/models/llm", str(self._work_dir / "checkpoint/llm")),
            ("/models/checkpoint", str(self._work_dir / "checkpoint")),
            ("/run/cosydit", str(self._work_dir / "run")),
            ("/data/voices", str(self._work_dir / "voices")),
            *((f"127.0.0.1:{port}", f"127.0.0.1:{own}") for port, own in self.ports.items()),
        ):
            if told in word:
                return word.replace(told, here)
        return word

    def environment(self, name: str) -> dict[str, str]:
        """Return what a service finds in its environment, and nothing else."""
        image = "gateway" if name == "gateway" else "cpu"
        path = f"{self._environments[image] / 'bin'}:/usr/bin:/bin"
        told = {key: str(value) for key, value in self._services[name]["environment"].items()}
        return {**told, "PATH": path, "HOME": str(self._work_dir), "COSYDIT_API_KEYS": f"anna {KEY}"}

    @contextlib.contextmanager
    def running(self, name: str) -> Iterator[subprocess.Popen[bytes]]:
        """Start a service; on the way out it must end by SIGTERM, and well."""
        command = [*map(self.moved, self._services[name]["command"]), *self._own_ports[name]]
        with (self._work_dir / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command, env=self.environment(name), cwd=self._work_dir, stdout=log, stderr=subprocess.STDOUT
            )
            try:
                yield process
                process.terminate()
                assert process.wait(60) in (0, -15), (self._work_dir / f"{name}.log").read_text()
            finally:
                process.kill()
                process.wait()

    def is_healthy(self, name: str) -> bool:
        """Run the container's own health check."""
        words = [self.moved(word) for word in self._services[name]["healthcheck"]["test"][1:]]
        done = subprocess.run(words, env=self.environment(name), capture_output=True, check=False, timeout=30)
        return done.returncode == 0


def test_the_cpu_images_commands_speak(environments: dict[str, Path], tmp_path: Path) -> None:
    stack = Stack(environments, tmp_path)
    make = [environments["cpu"] / "bin/cosydit", "checkpoint", "make-random", tmp_path / "checkpoint"]
    subprocess.run(make, env=stack.environment("llm"), check=True, timeout=600)
    with contextlib.ExitStack() as services:
        for name in ("llm", "token2wav", "gateway"):
            services.enter_context(stack.running(name))
        for name in ("llm", "token2wav", "gateway"):
            wait_until(lambda name=name: stack.is_healthy(name), f"{name} being healthy")
        request = urllib.request.Request(
            f"http://127.0.0.1:{stack.ports['8080']}/v1/audio/speech",
            json.dumps({"model": "cosydit", "input": "Hello.", "voice": "default", "response_format": "mp3"}).encode(),
            {"content-type": "application/json", "authorization": f"Bearer {KEY}"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert len(answer.read()) > 1000


def test_what_is_missing_is_named_with_what_makes_it(environments: dict[str, Path], tmp_path: Path) -> None:
    stack = Stack(environments, tmp_path)
    for name, told in (("llm", "stages 0 and 1"), ("token2wav", "stage 0"), ("gateway", "stage 0")):
        with pytest.raises(AssertionError, match=told), stack.running(name) as process:
            assert process.wait(60) not in (0, None)
            raise AssertionError((tmp_path / f"{name}.log").read_text())
