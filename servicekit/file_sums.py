"""SHA-256 of files, and of a checkpoint's weights: `SHA256SUMS` at its root, in the form that `sha256sum -c` reads.

Paths are relative to the list's own folder. Official directories come without the list; `cosydit checkpoint seal`
writes it. Imports nothing heavy.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Iterable
from pathlib import Path

from servicekit.files import write_text
from servicekit.logs import PlainError

SUMS_FILE = "SHA256SUMS"
WEIGHT_SUFFIXES = (".pt", ".safetensors", ".onnx", ".bin", ".npz")
_BLOCK_BYTES = 1 << 20
_DIGEST_LENGTH = 64


class FileSumsError(PlainError):
    """A file is not the one that was listed, is damaged, or the list can't be read; the message says what to do."""


def sha256_of_file(path: Path) -> str:
    """Return a file's SHA-256 as hex.

    Raises:
        OSError: it can't be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def sha256_of_json(content: object) -> str:
    """Return the SHA-256 of plain data, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def sha256_of_code(paths: Iterable[Path]) -> str:
    """Return one SHA-256 for several source files, by name and content."""
    return sha256_of_json({path.name: sha256_of_file(path) for path in paths})


def write_sums(directory: Path) -> Path:
    """List every weight file under a checkpoint's root; returns the list's path.

    Raises:
        OSError: a file can't be read, or the list can't be written.
    """
    found = sorted(path for path in directory.rglob("*") if path.suffix in WEIGHT_SUFFIXES and path.is_file())
    visible = [path for path in found if not any(part.startswith(".") for part in path.relative_to(directory).parts)]
    lines = [f"{sha256_of_file(path)}  {path.relative_to(directory).as_posix()}\n" for path in visible]
    target = directory / SUMS_FILE
    write_text(target, "".join(lines))
    return target


def sums_path(directory: Path) -> Path | None:
    """Return the list that a checkpoint's folder is in, its own or the one above; None if there is none."""
    folder = Path(os.path.abspath(directory))  # not resolved: hubs keep files elsewhere, behind links
    return next((place / SUMS_FILE for place in (folder, folder.parent) if (place / SUMS_FILE).is_file()), None)


def check_file(path: Path) -> None:
    """Compare a weight file with its list, if there is one; without it only with the sums in a PyTorch file itself.

    Raises:
        FileSumsError: it differs, is damaged, or lies unlisted among listed files.
        OSError: it can't be read.
    """
    listed = sums_path(path.parent)
    if listed is None:
        return _check_archive(path)
    sums, name = _read_sums(listed), Path(os.path.abspath(path)).relative_to(listed.parent).as_posix()
    if name in sums:
        return _compare(path, sums[name], listed)
    if any(Path(other).parent == Path(name).parent for other in sums):
        raise FileSumsError(f"{path} is not listed in {listed}; {_remedy(listed)}")
    return _check_archive(path)


def check_files(paths: Iterable[Path]) -> None:
    """Check several; see `check_file`."""
    for path in paths:
        check_file(path)


def _compare(path: Path, expected: str, listed: Path) -> None:
    found = sha256_of_file(path)
    if found != expected:
        raise FileSumsError(
            f"{path} has SHA-256 {found[:12]}..., expected {expected[:12]}... of {listed}: it is damaged or another "
            f"file; download or make it again. {_remedy(listed)}"
        )


def _remedy(listed: Path) -> str:
    return f"If it was changed on purpose, list the files anew: cosydit checkpoint seal {listed.parent}"


def _check_archive(path: Path) -> None:
    """PyTorch's files are archives with a sum for each tensor, which torch.load does not look at."""
    if path.suffix != ".pt" or not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError) as error:
        raise FileSumsError(f"{path} is damaged ({error}); download or make it again") from error
    if damaged is not None:
        raise FileSumsError(f"{path} is damaged: {damaged} has another sum; download or make it again")


def _read_sums(listed: Path) -> dict[str, str]:
    sums: dict[str, str] = {}
    for number, line in enumerate(listed.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        digest, _, name = line.partition("  ")
        if len(digest) != _DIGEST_LENGTH or not name:
            raise FileSumsError(
                f"{listed}, line {number}: expected a SHA-256, two spaces and a path; {_remedy(listed)}"
            )
        sums[name.removeprefix("./")] = digest.lower()
    return sums
