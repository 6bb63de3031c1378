"""What kernels of both services call: programmatic dependent launch, where a kernel starts while the one before it
ends, and memory brought into the L2 cache before a kernel reads it.

Written in the Triton language. Only a GPU can run it: the interpreter runs one kernel after the other, and callers
leave the fetching out there.
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


LINE_BYTES = 128
"""Bytes of a line of the L2 cache."""


@triton.jit
def prefetch_lines(at):
    # The line around each of these addresses; nothing waits for it.
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at], dtype=tl.int32, is_pure=False, pack=1
    )
