"""An earlier commit beside this tree, to measure both by turns."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BASE_COMMIT = "b374f7393aeee884c79c1c26a7b77556c842a9d9"
"""The commit before the smaller house."""


@contextmanager
def checked_out(commit: str, tree: Path) -> Iterator[Path]:
    """Have a commit of this repository in a directory while the context lasts.

    Raises:
        subprocess.CalledProcessError: git refused.
    """
    git = partial(subprocess.run, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    git(["git", "worktree", "add", "--quiet", "--detach", str(tree), commit])
    try:
        yield tree
    finally:
        git(["git", "worktree", "remove", "--force", str(tree)])


def own_code(tree: Path) -> dict[str, str]:
    """Return what a process's environment needs to run a tree's code; its working directory must be the tree."""
    return {"PYTHONPATH": f"{tree}:{tree / 'proto' / 'gen'}"}
