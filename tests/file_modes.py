"""What others may read of the files that we write."""

from __future__ import annotations

import stat
from pathlib import Path


def assert_all_have_the_usual_mode(directory: Path) -> None:
    """Compare every file's mode with that of a new file: a service of another user must be able to read them."""
    probe = directory / "probe"
    probe.touch()
    usual = stat.S_IMODE(probe.stat().st_mode)
    probe.unlink()
    modes = {str(path): oct(stat.S_IMODE(path.stat().st_mode)) for path in directory.rglob("*") if path.is_file()}
    assert modes
    assert {path: mode for path, mode in modes.items() if mode != oct(usual)} == {}
