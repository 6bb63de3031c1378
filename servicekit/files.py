"""Files written whole or not at all, and modes of files that others write for us."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile

PART_SUFFIX = ".part"
"""Of a file that is being written; one left behind belongs to a process that died."""


def write_private(path: Path, data: bytes) -> None:
    """Put `data` into `path` for this user alone: readers see the file as it was before, or all of it.

    Raises:
        OSError: the disk refuses; the file is as it was.
    """
    with NamedTemporaryFile(dir=path.parent, prefix=".", suffix=PART_SUFFIX, delete=False) as part:
        try:
            part.write(data)
            part.flush()
            os.fsync(part.fileno())
            os.replace(part.name, path)
        except BaseException:
            os.unlink(part.name)
            raise


@contextmanager
def usual_mode(path: Path) -> Iterator[Path]:
    """Give what is written to `path` in this block the mode of any new file here, or the one that it had before.

    safetensors' `save_file` leaves 0600 whatever the umask says, and a service of another user can't read that.
    """
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    yield path
    path.chmod(mode)
