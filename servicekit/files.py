"""Modes of files that others write for us."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def usual_mode(path: Path) -> Iterator[Path]:
    """Give what is written to `path` in this block the mode of any new file here, or the one that it had before.

    safetensors' `save_file` leaves 0600 whatever the umask says, and a service of another user can't read that.
    """
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    yield path
    path.chmod(mode)
