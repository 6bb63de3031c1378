"""What this host's GPUs are, as the driver's `nvidia-smi` tells it. Imports no model library.

Only the GPUs that this process may use are told: CUDA_VISIBLE_DEVICES narrows them. A slice of a GPU (MIG) counts with
the memory of the slice.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MIB = 1024**2
AUTO, CPU, CUDA = "auto", "cpu", "cuda"
DEVICES = (AUTO, CPU, CUDA)
"""Devices that a user may ask for."""
DEVICE_VARIABLE = "COSYDIT_DEVICE"
COMPILERS = ("gcc", "clang", "cc")
MPS_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
MPS_CONTROL = "control"
"""Name of the daemon's socket in the folder of its pipes."""
_ROOT_UID = 0
QUERY_TIMEOUT_S = 20.0
_FIELDS = ("index", "uuid", "name", "memory.total", "memory.free", "driver_version", "compute_cap", "mig.mode.current")
_QUERY = ("nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits")
_LIST = ("nvidia-smi", "-L")
_SLICE = re.compile(r"^\s*MIG \S*?\d+g\.(?P<gb>\d+)gb\S*\s+Device\s+\d+:\s+\(UUID: (?P<uuid>\S+)\)")
_GPU_LINE = re.compile(r"^GPU (?P<index>\d+):")
_MIB_A_SLICE_GB = 1000**3 // MIB
_NOT_VISIBLE = ("", "-1", "void", "none", "NoDevFiles")

RunProgram = Callable[[Sequence[str]], str]
"""Returns a program's standard output; raises OSError or subprocess.SubprocessError."""


@dataclass(frozen=True)
class GpuFacts:
    """One GPU, or one slice of it."""

    name: str
    memory_mib: int
    """Whole memory in MiB."""
    free_mib: int
    """Free memory in MiB when asked; for a slice `memory_mib`, as the driver does not tell."""
    driver: str
    """Version of the driver, such as 580.95.05."""
    capability: tuple[int, int]
    """Compute capability."""
    is_slice: bool = False
    """True for a MIG slice."""


def run_program(command: Sequence[str]) -> str:
    """Return a program's standard output.

    Raises:
        OSError, subprocess.SubprocessError: it is not there, fails, or takes too long.
    """
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(f"{command[0]} is not on PATH")
    done = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_TIMEOUT_S, check=True)
    return done.stdout


def read_gpus(run: RunProgram = run_program) -> tuple[GpuFacts, ...]:
    """Return the GPUs that this process may use, in CUDA's order; none where the driver lists none."""
    try:
        rows = [_row(line) for line in run(_QUERY).splitlines() if line.strip()]
    except (OSError, ValueError, subprocess.SubprocessError):
        return ()
    found: dict[str, GpuFacts] = {}
    for row in rows:
        found |= _slices(row, run) if row["mig.mode.current"] == "Enabled" else {row["uuid"]: _facts(row)}
    indices = {row["index"]: row["uuid"] for row in rows}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return tuple(found.values()) if visible is None else _visible(visible, found, indices)


def _row(line: str) -> dict[str, str]:
    values = [value.strip() for value in line.split(",")]
    if len(values) != len(_FIELDS):
        raise ValueError(f"nvidia-smi answers {line!r}, expected {', '.join(_FIELDS)}")
    return dict(zip(_FIELDS, values, strict=True))


def _facts(row: Mapping[str, str]) -> GpuFacts:
    major, _, minor = row["compute_cap"].partition(".")
    total = int(row["memory.total"])
    free = row["memory.free"]
    capability = (int(major), int(minor or 0))
    return GpuFacts(row["name"], total, int(free) if free.isdecimal() else total, row["driver_version"], capability)


def _slices(row: Mapping[str, str], run: RunProgram) -> dict[str, GpuFacts]:
    """Return the slices of a GPU that is cut into them, by UUID."""
    whole, slices, index = _facts(row), {}, ""
    for line in run(_LIST).splitlines():
        if gpu := _GPU_LINE.match(line):
            index = gpu["index"]
        elif index == row["index"] and (found := _SLICE.match(line)):
            mib = int(found["gb"]) * _MIB_A_SLICE_GB
            slices[found["uuid"]] = GpuFacts(whole.name, mib, mib, whole.driver, whole.capability, is_slice=True)
    return slices


def _visible(names: str, found: Mapping[str, GpuFacts], indices: Mapping[str, str]) -> tuple[GpuFacts, ...]:
    """Return the named GPUs; as CUDA does, stop at the first name that means none."""
    chosen = []
    for name in (part.strip() for part in names.split(",")):
        uuid = indices.get(name, name)
        matches = [facts for key, facts in found.items() if name not in _NOT_VISIBLE and key.startswith(uuid)]
        if not matches:
            break
        chosen.append(matches[0])
    return tuple(chosen)


def default_device() -> str:
    """Return the device that the environment asks for, else auto."""
    return os.environ.get(DEVICE_VARIABLE) or AUTO


def missing_for_kernels(include: Path | None = None) -> list[str]:
    """Return the Debian packages that GPU kernels lack here: their launchers are compiled on the host.

    `include` is where Python.h should lie; None: where this Python says.
    """
    header = (include or Path(sysconfig.get_path("include"))) / "Python.h"
    named = os.environ.get("CC")
    has_compiler = any(map(shutil.which, (named,) if named else COMPILERS))
    lacking = [] if has_compiler else ["gcc", "libc6-dev"]
    return lacking if header.is_file() else [*lacking, f"libpython{sys.version_info[0]}.{sys.version_info[1]}-dev"]


def mps_owner(pipes: Path) -> int | None:
    """Return the user whose MPS daemon has its pipes there; None if there is none."""
    try:
        return (pipes / MPS_CONTROL).stat().st_uid
    except OSError:
        return None


def serves_user(owner: int | None, uid: int) -> bool:
    """Tell whether a daemon of that owner serves a user: root's serves all users, any other only its owner."""
    return owner is not None and owner in (_ROOT_UID, uid)


def mps_problem(uid: int | None = None) -> str | None:
    """Say why this process can't use the MPS daemon that its environment names; None if it can, or there is none.

    Root's daemon serves every user; any other one serves its owner alone, from whatever container. `uid` is the user of
    this process; None asks.
    """
    named = os.environ.get(MPS_VARIABLE)
    if not named:
        return None
    uid, owner = os.getuid() if uid is None else uid, mps_owner(Path(named))
    if owner is None or serves_user(owner, uid):  # without a daemon CUDA runs all the same
        return None
    return (
        f"the MPS daemon in {named} belongs to user {owner} and serves nobody else; this process is user {uid}: start "
        "the daemon as root, or as the user of both services"
    )
