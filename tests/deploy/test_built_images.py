"""The images, built and run: three containers speak a sentence as Compose would have them, and end by SIGTERM.

By hand and nightly, as root on Debian, with buildah and debootstrap installed; it takes a quarter of an hour and 15 GB:
`make test-images`. The sizes and times go to the file that COSYDIT_IMAGES names. With COSYDIT_IMAGES_BUILT=1 the images
that buildah has are taken.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from cosydit.bench.report import describe_environment
from tests import ROOT
from tests.deploy.tools import DEPLOY, compose_v2
from tests.workers import free_ports, wait_until

RESULT = os.environ.get("COSYDIT_IMAGES")
pytestmark = [
    pytest.mark.servers,
    pytest.mark.slow,
    pytest.mark.skipif(RESULT is None, reason="takes a quarter of an hour: make test-images"),
]
TAG = "0.2.0"
IMAGES = {"llm": "engines-cpu", "token2wav": "cpu", "gateway": "gateway"}
"""Service -> the image that it runs from: the GPU image's half without CUDA, the CPU image, the gateway's."""
FORMATS = ("mp3", "opus", "aac", "flac", "wav")
KEY = "a-key-for-this-test-alone"
SENTENCE = "It costs $3.50, and the train leaves at 10:45."
START_TIMEOUT_S, STOP_TIMEOUT_S = 600, 90
UNITS_MB = {"kB": 1e-3, "MB": 1.0, "GB": 1e3}


def buildah(*arguments: str) -> str:
    """Run buildah to its end and return what it printed."""
    return subprocess.run(["buildah", *arguments], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(scope="module")
def built() -> dict[str, float]:
    """Build each image; return the seconds that it took."""
    took = {}
    for image in IMAGES.values() if os.environ.get("COSYDIT_IMAGES_BUILT") != "1" else ():
        began = time.monotonic()
        environment = {**os.environ, "BUILDER": "buildah"}
        subprocess.run(["deploy/docker/images.sh", image], cwd=ROOT, check=True, env=environment)
        took[image] = round(time.monotonic() - began, 1)
    return took


def image_mb(image: str) -> float:
    """Return an image's size as buildah tells it, without compression."""
    number, unit = json.loads(buildah("images", "--json", f"cosydit/{image}:{TAG}"))[0]["size"].split()
    return round(float(number) * UNITS_MB[unit], 1)


class Containers:
    """The services of compose.yaml with cpu.yaml as containers on this machine's network, with ports of their own."""

    def __init__(self, checkpoint: Path) -> None:
        files = ("--env-file", "env.example", "-f", "compose.yaml", "-f", "cpu.yaml", "config")
        self._services = yaml.safe_load(compose_v2().output(*files, cwd=DEPLOY / "compose"))["services"]
        names = ("8000", "18000", "8001", "8002", "8080", "50051", "9464")
        self.ports = dict(zip(names, map(str, free_ports(len(names))), strict=True))
        self._checkpoint = checkpoint
        hosts = [option for name in IMAGES for option in ("--add-host", f"{name}:127.0.0.1")]
        self.ids = {
            name: buildah("from", "--pull-never", *hosts, f"cosydit/{image}:{TAG}") for name, image in IMAGES.items()
        }

    def moved(self, word: str) -> str:
        """Return a word of a command with this run's ports; `dns:` is asked by its name as in Compose."""
        for told, here in self.ports.items():
            if word.endswith(f":{told}") or f":{told}/" in word:
                return word.replace(f":{told}", f":{here}")
        return word

    def command(self, name: str, words: Sequence[str], *mounts: str) -> list[str]:
        """Return how buildah runs a command in a service's container; it has the checkpoint, or else `mounts`."""
        environment = {**self._services[name]["environment"], "COSYDIT_API_KEYS": f"anna {KEY}"}
        given = [option for key, value in environment.items() for option in ("--env", f"{key}={value}")]
        for mount in mounts or (f"{self._checkpoint}:/models/checkpoint:ro",):
            given += ["-v", mount]
        run = ["buildah", "run", "--isolation", "chroot", "--network", "host", *given, self.ids[name], "--"]
        return [*run, *map(self.moved, words)]

    def start_command(self, name: str) -> list[str]:
        """Return how the service is started, on its own ports."""
        ports = self.ports
        own = {
            "llm": [f"--port={ports['8000']}"],
            "token2wav": [
                *(f"--http-port={ports['18000']}", f"--grpc-port={ports['8001']}"),
                f"--metrics-port={ports['8002']}",
            ],
            "gateway": [
                *(f"--port={ports['8080']}", f"--grpc-port={ports['50051']}", f"--metrics-port={ports['9464']}"),
            ],
        }
        return self.command(name, [*self._services[name]["command"], *own[name]])

    def is_healthy(self, name: str) -> bool:
        """Run the container's own health check in it."""
        words = self._services[name]["healthcheck"]["test"][1:]
        return subprocess.run(self.command(name, words), capture_output=True, check=False, timeout=60).returncode == 0

    def close(self) -> None:
        """Remove the containers."""
        for container in self.ids.values():
            buildah("rm", container)


@contextlib.contextmanager
def running(containers: Containers, name: str, log: Path, stop_s: dict[str, float]) -> Iterator[None]:
    """Run a service; on the way out its process gets SIGTERM, as from `docker stop`, and must end well."""
    with log.open("wb") as output:
        process = subprocess.Popen(containers.start_command(name), stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: service_pid(process.pid) is not None, f"{name}'s start", START_TIMEOUT_S)
        yield
        began = time.monotonic()
        pid = service_pid(process.pid)
        assert pid is not None, log.read_text()
        os.kill(pid, signal.SIGTERM)
        # A service ends well, or by the signal itself, which buildah tells in words.
        assert process.wait(STOP_TIMEOUT_S) == 0 or "subprocess exited on terminated" in log.read_text(), (
            log.read_text()
        )
        stop_s[name] = round(time.monotonic() - began, 2)
    finally:
        process.kill()
        process.wait()


def service_pid(parent: int) -> int | None:
    """Return the container's first process, somewhere below buildah's."""
    # Of each thread: buildah starts it from any.
    children = [each for path in Path(f"/proc/{parent}/task").glob("*/children") for each in path.read_text().split()]
    for child in map(int, children):
        words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        found = child if words[1:2] == [b"-m"] else service_pid(child)
        if found is not None:
            return found
    return None


def spoken(port: str, audio_format: str) -> tuple[float, bytes]:
    """Speak the sentence; return the seconds until its last byte, and the file."""
    body = {"model": "cosydit", "input": SENTENCE, "voice": "default", "response_format": audio_format}
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
    url = f"http://127.0.0.1:{port}/v1/audio/speech"
    began = time.monotonic()
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=300) as answer:
        audio = answer.read()
    return time.monotonic() - began, audio


def environment_mb(containers: Containers) -> float:
    """Return the size of what is installed in the gateway's image beside Debian."""
    done = subprocess.run(
        containers.command("gateway", ["du", "-sb", "/opt/cosydit"]), capture_output=True, text=True, check=True
    )
    return int(done.stdout.split()[0]) / 1e6


def test_three_containers_speak_as_compose_has_them(built: Mapping[str, float], tmp_path: Path) -> None:
    folder = tmp_path / "shared"  # the containers' user reaches it
    folder.mkdir()
    folder.chmod(0o777)
    stop_s: dict[str, float] = {}
    containers = Containers(folder / "demo")
    try:
        unpack = ["cosydit", "checkpoint", "unpack-demo", "/out/demo"]
        subprocess.run(containers.command("token2wav", unpack, f"{folder}:/out"), check=True)
        start_s = {}
        with contextlib.ExitStack() as services:
            for together in (("llm", "token2wav"), ("gateway",)):  # as depends_on has it
                began = time.monotonic()
                for name in together:
                    services.enter_context(running(containers, name, tmp_path / f"{name}.log", stop_s))
                for name in together:
                    wait_until(lambda name=name: containers.is_healthy(name), f"{name} being healthy", START_TIMEOUT_S)  # type: ignore[misc]
                    start_s[name] = round(time.monotonic() - began, 1)
            first_s, _ = spoken(containers.ports["8080"], "mp3")
            files = {each: spoken(containers.ports["8080"], each) for each in FORMATS}
        assert all(len(audio) > 5000 for _, audio in files.values())
        base = json.loads(buildah("inspect", containers.ids["gateway"]))["OCIv1"]["config"]["Labels"]["cosydit.base"]
        figures = {
            "images_built": len(IMAGES),
            "images_ran": len(stop_s),
            "gateway_image_mb": image_mb("gateway"),
            "gateway_environment_mb": round(environment_mb(containers), 1),
            "engines_cpu_image_mb": image_mb("engines-cpu"),
            "cpu_image_mb": image_mb("cpu"),
            "three_container_sentence_s": round(files["mp3"][0], 2),
            "three_container_first_sentence_s": round(first_s, 2),
        }
        print(json.dumps(figures))  # noqa: T201
        told = {"built_on": base, "build_s": built, "start_s": start_s, "stop_s": stop_s, "sentence": SENTENCE}
        result = {"figures": figures, **told, "environment": describe_environment({"command": "make test-images"})}
        Path(str(RESULT)).write_text(json.dumps(result, indent=1) + "\n")
    finally:
        containers.close()
    assert figures["gateway_image_mb"] <= 300 and figures["gateway_environment_mb"] <= 250
