"""Linear layers, for few rows and for many: what each computes, and how its kernel is launched.

Of many rows the library's products are the fastest. Few rows wait for weights and launches: theirs are kernels of ours,
each of which starts while the one before it ends. Tiles and limits were measured on one H200, at the DiT's sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor
from torch.nn import functional
from triton.runtime import driver

from gpukit.overlap import IS_INTERPRETED, overlap_options, starts_early
from token2wav_service.runtime.kernels import product_kernels as kernels
from token2wav_service.runtime.kernels.attention_ops import Pieces

FEW_ROWS = 256
"""15 tokens of each of four streams are 240 rows; of six streams, the library's products are the faster ones."""
THIN_ROWS = 64
"""Rows that wait for their weights: thin tiles read them with the most programs. More rows wait for sums, too."""
PART_CHANNELS = 512
"""Most channels of one part of a sum."""
MOST_MIXED_PARTS = 4
HALF_BYTES = 2
"""Bytes of float16 and bfloat16."""
LEAST_DOT = 16
"""Rows, columns and channels of the smallest product of a tensor core."""
WIDE_COLUMNS = 2048
SHARED_BYTES = 160_000
"""Shared memory that a program takes for a tile's rows and columns of 512 channels, and some for the compiler."""


@dataclass(frozen=True)
class ProductTile:
    """One program's share of a product."""

    rows: int
    columns: int
    warps: int


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


def linear(x: Tensor, weight: Tensor, bias: Tensor, *, is_few: bool) -> Tensor:
    """Return x weight^T + bias, [rows, N] in x's dtype.

    Args:
        x: [rows, K].
        weight: [N, K], of x's dtype; few rows take at most 512 channels.
        bias: [N].
        is_few: whether the rows are `FEW_ROWS` at most.
    """
    if not is_few:
        return functional.linear(x, weight, bias)
    return _product(x, weight, bias, x.new_empty(1, x.shape[0], weight.shape[0]))[0]


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor, *, is_few: bool = False) -> Tensor:
    """Return gelu(x weight^T + bias), tanh form; as `linear` otherwise."""
    if is_few:
        return _product(x, weight, bias, x.new_empty(1, x.shape[0], weight.shape[0]), has_gelu=True)[0]
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


def linear_of_pieces(pieces: Pieces, weight: Tensor, bias: Tensor) -> Tensor:
    """Return what `linear_in_parts` makes of few rows of attention, whose pieces are put together on the way.

    Args:
        pieces: of attention over H heads of D channels.
        weight: [N, H D].
        bias: [N].
    """
    count, rows, inner = pieces.means.shape
    heads = pieces.masses.shape[2]
    columns, dim = weight.shape[0], inner // heads
    parts = next(parts for parts in range(MOST_MIXED_PARTS, 0, -1) if heads % parts == 0)
    out = weight.new_empty(parts, rows, columns, dtype=torch.float32)
    tile = _mixed_tile(rows, columns)
    kernels.mixed_product_kernel[_grid(out, tile)](
        pieces.means, pieces.masses, weight, bias, out, rows,
        N=columns, H=heads, D=dim, BD=_power(dim), PIECES=count, PARTS=parts, BM=tile.rows, BN=tile.columns,
        num_warps=tile.warps, **overlap_options(overlaps=True),
    )  # fmt: skip
    return out


def parts_of(channels: int) -> int:
    """Return into how many parts a sum over so many channels is cut; 0 if they can't be equal."""
    parts = triton.cdiv(channels, PART_CHANNELS)
    return parts if channels % parts == 0 else 0


def _product(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor, *, has_gelu: bool = False) -> Tensor:
    parts, rows, columns = out.shape
    channels = weight.shape[1]
    tile = _tile(rows, columns)
    kernels.product_kernel[_grid(out, tile)](
        x, weight, bias, out, rows,
        N=columns, K=channels, PARTS=parts, HAS_GELU=has_gelu, BM=tile.rows, BN=tile.columns,
        BK=_power(channels // parts), num_warps=tile.warps, **overlap_options(overlaps=True),
    )  # fmt: skip
    return out


def _tile(rows: int, columns: int) -> ProductTile:
    if IS_INTERPRETED:
        return _interpreted(rows, columns)
    if rows > THIN_ROWS:
        return ProductTile(64, 64, 8)
    return ProductTile(16, 128, 8) if columns >= WIDE_COLUMNS else ProductTile(16, 64, 4)


def _mixed_tile(rows: int, columns: int) -> ProductTile:
    if IS_INTERPRETED:
        return _interpreted(rows, columns)
    return ProductTile(64 if rows > THIN_ROWS else 16, 32, 4)


def _interpreted(rows: int, columns: int) -> ProductTile:
    """Return a tile for the interpreter, whose time depends on the number of programs, not on their sizes."""
    return ProductTile(_power(rows), min(512, _power(columns)), 4)


def _power(size: int) -> int:
    return max(LEAST_DOT, 1 << (size - 1).bit_length())


def _grid(out: Tensor, tile: ProductTile) -> tuple[int, int, int]:
    parts, rows, columns = out.shape
    return triton.cdiv(columns, tile.columns), triton.cdiv(rows, tile.rows), parts
