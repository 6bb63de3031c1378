"""What holds for every test: how many run at once, on how many threads, which stay together, and what chance draws."""

from __future__ import annotations

import gc
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

WORKER_BYTES = 3 * 2**30
"""A worker with torch (1 GB), and a stack of real services beside it."""
MAX_WORKERS = 8
TOGETHER = ("tests/e2e", "tests/token2wav_service/export")
"""Folders whose files share what takes long to make: the services of a session, an exported checkpoint."""
APART = ("tests/e2e/test_failures.py",)
"""Files of them that do not."""
LONGEST = (
    *("tests/token2wav_service/export", "tests/production", "tests/e2e", "tests/package"),
    *("tests/benchmarks/test_", "tests/observability", "tests/token2wav_service/runtime"),
)
FIRST = ("servers", "slow")
"""Folders and marks of the tests that start first, so that no worker is left alone with them at the end."""

PYTHONS = ("python", "cosydit", "tritonserver")
"""Beginnings of the names of programs that take a second to start."""

# One thread a process: workers share the cores, and results don't depend on the machine. Read when torch is imported,
# and inherited by the services that tests start.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"
# Kernels in the Triton language run here without a GPU, by the language's own interpreter. Its library reads this when
# it is imported, and several packages import it.
os.environ["TRITON_INTERPRET"] = "1"

# Hypothesis draws the same examples every time, and none is refused for being slow on a busy machine: a test that fails
# here fails for everybody. `pytest --hypothesis-profile=random` looks for new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("random", deadline=None, print_blob=True)
settings.load_profile("repeatable")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Return how many workers `-n auto` means: none for one file, which is faster so.

    Else one a core, if memory allows, and one more: tests of services wait for a third of their time.
    """
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None  # pytest-xdist reads it
    if len(config.args) == 1 and ".py" in config.args[0]:
        return 0
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(len(os.sched_getaffinity(0)) + 1, memory // WORKER_BYTES, MAX_WORKERS))


class GroupScheduling(LoadFileScheduling):
    """Keeps a file's tests on one worker, which then starts the file's servers once; so with files of one stack."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return next((folder for folder in TOGETHER if file.startswith(f"{folder}/") and file not in APART), file)

    def remove_node(self, node: Any) -> str | None:
        """Give another worker the tests of one that ended, but for the test that ended it, which would end that too."""
        for unit in self.assigned_work[node].values():
            for test, is_done in unit.items():
                if not is_done:
                    unit[test] = True
                    super().remove_node(node)
                    return test
        return super().remove_node(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Return what gives tests to workers, unless the command line asks for something else."""
    return GroupScheduling(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the longest, if there are several workers."""
    if hasattr(config, "workerinput"):
        items.sort(key=_turn)


def _turn(item: pytest.Item) -> tuple[int, bool]:
    """Return what is lower the earlier a test starts."""
    place = next((number for number, start in enumerate(LONGEST) if item.nodeid.startswith(start)), len(LONGEST))
    return place, not any(item.get_closest_marker(mark) for mark in FIRST)


def pytest_collection_finish() -> None:
    """Keep what was imported until now out of the garbage collector's rounds: nobody throws modules away."""
    gc.collect()
    gc.freeze()


_fast_tests: list[str] = []
"""The test that runs, if `make test-fast` has it."""
_start_process = subprocess.Popen.__init__


def _start_if_allowed(self: Any, args: Any, *more: Any, **options: Any) -> None:
    program = args if isinstance(args, (str, bytes, os.PathLike)) else args[0]
    if _fast_tests and Path(os.fsdecode(program)).name.startswith(PYTHONS):
        raise AssertionError(f"{_fast_tests[-1]} starts {program}: mark it slow, or servers if it starts a service")
    _start_process(self, args, *more, **options)


subprocess.Popen.__init__ = _start_if_allowed  # type: ignore[method-assign]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Keep the fast tests fast: none of them starts a Python process."""
    if not any(item.get_closest_marker(mark) for mark in FIRST):
        _fast_tests.append(item.nodeid)
    try:
        return (yield)
    finally:
        _fast_tests.clear()
