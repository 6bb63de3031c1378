"""How a server's launcher tells the models inside that it stops: a file, whose name they find in their environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

DRAIN_FLAG_VARIABLE = "COSYDIT_DRAIN_FLAG"
"""Environment variable with the file's path; while the file is there, the server drains."""


def read_drain_flag(environment: Mapping[str, str]) -> Callable[[], bool]:
    """Return what tells whether the server drains; without the variable it never does."""
    path = environment.get(DRAIN_FLAG_VARIABLE)
    return Path(path).exists if path else lambda: False
