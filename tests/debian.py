"""Programs of Debian packages that tests need: downloaded and unpacked, not installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from filelock import FileLock

_APT_TIMEOUT_S = 60.0
"""For one command of apt-get; the largest package is 26 MB."""
_UNPACK_TIMEOUT_S = 120.0
_REMEMBER_FAILURE_S = 1800.0
"""How long all tests of a run are spared a download that failed for one of them."""


def unpack(packages: tuple[str, ...], cache: Path) -> Path:
    """Download Debian packages and unpack them into a folder of the cache, once for all workers.

    Skips the test where that can't be done: no Debian, or an archive that does not answer in time.
    """
    root, failure = cache / packages[0], cache / f"{packages[0]}.failed"
    with FileLock(
        Path(tempfile.gettempdir()) / f"cosydit-tests-apt-{os.getuid()}.lock"
    ):  # two apt-get disturb each other
        if root.is_dir():
            return root
        reason = _recent(failure) or _missing_program() or _unpack(packages, root)
        if reason:
            failure.write_text(reason)
            pytest.skip(f"{packages[0]} of Debian can't be had: {reason}")
    return root


def _recent(failure: Path) -> str:
    if failure.exists() and time.time() - failure.stat().st_mtime < _REMEMBER_FAILURE_S:
        return failure.read_text()
    return ""


def _missing_program() -> str:
    missing = [program for program in ("apt-get", "dpkg") if shutil.which(program) is None]
    return f"there is no {missing[0]}" if missing else ""


def _unpack(packages: tuple[str, ...], root: Path) -> str:
    """Make `root`; returns why it could not, or nothing."""
    downloads = root.with_name(f"{root.name}.download")
    shutil.rmtree(downloads, ignore_errors=True)
    (downloads / "root").mkdir(parents=True)
    reason = _download(packages, downloads)
    if not reason:
        for package in downloads.glob("*.deb"):
            command = ["dpkg", "-x", str(package), str(downloads / "root")]
            subprocess.run(command, check=True, capture_output=True, timeout=_UNPACK_TIMEOUT_S)
        (downloads / "root").rename(root)
    shutil.rmtree(downloads)
    return reason


def _download(packages: tuple[str, ...], directory: Path) -> str:
    """Download with the lists that are there, else (as root) with new ones; returns why it failed, or nothing."""
    fetch = ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", *packages]
    attempts = [fetch, ["apt-get", "-qq", "update"], fetch] if os.geteuid() == 0 else [fetch]
    for command in attempts:
        try:
            done = subprocess.run(
                command, cwd=directory, capture_output=True, text=True, timeout=_APT_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return f"{' '.join(command)} did not end within {_APT_TIMEOUT_S:g} s"
        if done.returncode == 0 and command is fetch:
            return ""
    return done.stderr.strip()[-300:]
