"""Official clients, unmodified, each from a virtual environment of its own: DIRECTORY/<client>/bin/python.

    COSYDIT_CLIENTS=DIRECTORY pytest -c lab/pyproject.toml lab/conformance

Part of no other run: the clients don't agree on their dependencies, with each other or with ours.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.gateway.conftest import voices

__all__ = ["voices"]

DIRECTORY = "COSYDIT_CLIENTS"
_SCRIPTS = Path(__file__).parent / "clients"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark these tests as slow: each starts a client's Python."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def python_of() -> Callable[[str], Path]:
    """Return what finds the Python of a client's environment."""

    def find(client: str) -> Path:
        python = Path(os.environ.get(DIRECTORY, "")) / client / "bin" / "python"
        if DIRECTORY not in os.environ or not python.exists():
            pytest.skip(f"{python} is not there; make the environment and set {DIRECTORY} to the directory it is in")
        return python

    return find


async def run_script(
    python: Path, script: str, *arguments: str, timeout_s: float = 120, environment: Mapping[str, str] | None = None
) -> None:
    """Run a script of `clients/` while this event loop serves it; fails with what it wrote if it fails."""
    # The clients look for keys, proxies and addresses in the environment.
    clean = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG", "TMPDIR")}
    process = await asyncio.create_subprocess_exec(
        python,
        _SCRIPTS / script,
        *arguments,
        env={**clean, **(environment or {})},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), timeout_s)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, output.decode()
