"""Starts, watches and stops one tritonserver process.

Knows processes, readiness and shared memory; knows nothing of what the models do.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import logging
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

from servicekit.process import ended_with_parent
from token2wav_service.python_backend.server_process import DRAIN_FLAG_VARIABLE, END_FLAG
from token2wav_service.serving.assemble import count_instances
from token2wav_service.serving.process.installation import (
    MIB,
    SHM_REGION_BYTES,
    ServerOptions,
    find_installation,
    lay_out_backends,
    server_command,
    server_environment,
)

logger = logging.getLogger(__name__)

SHM_HEADROOM_BYTES = 16 * MIB
"""Bytes for regions to grow: several prompts of 18 s (1.2 MB each) and chunks of audio in flight."""
_SHM_DIR = Path("/dev/shm")
_WORK_PREFIX = "cosydit-triton-"
_LOCK_FILE = "lock"
_PRIVATE_MODE = 0o600
"""Mode of shared memory, which holds callers' voices and texts. Triton lets everybody read it, whatever the umask
says."""
_STOP_MARGIN_S = 5.0
"""Seconds beyond the server's own exit timeout after which it is killed."""
_DRAIN_FLAG = "draining"
_STOP_POLL_INTERVAL_S = 0.02
_PROBE_TIMEOUT_S = 2.0


class TritonStartError(Exception):
    """The server can't be started here."""


class TritonProcess:
    """One tritonserver and its model processes; a context manager that starts and stops it."""

    def __init__(self, options: ServerOptions) -> None:
        """Prepare; nothing runs yet."""
        self.options = options
        self._installation = find_installation()
        self._process: subprocess.Popen[bytes] | None = None
        self._work_dir: Path | None = None
        self.shm_prefix = ""
        """Beginning of the names of the server's folder and shared memory; empty before `start`."""
        self._lock: int | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the server, None before `start`."""
        return self._process.pid if self._process else None

    @property
    def returncode(self) -> int | None:
        """Exit status, None while it runs."""
        return self._process.poll() if self._process else None

    def start(self) -> None:
        """Start the server in a session of its own and return at once; it stops when the calling thread is gone.

        Raises:
            TritonStartError: already started, or the shared memory can't hold the model processes.
        """
        if self._process is not None:
            raise TritonStartError("this server was started before: make a new TritonProcess")
        check_shared_memory(self.options.model_repository)
        sweep_leftovers()
        self._work_dir = Path(tempfile.mkdtemp(prefix=_WORK_PREFIX))
        self._lock = _locked(self._work_dir)
        self.shm_prefix = self._work_dir.name
        backends = lay_out_backends(self._installation, self._work_dir)
        command = server_command(self._installation, self.options, backends, self.shm_prefix)
        env = server_environment(self._installation) | {DRAIN_FLAG_VARIABLE: str(self._work_dir / _DRAIN_FLAG)}
        logger.info("starting tritonserver: %s", " ".join(command))
        try:
            self._process = subprocess.Popen(
                ended_with_parent(command),
                env=env,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=(self._lock,),
            )
        except OSError:
            self._clean_up()
            raise

    def hide_shared_memory(self) -> None:
        """Make the shared memory of the server's models readable by their user alone; to be called again and again."""
        for region in _SHM_DIR.glob(f"{self.shm_prefix}*") if self.shm_prefix else ():
            with contextlib.suppress(OSError):
                region.chmod(_PRIVATE_MODE)

    def is_ready(self) -> bool:
        """Ask the server once whether all its models are ready."""
        connection = http.client.HTTPConnection(self.options.host, self.options.http_port, timeout=_PROBE_TIMEOUT_S)
        try:
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def raise_drain_flag(self) -> None:
        """Tell the models that the server is to stop: token2wav_dit takes no new streams from here on."""
        if self._work_dir is not None:
            (self._work_dir / _DRAIN_FLAG).touch()

    def stop(self) -> None:
        """Let the server finish and clean up; kill it and its models if it takes too long. Idempotent.

        When token2wav_dit has ended, all requests are answered. What Triton does then is killed: it waits in steps of a
        second, and ends the processes of a model one after the other.
        """
        if self._process is None:
            return
        timeout_s = self.options.exit_timeout_s + _STOP_MARGIN_S
        deadline = time.monotonic() + timeout_s
        self._process.send_signal(signal.SIGTERM)
        while self._process.poll() is None and not self._has_answered_all():
            if time.monotonic() >= deadline:
                logger.warning("tritonserver did not stop within %.0f s; killing it", timeout_s)
                break
            time.sleep(_STOP_POLL_INTERVAL_S)
        self.kill()
        self._process.wait()
        self._clean_up()

    def _has_answered_all(self) -> bool:
        return self._work_dir is not None and (self._work_dir / END_FLAG).exists()

    def kill(self) -> None:
        """Kill the server and its models at once; `stop` cleans up after them."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def __enter__(self) -> TritonProcess:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def _clean_up(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._work_dir is not None:
            _remove(self._work_dir)


def sweep_leftovers() -> list[str]:
    """Remove folders and shared memory of servers that were killed with their launcher; those that live keep theirs.

    Returns:
        The names of the folders that were removed.
    """
    swept = []
    for folder in Path(tempfile.gettempdir()).glob(f"{_WORK_PREFIX}*"):
        with contextlib.suppress(OSError), (folder / _LOCK_FILE).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            logger.info("removing what a killed server left in %s and %s", folder, _SHM_DIR)
            _remove(folder)
            swept.append(folder.name)
    return swept


def _locked(folder: Path) -> int:
    """Mark a folder as in use for as long as we, the server or a model process live; return the lock's descriptor."""
    unlocked = folder / f".{_LOCK_FILE}"
    descriptor = os.open(unlocked, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    unlocked.rename(folder / _LOCK_FILE)  # only now can a sweep see it
    return descriptor


def _remove(folder: Path) -> None:
    """Remove a server's folder, and the shared memory that bears its name."""
    for region in _SHM_DIR.glob(f"{folder.name}*"):
        with contextlib.suppress(OSError):
            region.unlink()
    shutil.rmtree(folder, ignore_errors=True)


def check_shared_memory(model_repository: Path, shm_dir: Path = _SHM_DIR) -> None:
    """Refuse to start where /dev/shm can't hold every model process.

    Raises:
        TritonStartError: too little room; says how much is needed.
    """
    instances = count_instances(model_repository)
    needed = instances * SHM_REGION_BYTES + SHM_HEADROOM_BYTES
    free = shutil.disk_usage(shm_dir).free
    if free < needed:
        raise TritonStartError(
            f"{shm_dir} has {free // MIB} MiB free, and {instances} model processes need {needed // MIB} MiB: "
            "in a container raise --shm-size, or lower BLS_INSTANCE_NUM"
        )


def free_ports(count: int) -> list[int]:
    """Return TCP ports of 127.0.0.1 that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
