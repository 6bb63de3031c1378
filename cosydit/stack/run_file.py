"""What a running `cosydit serve` tells other commands of this machine: a small JSON file in its working directory.

    WORK_DIR/running/PID.json    where its services are read, locked for as long as it runs

A file that nobody holds locked is left from a command that was killed; the next reader removes it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = "running"


Metrics = dict[str, list[str]]
"""Kind of service (gateway, token2wav or llm) of one running `serve` -> URLs of its metrics."""


@contextmanager
def announced(work_dir: Path, metrics: Metrics) -> Iterator[None]:
    """Tell where a run's services are read until the context is left.

    Raises:
        OSError: the directory can't be written.
    """
    folder = work_dir / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{os.getpid()}.json"
    partial = path.with_suffix(".part")
    with partial.open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        json.dump(metrics, file)
        file.flush()
        os.replace(partial, path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def running(work_dir: Path) -> list[Metrics]:
    """Return the metrics of all runs with this working directory; removes those that a killed run has left."""
    found = [_read(path) for path in sorted((work_dir / FOLDER).glob("*.json"))]
    return [metrics for metrics in found if metrics is not None]


def _read(path: Path) -> Metrics | None:
    try:
        with path.open(encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                found: Metrics = json.load(file)
                return found
            path.unlink(missing_ok=True)
    except (OSError, ValueError):
        pass
    return None
