"""What holds for every test: how many run at once, on how many threads, and which of them stay together."""

from __future__ import annotations

import os

import pytest

WORKER_BYTES = 3 * 2**30
"""A worker with torch (1 GB), and a stack of real services beside it."""
MAX_WORKERS = 8
FIRST = ("servers", "slow")
"""Marks of the tests that start first, so that no worker is left alone with them at the end."""

# One thread a process: workers share the cores, and results don't depend on the machine. Read when torch is imported,
# and inherited by the services that tests start.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"
# Kernels in the Triton language run here without a GPU, by the language's own interpreter. Its library reads this when
# it is imported, and several packages import it.
os.environ["TRITON_INTERPRET"] = "1"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Return how many workers `-n auto` means: one a core, if memory allows; none for one file, which is faster so."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None  # pytest-xdist reads it
    if len(config.args) == 1 and ".py" in config.args[0]:
        return 0
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(len(os.sched_getaffinity(0)), memory // WORKER_BYTES, MAX_WORKERS))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep a file's tests on one worker, which then starts the file's servers once; begin with the longest."""
    if not hasattr(config, "workerinput"):
        return
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
    items.sort(key=lambda item: not any(item.get_closest_marker(mark) for mark in FIRST))
