"""Linear layers, for few rows and for many: what each computes, and how its kernel is launched.

Of many rows the library's products are the fastest. Few rows wait for weights and launches, not for sums: theirs are
kernels of ours, in the Triton language. A program reads its weights while the kernel before it still runs, and
multiplies all of its part of the sum in one go. Tiles and limits were measured on one H200, at DiT's and U-Net's sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional
from triton.runtime import driver

from gpukit.overlap import IS_INTERPRETED, await_earlier, overlap_options, prefetch_lines, starts_early
from token2wav_service.runtime.kernels.attention_ops import Pieces

FEW_ROWS = 256
"""15 tokens of each of four streams are 240 rows; of six streams, the library's products are the faster ones."""
THIN_ROWS = 64
"""Rows that wait for their weights: thin tiles read them with the most programs. More rows wait for sums, too."""
PART_CHANNELS = 512
"""Most channels of one part of a sum."""
MOST_MIXED_PARTS = 4
PLAIN, TANH_GELU, EXACT_GELU = 0, 1, 2
HALF_BYTES = 2
"""Bytes of float16 and bfloat16."""
LEAST_DOT = 16
"""Rows, columns and channels of the smallest product of a tensor core."""
SMALL_WEIGHT = 1 << 19
"""Most numbers of a weight that many thin tiles read as fast as a few large ones do."""
WIDE_COLUMNS = 2048
SHARED_BYTES = 160_000
"""Shared memory that a program takes for a tile's rows and columns of 512 channels, and some for the compiler."""


@dataclass(frozen=True)
class ProductTile:
    """One program's share of a product."""

    rows: int
    columns: int
    warps: int


Affine = tuple[Tensor, Tensor | None]
MIXED_TILE = ProductTile(16, 32, 4)


def most_rows(whole: Sequence[Affine], in_parts: Sequence[Affine], most: int) -> int:
    """Return up to how many rows the kernels for few rows are used: `most`; 0 where a weight or the GPU rules it out.

    Args:
        whole: weights [N, K] and biases [N] of products that are made in one part.
        in_parts: those of the others.
        most: rows up to which these kernels are the faster ones.
    """
    counts = [parts_of(weight.shape[1]) for weight, _ in (*whole, *in_parts)]
    weight = whole[0][0]
    return most if all(counts) and {*counts[: len(whole)]} == {1} and suits(weight.device, weight.dtype) else 0


def suits(device: torch.device, dtype: torch.dtype) -> bool:
    """Tell whether the kernels for few rows are the faster ones: a GPU can overlap them, and has room for their tiles.

    Where there is no GPU, they run for tests.
    """
    if device.type != "cuda":
        return True
    return dtype.itemsize == HALF_BYTES and starts_early() and _shared_bytes(device) >= SHARED_BYTES


def _shared_bytes(device: torch.device) -> int:
    index = torch.cuda.current_device() if device.index is None else device.index
    return int(driver.active.utils.get_device_properties(index)["max_shared_mem"])


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, *, is_few: bool, out: Tensor | None = None) -> Tensor:
    """Return x weight^T + bias, [rows, N] in x's dtype.

    Args:
        x: [rows, K]; may be strided on rows.
        weight: [N, K], of x's dtype; few rows take at most 512 channels.
        bias: [N]; None adds nothing.
        is_few: whether they are few, for which see `most_rows`.
        out: where it goes, contiguous; None allocates it.
    """
    if not is_few:
        return torch.mm(x, weight.t(), out=out) if bias is None else torch.addmm(bias, x, weight.t(), out=out)
    return _product(x, weight, bias, (x.new_empty(len(x), len(weight)) if out is None else out)[None])[0]


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor, *, is_few: bool, is_exact: bool = False) -> Tensor:
    """Return gelu(x weight^T + bias), in its tanh form unless `is_exact`; as `linear` otherwise."""
    if is_few:
        return _product(x, weight, bias, x.new_empty(1, len(x), len(weight)), EXACT_GELU if is_exact else TANH_GELU)[0]
    if is_exact:
        return functional.gelu(functional.linear(x, weight, bias))
    if x.is_cuda:
        return torch._addmm_activation(bias, x, weight.t(), use_gelu=True)
    return functional.gelu(functional.linear(x, weight, bias), approximate="tanh")


def linear_in_parts(x: Tensor, weight: Tensor, bias: Tensor, *, is_few: bool) -> Tensor:
    """Return x weight^T + bias for a reader that adds up parts, as `ops.residual_norm` and `ops.norm_mish` do.

    Args:
        x, weight, bias, is_few: as `linear` takes them; K in parts of at most 512 channels.

    Returns:
        [rows, N] in x's dtype, or of few rows [parts, rows, N] float32.
    """
    if not is_few:
        return functional.linear(x, weight, bias)
    parts = parts_of(weight.shape[1])
    return _product(x, weight, bias, x.new_empty(parts, x.shape[0], weight.shape[0], dtype=torch.float32))


def linear_of_attention(
    pieces: Pieces | None, attended: Tensor, weight: Tensor, bias: Tensor, *, is_few: bool
) -> Tensor:
    """Return what `linear_in_parts` makes of `attended` [rows, H D], or of the pieces of few rows, put together."""
    if pieces is None:
        return linear_in_parts(attended, weight, bias, is_few=is_few)
    count, rows, inner = pieces.means.shape
    heads = pieces.masses.shape[2]
    columns, dim = weight.shape[0], inner // heads
    parts = next(parts for parts in range(MOST_MIXED_PARTS, 0, -1) if heads % parts == 0)
    out = weight.new_empty(parts, rows, columns, dtype=torch.float32)
    tile = _interpreted(rows, columns) if IS_INTERPRETED else MIXED_TILE
    mixed_product_kernel[_grid(out, tile)](
        pieces.means, pieces.masses, weight, bias, out, rows,
        N=columns, H=heads, D=dim, BD=_power(dim), PIECES=count, PARTS=parts, BM=tile.rows, BN=tile.columns,
        num_warps=tile.warps, **overlap_options(overlaps=True),
    )  # fmt: skip
    return out


def parts_of(channels: int) -> int:
    """Return into how many parts a sum over so many channels is cut; 0 if they can't be equal."""
    parts = triton.cdiv(channels, PART_CHANNELS)
    return parts if channels % parts == 0 else 0


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, gelu: int = PLAIN) -> Tensor:
    parts, rows, columns = out.shape
    channels = weight.shape[1]
    tile = _tile(rows, columns, channels)
    product_kernel[_grid(out, tile)](
        x, weight, weight if bias is None else bias, out, rows, x.stride(0),
        N=columns, K=channels, PARTS=parts, HAS_BIAS=bias is not None, GELU=gelu, BM=tile.rows, BN=tile.columns,
        BK=_power(channels // parts), num_warps=tile.warps, **overlap_options(overlaps=True),
    )  # fmt: skip
    return out


def _tile(rows: int, columns: int, channels: int) -> ProductTile:
    if IS_INTERPRETED:
        return _interpreted(rows, columns)
    if rows > THIN_ROWS and columns * channels > SMALL_WEIGHT:
        return ProductTile(64, 64, 8)
    return ProductTile(16, 128, 8) if columns >= WIDE_COLUMNS else ProductTile(16, 64, 4)


def _interpreted(rows: int, columns: int) -> ProductTile:
    """Return a tile for the interpreter, whose time depends on the number of programs, not on their sizes."""
    return ProductTile(_power(rows), min(512, _power(columns)), 4)


def _power(size: int) -> int:
    return max(LEAST_DOT, 1 << (size - 1).bit_length())


def _grid(out: Tensor, tile: ProductTile) -> tuple[int, int, int]:
    parts, rows, columns = out.shape
    return triton.cdiv(columns, tile.columns), triton.cdiv(rows, tile.rows), parts


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
def _rows(x, m, first, k, rows, pitch, SPAN: tl.constexpr, BK: tl.constexpr):
    at = x + m.to(tl.int64)[:, None] * pitch + first + k[None, :]
    if SPAN == BK:
        loaded = tl.load(at, mask=(m < rows)[:, None], other=0.0)
    else:
        loaded = tl.load(at, mask=(m < rows)[:, None] & (k < SPAN)[None, :], other=0.0)
    return loaded


@triton.jit
def _keep(value, out, m, n, part, rows, N: tl.constexpr, GELU: tl.constexpr):
    if GELU == 2:  # the exact form
        value *= 0.5 * (1 + tl.erf(0.7071067811865476 * value))
    elif GELU == 1:
        # The tanh form: (1 + tanh(u)) / 2 is the sigmoid of 2u, which is 0 below -80.
        twice = 1.5957691216057308 * (value + 0.044715 * value * value * value)
        value *= tl.sigmoid(tl.maximum(twice, -80.0))
    at = out + (part.to(tl.int64) * rows + m)[:, None] * N + n[None, :]
    tl.store(at, value.to(out.dtype.element_ty), mask=(m < rows)[:, None] & (n < N)[None, :])


@triton.jit(do_not_specialize=("rows",))
def product_kernel(
    x, weight, bias, out, rows, pitch,
    N: tl.constexpr, K: tl.constexpr, PARTS: tl.constexpr, HAS_BIAS: tl.constexpr, GELU: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    SPAN: tl.constexpr = K // PARTS
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    part = tl.program_id(2)
    k = tl.arange(0, BK)
    w = _weights(weight, n, part * SPAN, k, N, K, SPAN, BN, BK)
    has_bias = (n < N) & (part + 0 * n == 0) & HAS_BIAS  # the first part has it
    added = tl.load(bias + n, mask=has_bias, other=0.0).to(tl.float32)
    await_earlier(OVERLAPS)
    x_rows = _rows(x, m, part * SPAN, k, rows, pitch, SPAN, BK)
    total = tl.dot(x_rows, w, input_precision="ieee")
    _keep(total + added[None, :], out, m, n, part, rows, N, GELU)


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
    added = tl.load(bias + n, mask=(n < N) & (part + 0 * n == 0), other=0.0).to(tl.float32)
    if OVERLAPS:
        for index in tl.static_range(HEADS):
            prefetch_lines(weight + tl.minimum(n, N - 1).to(tl.int64) * (H * D) + (part * HEADS + index) * D)
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
    _keep(total + added[None, :], out, m, n, part, rows, N, 0)
