"""What the checks of one group share while they run: services, ports, texts, the log. Closed behind the group.

`keep_audio` writes what a check made beside the certificate, to be listened to.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from cosydit.certify.check import Findings, NotRunError, Plan
from cosydit.stack.checkpoint.checkpoints import CheckpointLayout
from cosydit.stack.process import ServiceProcess, ServiceSpec
from gateway.audio.encoder import open_encoder
from gateway.audio.formats import AudioFormat, OutputFormat
from gateway.errors import GatewayError
from servicekit.clock import Clock, SystemClock
from token2wav_service.contract import SAMPLE_RATE_HZ

T = TypeVar("T")
FloatArray = npt.NDArray[np.float32]

TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "Please call me back this evening, if you can.",
    "It rained all night, and the river rose by morning.",
    "A small boat crossed the bay before the storm.",
)
"""Sentences that any English voice can say."""
VOICE = "default"
AUDIO_FOLDER = "audio"
KBIT_PER_S = 32
_FIRST_PORT, _PORTS = 21_000, 9_000
"""Ports to use, below those that Linux gives to outgoing connections: the first, and how many."""


class CheckContext:
    """The plan, and what was opened for the checks that run now."""

    def __init__(
        self, plan: Plan, clock: Clock | None = None, on_service: Callable[[int], None] = lambda pid: None
    ) -> None:
        """Open nothing yet.

        Args:
            plan: what is certified.
            clock: measures.
            on_service: told of each process group that is started, so that others can end it if we can't.
        """
        self.plan = plan
        """What is certified; replaced while a fault of the checkpoint is planted."""
        self.fault = ""
        """Fault that is planted now; empty for none."""
        self.clock = clock or SystemClock()
        self._on_service = on_service
        self._opened = ExitStack()
        self._resources: dict[str, Any] = {}
        self._ports = _free_ports(os.getpid())

    @property
    def checkpoint(self) -> CheckpointLayout:
        """Where the checkpoint's parts lie."""
        return CheckpointLayout.under(self.plan.checkpoint_dir)

    def shared(self, name: str, open_it: Callable[[], AbstractContextManager[T]]) -> T:
        """Return what was opened under a name; it stays open until the group ends.

        Raises:
            NotRunError: it was tried before and failed.
        """
        found = self._resources.get(name)
        if isinstance(found, NotRunError):
            raise found
        if found is None:
            try:
                found = self._opened.enter_context(open_it())
            except BaseException:
                self._resources[name] = NotRunError(f"{name} could not be started; see the check that failed")
                raise
            self._resources[name] = found
        opened: T = found
        return opened

    def kept(self, name: str, make: Callable[[], T]) -> T:
        """Return what is made once for the group and needs no closing."""
        return self.shared(name, lambda: nullcontext(make()))

    def end_group(self) -> None:
        """Close what was shared."""
        self._resources.clear()
        opened, self._opened = self._opened, ExitStack()
        opened.close()

    def scratch(self, name: str) -> Path:
        """Return an empty folder that is removed behind the group."""
        self.plan.work_dir.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix=f"certify-{name}-", dir=self.plan.work_dir)
        return Path(self._opened.enter_context(folder))

    def ports(self, count: int) -> list[int]:
        """Return free TCP ports of this machine."""
        return [next(self._ports) for _ in range(count)]

    def started(self, pid: int) -> None:
        """Tell of a process group that was started."""
        self._on_service(pid)

    @property
    def log_dir(self) -> Path:
        """Where services that are started here log to."""
        return self.plan.out_dir / "logs"

    @contextmanager
    def running(self, spec: ServiceSpec, timeout_s: float) -> Iterator[ServiceProcess]:
        """Run one service until the context is left.

        Raises:
            ServiceStartError: it did not become ready; the message ends with its log.
        """
        with contextlib.suppress(FileNotFoundError):
            spec.log_path.unlink()
        service = ServiceProcess(spec)
        with service:
            self.started(service.pid)
            service.wait_ready(timeout_s)
            yield service


def _free_ports(offset: int) -> Iterator[int]:
    """Yield ports that nobody listens on, from a place of our own."""
    number = offset
    while True:
        number += 1
        port = _FIRST_PORT + number % _PORTS
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                yield port


def keep_audio(context: CheckContext, found: Findings, name: str, samples: FloatArray) -> None:
    """Write samples [N] at 24 kHz as Ogg Opus into the certificate's folder; without the `audio` extra, as WAV."""
    file_name = re.sub(r"[^a-z0-9-]+", "-", name.lower())
    folder = context.plan.out_dir / AUDIO_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    try:
        audio, suffix = _encoded(samples, OutputFormat(AudioFormat.OPUS, SAMPLE_RATE_HZ, KBIT_PER_S)), "opus"
    except GatewayError:
        audio, suffix = _encoded(samples, OutputFormat(AudioFormat.WAV)), "wav"
    path = folder / f"{file_name}.{suffix}"
    path.write_bytes(audio)
    found.audio.append(f"{AUDIO_FOLDER}/{path.name}")


def _encoded(samples: FloatArray, form: OutputFormat) -> bytes:
    with open_encoder(form) as encoder:
        return encoder.encode(np.clip(np.nan_to_num(samples), -1, 1)) + encoder.finish()
