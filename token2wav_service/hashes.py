"""Hashes of files and of code; a large file is read again only when its size or time has changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from servicekit.file_sums import sha256_of_file
from servicekit.files import write_text


class FileHashes:
    """SHA-256 of files, remembered in a JSON file under their absolute paths."""

    def __init__(self, memory: Path) -> None:
        self._memory = memory
        self._known = _read(memory)

    def sha256(self, path: Path) -> str:
        """Return a file's SHA-256 as hex.

        Raises:
            OSError: the file can't be read.
        """
        status = path.stat()
        stamp = [status.st_size, status.st_mtime_ns]
        known = self._known.get(str(path.resolve()))
        if known is not None and known[:2] == stamp:
            return str(known[2])
        found = sha256_of_file(path)
        self._known[str(path.resolve())] = [*stamp, found]
        write_text(self._memory, json.dumps(self._known, indent=1, sort_keys=True) + "\n")
        return found


def sha256_of_json(content: object) -> str:
    """Return the SHA-256 of plain data, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def sha256_of_code(paths: Iterable[Path]) -> str:
    """Return one SHA-256 for several source files, by name and content."""
    return sha256_of_json({path.name: sha256_of_file(path) for path in paths})


def _read(memory: Path) -> dict[str, list[object]]:
    try:
        known = json.loads(memory.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
