"""The gateways under attack, on this machine's loopback, before services without models; and what is seen of them."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from cosydit.stack.checkpoint.checkpoints import CheckpointLayout
from cosydit.stack.process import ServiceProcess, ServiceSpec
from lab.load.process_usage import usages
from token2wav_service.serving.process.server import free_ports

HOST = "127.0.0.1"
LOUD, QUIET = "attack-loud-key-0123456789", "attack-quiet-key-0123456789"
"""The attackers' key, and the honest caller's."""
STALLS = ("wall_ms", "own_ms", "cpu_ms")
"""What is noted of the stalls of an event loop; see `lab.attack.gateway`."""
MAX_VOICES = 12
"""Created voices that the gateway keeps."""
_READY_TIMEOUT_S = 60.0
SPEECH_S = 4
"""Seconds of speech of each answer: the honest caller's text may take so long."""
_SOCKET_TABLES = ("tcp", "tcp6", "udp", "udp6")
_LOOPBACK = {"0" * 8, "0" * 32, "0100007F", "0" * 24 + "01000000", "0" * 16 + "FFFF0000" + "0100007F"}
"""This machine's own addresses and none at all, as /proc/net writes them."""


@dataclass(frozen=True)
class Ports:
    """Where a gateway listens."""

    http: int
    grpc: int
    wyoming: int
    metrics: int
    pid: int = 0
    """Its first process."""


@dataclass(frozen=True)
class Target:
    """One gateway."""

    ports: Ports
    folder: Path

    @property
    def log(self) -> str:
        """What it logged so far."""
        return (self.folder / "gateway.log").read_text("utf-8", "replace")

    @property
    def home(self) -> Path:
        """Its user's home."""
        return self.folder / "home"

    def begin(self) -> None:
        """Note the stalls of the event loop anew; a gateway of several processes does not note any."""
        if self._notes.exists():
            os.kill(self.ports.pid, signal.SIGUSR1)

    def stalls(self) -> dict[str, float]:
        """Return the longest stalls since `begin`, in milliseconds."""
        return json.loads(self._notes.read_text("utf-8")) if self._notes.exists() else dict.fromkeys(STALLS, 0.0)

    def memory_mib(self) -> float:
        """Return what the gateway and its children hold now."""
        return usages({self.ports.pid: "gateway"})["gateway"].memory_mib

    @property
    def _notes(self) -> Path:
        return self.folder / "stalls.json"


@contextmanager
def started(
    folder: Path, found: CheckpointLayout, capacity: float, processes: int = 1, *, is_shared: bool = False
) -> Iterator[Target]:
    """Start services and a gateway with two keys before them.

    Args:
        folder: takes logs, keys, created voices, and what the gateway would write into its user's home.
        found: checkpoint with tokenizer and voices.
        capacity: answers that the LLM gives at once.
        processes: of the gateway; the stalls of a single one are noted.
        is_shared: all answers together get `capacity` seconds of speech a second, over HTTP; else each has the pace
            that it is asked for, over gRPC, as in `serve`.
    """
    llm, tokens, token2wav, *rest = free_ports(7)
    ports = Ports(*rest)
    folder.mkdir()
    (folder / "home").mkdir()
    (folder / "keys.txt").write_text(f"loud {LOUD}\nquiet {QUIET}\n", "utf-8")
    services = [
        sys.executable,
        "-m",
        "benchmarks.lib.paced_services",
        *map(str, (llm, tokens, token2wav, capacity, SPEECH_S)),
    ]
    command = [sys.executable, "-m", "gateway", "--processes", str(processes)]
    if processes == 1:
        command = [sys.executable, "-m", "lab.attack.gateway", str(folder / "stalls.json")]
    command += ["--port", str(ports.http), "--grpc-port", str(ports.grpc), "--metrics-port", str(ports.metrics)]
    command += ["--wyoming-port", str(ports.wyoming), "--insecure-wyoming", "--keys-file", str(folder / "keys.txt")]
    asked = [f"http://{HOST}:{llm}", "--llm-backend", "vllm"] if is_shared else [f"grpc://{HOST}:{tokens}"]
    command += ["--created-voices-dir", str(folder / "created"), "--llm-slots", str(round(capacity))]
    command += ["--llm-url", *asked, "--token2wav-url", f"{HOST}:{token2wav}"]
    command += ["--tokenizer-dir", str(found.llm_dir), "--voices-dir", str(found.voices_dir)]
    home = {"HOME": str(folder / "home")}
    first = ServiceSpec("services", services, f"http://{HOST}:{llm}/health", folder / "services.log")
    second = ServiceSpec("gateway", command, f"http://{HOST}:{ports.http}/readyz", folder / "gateway.log", home)
    with ServiceProcess(first) as made:
        made.wait_ready(_READY_TIMEOUT_S)
        with ServiceProcess(second) as running:
            running.wait_ready(_READY_TIMEOUT_S)
            yield Target(replace(ports, pid=running.pid), folder)


def children(pid: int) -> list[int]:
    """Return a process's children."""
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def foreign_addresses(pids: Iterable[int]) -> set[str]:
    """Return the other machines that these processes have sockets to, as /proc/net writes them."""
    found = set()
    for pid in pids:
        with suppress(OSError):
            for table in _SOCKET_TABLES:
                for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                    remote, inode = line.split()[2], line.split()[9]
                    if remote.split(":")[0] not in _LOOPBACK and _has_socket(pid, inode):
                        found.add(remote)
    return found


def _has_socket(pid: int, inode: str) -> bool:
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if os.readlink(descriptor) == f"socket:[{inode}]":
                return True
    return False


def look(target: Target) -> tuple[float, set[str]]:
    """Return a gateway's memory in MiB, and the other machines that it has sockets to."""
    pid = target.ports.pid
    return target.memory_mib(), foreign_addresses([pid, *children(pid)])
