"""NVIDIA's MPS, under which two services run on one GPU at the same time instead of in turns of milliseconds.

A daemon that runs already is used and left alone; else one is started here and stopped here. `start` and `stop` are
commands too, for the run script: `python -m cosydit.stack.mps start`.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from servicekit.gpu_host import MPS_CONTROL, MPS_VARIABLE, mps_owner, serves_user

logger = logging.getLogger(__name__)

PROGRAM = "nvidia-cuda-mps-control"
LOG_VARIABLE = "CUDA_MPS_LOG_DIRECTORY"
SWITCH_VARIABLE, OFF = "COSYDIT_MPS", "off"
"""`off` here keeps the services from MPS; anything else uses it where it can be had."""
_NO_PIPES = "no-mps"
"""Folder below the logs that is never made. CUDA runs without MPS if the folder that is named has no daemon; if none is
named, it looks in `SYSTEM_PIPES`."""
SYSTEM_PIPES = Path("/tmp/nvidia-mps")
"""Folder where CUDA looks for the daemon if no other is named."""
ANSWER_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class MpsUse:
    """How this host's MPS is used."""

    note: str
    """Message to the user: what was found or done."""
    pipes: Path | None = None
    """Value of CUDA_MPS_PIPE_DIRECTORY for the services; None: it stays as it is."""
    is_ours: bool = False
    """Whether the daemon was started here, and must be stopped here."""


def run_control(command: Sequence[str], text: str, environment: Mapping[str, str]) -> bool:
    """Run the daemon's control program with a text on its standard input; tells whether it ended well."""
    try:
        done = subprocess.run(
            command,
            input=text.encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **environment},
            timeout=ANSWER_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as err:
        logger.warning("%s: %s", " ".join(command), err)
        return False
    return done.returncode == 0


def own_pipes() -> Path:
    """Return where a daemon of ours has its pipes: one place a user, short, for a socket's path may have 107 bytes."""
    return Path(tempfile.gettempdir()) / f"cosydit-mps-{os.getuid()}"


def start_mps(log_dir: Path) -> MpsUse:
    """Find a running daemon that serves this user, or start one, which writes its logs below `log_dir`."""
    if os.environ.get(SWITCH_VARIABLE) == OFF:
        off = f"off: {SWITCH_VARIABLE}={OFF}; the services take turns on the GPU, which costs a lot"
        return MpsUse(off, log_dir / _NO_PIPES)
    if shutil.which(PROGRAM) is None:
        return MpsUse(
            f"off: {PROGRAM} is not on PATH; without it the services take turns on the GPU, which costs a lot"
        )
    named = os.environ.get(MPS_VARIABLE)
    refused = ""
    for pipes in (Path(named),) if named else (SYSTEM_PIPES, own_pipes()):
        if not _answers(pipes):
            continue
        if serves_user(mps_owner(pipes), os.getuid()):
            return MpsUse(f"on: a daemon that runs already ({pipes}); it is left running", pipes)
        refused = f"; the daemon at {pipes} belongs to another user and serves nobody else"
    return _started(Path(named) if named and not refused else own_pipes(), log_dir, refused)


def stop_mps(use: MpsUse, is_client: bool = False) -> None:
    """Stop the daemon that `start_mps` started; leaves others alone.

    It ends when its last client has: a process that is one (`is_client`) only asks it to.
    """
    if not use.is_ours or use.pipes is None:
        return
    environment = {MPS_VARIABLE: str(use.pipes)}
    if is_client:
        shell, env = ["/bin/sh", "-c", f"echo quit | {PROGRAM} > /dev/null 2>&1 &"], {**os.environ, **environment}
        subprocess.run(shell, stdin=subprocess.DEVNULL, env=env, start_new_session=True, check=False)
    else:
        run_control([PROGRAM], "quit\n", environment)


@contextmanager
def mps_running(log_dir: Path, is_client: bool = False) -> Iterator[MpsUse]:
    """Have a daemon while the context lasts, and its place in this process's environment, which services inherit.

    See `start_mps` and `stop_mps`.
    """
    use = start_mps(log_dir)
    before = os.environ.get(MPS_VARIABLE)
    if use.pipes is not None:
        os.environ[MPS_VARIABLE] = str(use.pipes)
    try:
        yield use
    finally:
        if before is None:
            os.environ.pop(MPS_VARIABLE, None)
        else:
            os.environ[MPS_VARIABLE] = before
        stop_mps(use, is_client)


def _started(pipes: Path, log_dir: Path, refused: str) -> MpsUse:
    logs = log_dir / "mps"
    try:
        pipes.mkdir(mode=0o700, parents=True, exist_ok=True)
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        return MpsUse(f"off: {err}{refused}")
    if pipes.stat().st_uid != os.getuid():
        return MpsUse(f"off: {pipes} belongs to another user{refused}")
    if not run_control([PROGRAM, "-d"], "", {MPS_VARIABLE: str(pipes), LOG_VARIABLE: str(logs)}):
        return MpsUse(f"off: {PROGRAM} -d failed, see {logs}; the services take turns on the GPU{refused}")
    return MpsUse(f"on: a daemon started here ({pipes}), stopped with the services{refused}", pipes, is_ours=True)


def _answers(pipes: Path) -> bool:
    """Tell whether a daemon listens there; if there is no socket, does not try to connect."""
    if not (pipes / MPS_CONTROL).exists():
        return False
    return run_control([PROGRAM], "get_server_list\n", {MPS_VARIABLE: str(pipes)})


def main(argv: Sequence[str] | None = None) -> int:
    """Start or stop a daemon for the run script.

    `start` writes the pipes' directory to standard output, with `ours` before it if the daemon was started here, and
    nothing if there is none; the note for a person goes to standard error.
    """
    parser = argparse.ArgumentParser(prog="python -m cosydit.stack.mps", description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("start", "stop"))
    parser.add_argument(
        "--log-dir", type=Path, default=Path(tempfile.gettempdir()), help="start: directory for the logs"
    )
    args = parser.parse_args(argv)
    if args.action == "stop":
        stop_mps(MpsUse("", Path(os.environ.get(MPS_VARIABLE, own_pipes())), is_ours=True))
        return 0
    use = start_mps(args.log_dir)
    sys.stderr.write(f"MPS {use.note}\n")
    if use.pipes is not None:
        sys.stdout.write(f"{'ours' if use.is_ours else 'theirs'} {use.pipes}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
