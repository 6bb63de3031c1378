"""Writes files whole or not at all; sets modes and translates errors for files that libraries write."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
import stat
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from servicekit.logs import first_line

PART_SUFFIX = ".part"
"""Ending of a file that is being written; one left behind belongs to a process that died."""
ONLY_OWNER = 0o600
"""Mode of a file that its owner alone reads."""


def write_text(path: Path, text: str) -> None:
    """Write a file as UTF-8: readers see it as it was before, or all of it.

    Raises:
        OSError: the disk refuses.
    """
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes, mode: int | None = None) -> None:
    """Write a file: readers see it as it was before, or all of it, also after the machine has lost its power.

    Args:
        path: in a folder that is there.
        mode: of the file, such as `ONLY_OWNER`; None: that of any new file here.

    Raises:
        OSError: the disk refuses; the file is as it was.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}{PART_SUFFIX}")
    try:
        opened = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666 if mode is None else mode)
        with os.fdopen(opened, "wb") as part:
            if mode is not None:
                os.fchmod(opened, mode)
            part.write(data)
            part.flush()
            os.fsync(opened)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


LOCK_FILE = ".lock"
_ASK_AGAIN_S = 0.005
LOCK_WAIT_S = 10.0
"""Seconds after which a lock is not waited for any more: a change under it takes milliseconds."""


@asynccontextmanager
async def locked(directory: Path, within_s: float = LOCK_WAIT_S) -> AsyncIterator[None]:
    """Lock a directory against changes by all other tasks and processes of this machine until the context is left.

    Raises:
        OSError: its lock file can't be opened, or another process has held the lock for `within_s`.
    """
    give_up_s = time.monotonic() + within_s
    lock = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, stat.S_IRUSR | stat.S_IWUSR)
    try:
        while not takes_lock(lock):
            if time.monotonic() > give_up_s:
                raise TimeoutError(errno.ETIMEDOUT, f"another process has held {LOCK_FILE} for {within_s:g} s")
            await asyncio.sleep(_ASK_AGAIN_S)
        yield
    finally:
        os.close(lock)


def takes_lock(lock: int) -> bool:
    """Lock an open file until it is closed; returns False where another process holds it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def usual_mode(path: Path) -> Iterator[Path]:
    """Give what is written to `path` in this block the mode of any new file here, or the one that it had before.

    safetensors' `save_file` leaves 0600 whatever the umask says, and a service of another user can't read that.
    """
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    yield path
    path.chmod(mode)


@contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Translate errors of torch's and safetensors' writers into a full disk, or a disk that can't be written.

    Raises:
        OSError: instead of theirs, with the room that is left.
    """
    try:
        yield
    except Exception as error:
        if not (type(error).__name__ == "SafetensorError" or isinstance(error, RuntimeError)):
            raise
        where = next(folder for folder in (directory, *directory.absolute().parents) if folder.is_dir())
        free_mib = shutil.disk_usage(where).free // (1 << 20)
        raise OSError(
            f"{directory} can't be written ({first_line(error)}); {free_mib} MiB are free there, and files may be "
            "limited in size"
        ) from error
