"""Programmatic dependent launch: kernels that start while the one before them ends, as both services launch them.

Written in the Triton language. Only a GPU can run it: the interpreter runs one kernel after the other.
"""

from __future__ import annotations

import os
from functools import cache

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.runtime import driver

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
LEAST_ARCHITECTURE = 90
"""Oldest architecture that has the launch: Hopper, compute capability 9.0."""


@triton.jit
def await_earlier(OVERLAPS: tl.constexpr):
    # Nothing that an earlier kernel writes may be touched before this, and nothing be written. Kernels behind may be
    # started from now on; they wait here too.
    if OVERLAPS:
        gdc_launch_dependents()
        gdc_wait()


def overlap_options(*, overlaps: bool) -> dict[str, bool]:
    """Return the launch options of a kernel that calls `await_earlier`, and whose every predecessor does or is done."""
    overlaps = overlaps and starts_early()
    return {"OVERLAPS": overlaps} | ({"launch_pdl": True} if overlaps else {})


@cache
def starts_early() -> bool:
    """Tell whether this process's GPU can start a kernel while the one before it ends."""
    return not IS_INTERPRETED and driver.active.get_current_target().arch >= LEAST_ARCHITECTURE
