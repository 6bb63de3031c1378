"""What processes use: their own memory, threads and descriptors, as Linux tells it in /proc."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from token2wav_service.serving.process.health import is_model_process

MOST_GROWTH_SHARE, MOST_GROWTH_MIB = 0.05, 64.0
"""Most growth of a group's memory; more than both is a leak."""
MOST_MORE_THREADS, MOST_MORE_DESCRIPTORS = 4, 16
_KIB_A_MIB = 1024


@dataclass(frozen=True)
class Usage:
    """Of one process, or of several that do the same."""

    memory_mib: float = 0.0
    """Memory that the process itself has written, without files and shared memory."""
    threads: int = 0
    descriptors: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.memory_mib + other.memory_mib, self.threads + other.threads, self.descriptors + other.descriptors
        )

    def is_flat_since(self, before: Usage) -> bool:
        """Whether no more was added than a stated bound."""
        allowed = Usage(
            max(MOST_GROWTH_MIB, MOST_GROWTH_SHARE * before.memory_mib), MOST_MORE_THREADS, MOST_MORE_DESCRIPTORS
        )
        grown = self.grown_since(before)
        return all(value <= asdict(allowed)[name] for name, value in asdict(grown).items())

    def grown_since(self, before: Usage) -> Usage:
        """Return what was added."""
        return Usage(
            self.memory_mib - before.memory_mib, self.threads - before.threads, self.descriptors - before.descriptors
        )


def usages(services: Mapping[int, str]) -> dict[str, Usage]:
    """Return what each group of processes uses now.

    Args:
        services: name of each service by its process; all that it started counts with it, but model processes of
            Triton, which count by their model.
    """
    statuses = {int(folder.name): _status(folder) for folder in Path("/proc").iterdir() if folder.name.isdecimal()}
    parents = {pid: int(status.get("PPid", 0)) for pid, status in statuses.items()}
    found: dict[str, Usage] = {}
    for pid, status in statuses.items():
        service = _service_of(pid, parents, services)
        with suppress(OSError):  # it has ended meanwhile
            if service is not None and status:
                name = _model_of(pid) or service
                found[name] = found.get(name, Usage()) + _usage(pid, status)
    return found


def _service_of(pid: int, parents: Mapping[int, int], services: Mapping[int, str]) -> str | None:
    while pid not in services and pid in parents:
        pid = parents[pid]
    return services.get(pid)


def _status(folder: Path) -> dict[str, str]:
    try:
        return dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    except OSError:
        return {}


def _model_of(pid: int) -> str | None:
    """Return the model that a process serves for Triton, if it is a model process."""
    if not is_model_process(pid):
        return None
    script = Path(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1].decode())
    return script.parent.parent.name


def _usage(pid: int, status: Mapping[str, str]) -> Usage:
    memory_kib = int(status.get("RssAnon", "0 kB").split()[0])
    return Usage(memory_kib / _KIB_A_MIB, int(status["Threads"]), len(os.listdir(f"/proc/{pid}/fd")))


def third_medians(series: Sequence[Usage]) -> tuple[Usage, Usage]:
    """Return the medians of the second and of the last third: what is there once all is warm, and at the end."""
    third = len(series) // 3
    return _median(series[third : len(series) - third]), _median(series[len(series) - third :])


def _median(series: Sequence[Usage]) -> Usage:
    return Usage(
        median(each.memory_mib for each in series),
        round(median(each.threads for each in series)),
        round(median(each.descriptors for each in series)),
    )
