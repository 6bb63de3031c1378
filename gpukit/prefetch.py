"""Memory brought into the L2 cache before a kernel reads it: the part that kernels of both services call.

Written in the Triton language. Only a GPU can run it: the interpreter has no such instruction, and callers leave it
out there.
"""

from __future__ import annotations

import triton
import triton.language as tl

LINE_BYTES = 128
"""Bytes of a line of the L2 cache."""


@triton.jit
def prefetch_lines(at):
    # The line around each of these addresses; nothing waits for it.
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at], dtype=tl.int32, is_pure=False, pack=1
    )
