"""Writes directories that appear whole or not at all, each with a record of its sources.

`manifest.json` holds the sources' hashes, the options and the files written. A directory is made under another name and
renamed; a lock keeps two converters apart; what a killed one left behind is removed by the next. Imports nothing heavy:
finding that there is nothing to do must be quick.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_service.errors import CheckpointError

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
# Raised when the same source and options would give other files.
FORMAT = 1
HASH_BLOCK_BYTES = 1 << 22


@dataclass(frozen=True)
class Recipe:
    """What a directory is made of: equal recipes give equal directories."""

    kind: str
    sources: Sequence[Path]  # files
    options: Mapping[str, Any]  # JSON values


def is_up_to_date(directory: Path, recipe: Recipe) -> bool:
    """Tell whether `directory` holds what this recipe gives. Sources of unchanged size and time are not read again."""
    recorded = _recorded(directory)
    if recorded is None or recorded.get("format") != FORMAT or recorded.get("kind") != recipe.kind:
        return False
    if recorded.get("options") != json.loads(json.dumps(dict(recipe.options))):
        return False
    return _same_sources(recorded["sources"], recipe.sources) and _same_files(directory, recorded["files"])


@contextmanager
def new_directory(directory: Path, recipe: Recipe) -> Iterator[Path]:
    """Yield an empty directory to write into; on leaving it becomes `directory`, with its manifest.

    An exception leaves `directory` as it was.

    Raises:
        CheckpointError: `directory` holds something that no converter made, or another converter is at work on it.
    """
    if directory.exists() and any(directory.iterdir()) and _recorded(directory) is None:
        raise CheckpointError(f"{directory} is not empty and has no {MANIFEST}; give another directory")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _locked(directory):
        partial, old = directory.with_name(f".{directory.name}.partial"), directory.with_name(f".{directory.name}.old")
        for leftover in (partial, old):
            shutil.rmtree(leftover, ignore_errors=True)
        partial.mkdir()
        try:
            yield partial
            _write_manifest(partial, recipe)
            if directory.exists():
                directory.rename(old)
            partial.rename(directory)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    path = directory.with_name(f".{directory.name}.lock")
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            raise CheckpointError(f"another converter is writing {directory}; wait for it (lock {path})") from err
        yield


def _write_manifest(directory: Path, recipe: Recipe) -> None:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    manifest = {
        "format": FORMAT,
        "kind": recipe.kind,
        "options": dict(recipe.options),
        "sources": [_fingerprint(path) | {"sha256": _sha256(path)} for path in recipe.sources],
        "files": {str(path.relative_to(directory)): path.stat().st_size for path in files},
    }
    (directory / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _recorded(directory: Path) -> dict[str, Any] | None:
    try:
        recorded = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return recorded if isinstance(recorded, dict) and {"sources", "files"} <= recorded.keys() else None


def _same_sources(recorded: list[dict[str, Any]], paths: Sequence[Path]) -> bool:
    if [entry["name"] for entry in recorded] != [path.name for path in paths]:
        return False
    return all(_same_source(entry, path) for entry, path in zip(recorded, paths, strict=True))


def _same_source(entry: dict[str, Any], path: Path) -> bool:
    now = _fingerprint(path)
    if all(entry.get(key) == value for key, value in now.items()):
        return True
    return bool(entry["size"] == now["size"] and entry["sha256"] == _sha256(path))


def _same_files(directory: Path, files: Mapping[str, int]) -> bool:
    return all((directory / name).is_file() and (directory / name).stat().st_size == files[name] for name in files)


def _fingerprint(path: Path) -> dict[str, Any]:
    status = path.stat()
    return {"name": path.name, "size": status.st_size, "mtime_ns": status.st_mtime_ns}


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(HASH_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
