"""Products of few rows, in the Triton language; `product_ops.py` says what each computes and launches it.

They wait for weights and launches, not for sums. So a program reads its weights while the kernel before it still runs,
and multiplies all of its part of the sum in one go.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gpukit.overlap import await_earlier


@triton.jit
def _weights(weight, n, first, k, N: tl.constexpr, K: tl.constexpr, SPAN: tl.constexpr, BN: tl.constexpr,
             BK: tl.constexpr):  # fmt: skip
    # [BK, BN] of a weight [N, K], SPAN channels from the first one.
    at = weight + n.to(tl.int64)[None, :] * K + first + k[:, None]
    if N % BN == 0 and SPAN == BK:
        loaded = tl.load(at)
    else:
        loaded = tl.load(at, mask=(n < N)[None, :] & (k < SPAN)[:, None], other=0.0)
    return loaded


@triton.jit
def _rows(x, m, first, k, rows, K: tl.constexpr, SPAN: tl.constexpr, BK: tl.constexpr):
    at = x + m.to(tl.int64)[:, None] * K + first + k[None, :]
    if SPAN == BK:
        loaded = tl.load(at, mask=(m < rows)[:, None], other=0.0)
    else:
        loaded = tl.load(at, mask=(m < rows)[:, None] & (k < SPAN)[None, :], other=0.0)
    return loaded


@triton.jit
def _keep(total, bias, out, m, n, part, rows, N: tl.constexpr, HAS_GELU: tl.constexpr):
    # The first part has the bias.
    has_column = n < N
    value = total + tl.load(bias + n, mask=has_column & (part + 0 * n == 0), other=0.0).to(tl.float32)[None, :]
    if HAS_GELU:
        # The tanh form: (1 + tanh(u)) / 2 is the sigmoid of 2u, which is 0 below -80.
        twice = 1.5957691216057308 * (value + 0.044715 * value * value * value)
        value *= tl.sigmoid(tl.maximum(twice, -80.0))
    at = out + (part.to(tl.int64) * rows + m)[:, None] * N + n[None, :]
    tl.store(at, value.to(out.dtype.element_ty), mask=(m < rows)[:, None] & has_column[None, :])


@triton.jit(do_not_specialize=("rows",))
def product_kernel(
    x, weight, bias, out, rows,
    N: tl.constexpr, K: tl.constexpr, PARTS: tl.constexpr, HAS_GELU: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    SPAN: tl.constexpr = K // PARTS
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    part = tl.program_id(2)
    k = tl.arange(0, BK)
    w = _weights(weight, n, part * SPAN, k, N, K, SPAN, BN, BK)
    await_earlier(OVERLAPS)
    x_rows = _rows(x, m, part * SPAN, k, rows, K, SPAN, BK)
    total = tl.dot(x_rows, w, input_precision="ieee")
    _keep(total, bias, out, m, n, part, rows, N, HAS_GELU)


@triton.jit(do_not_specialize=("rows",))
def mixed_product_kernel(
    means, masses, weight, bias, out, rows,
    N: tl.constexpr, H: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, PIECES: tl.constexpr, PARTS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    # Rows are attention's pieces put together: means [PIECES, rows, H D], weighed by 2 ** masses [PIECES, rows, H].
    HEADS: tl.constexpr = H // PARTS
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    part = tl.program_id(2)
    d = tl.arange(0, BD)
    has_row = m < rows
    await_earlier(OVERLAPS)
    total = tl.zeros([BM, BN], tl.float32)
    for index in tl.static_range(HEADS):
        head = part * HEADS + index
        w = _weights(weight, n, head * D, d, N, H * D, D, BN, BD)
        best = tl.load(masses + m * H + head, mask=has_row, other=0.0)
        for piece in tl.static_range(1, PIECES):
            best = tl.maximum(best, tl.load(masses + (piece * rows + m) * H + head, mask=has_row, other=0.0))
        mass = tl.zeros([BM], tl.float32)
        mixed = tl.zeros([BM, BD], tl.float32)
        for piece in tl.static_range(PIECES):
            share = tl.exp2(tl.load(masses + (piece * rows + m) * H + head, mask=has_row, other=0.0) - best)
            mass += share
            mean = _rows(means + piece * rows * H * D, m, head * D, d, rows, H * D, D, BD)
            mixed += share[:, None] * mean.to(tl.float32)
        x_rows = (mixed / mass[:, None]).to(weight.dtype.element_ty)
        total = tl.dot(x_rows, w, total, input_precision="ieee")
    _keep(total, bias, out, m, n, part, rows, N, False)
