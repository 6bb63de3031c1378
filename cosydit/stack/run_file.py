"""What a running `cosydit serve` tells other commands of this machine: a small JSON file in its working directory.

    WORK_DIR/running/PID.json    where its services are read, locked for as long as it runs

A file that nobody holds locked is left from a command that was killed; the next reader removes it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

FOLDER = "running"


@dataclass(frozen=True)
class RunRecord:
    """Where one running `serve` is reached; all are URLs."""

    gateway: str | None
    """URL of the gateway; None: no gateway runs."""
    metrics: Mapping[str, Sequence[str]]
    """Service (gateway, token2wav or llm) -> URLs of its metrics."""


@contextmanager
def announced(work_dir: Path, record: RunRecord) -> Iterator[None]:
    """Tell of a run until the context is left.

    Raises:
        OSError: the directory can't be written.
    """
    folder = work_dir / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{os.getpid()}.json"
    partial = path.with_suffix(".part")
    with partial.open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        json.dump(asdict(record), file)
        file.flush()
        os.replace(partial, path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def running(work_dir: Path) -> list[RunRecord]:
    """Return the records of all runs with this working directory; removes those that a killed run has left."""
    found = [_read(path) for path in sorted((work_dir / FOLDER).glob("*.json"))]
    return [record for record in found if record is not None]


def _read(path: Path) -> RunRecord | None:
    try:
        with path.open(encoding="utf-8") as file:
            if not _is_locked(file.fileno()):
                path.unlink(missing_ok=True)
                return None
            return RunRecord(**json.load(file))
    except (OSError, ValueError, TypeError):
        return None


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
