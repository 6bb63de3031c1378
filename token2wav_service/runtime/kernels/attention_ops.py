"""Attention over history in place, and the small operations around it: what each computes, and its launch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from gpukit.overlap import LINE_BYTES, overlap_options
from token2wav_service.runtime.kernels import attention_kernels as kernels

LOG2_E = 1.4426950408889634
QUERY_BLOCK, QUERY_WARPS = 64, 4
"""Queries of a program: whole warp groups of Hopper; 32 took up to twice as long."""
SHORT_QUERY_BLOCK, SHORT_QUERY_WARPS = 32, 2
"""The same of many streams' first chunks, which are no longer: 34.6 instead of 38.0 ms for a step of 64."""
KEY_BLOCK = 64
POSITIONS_KEY_BLOCK = 32
"""Keys of a block with positions, whose scores take registers, too."""
ENOUGH_BLOCKS = 100
"""Blocks of a launch that keep a GPU of 132 multiprocessors busy; with fewer the keys are split."""


@dataclass(frozen=True)
class KeyPlaces:
    """Where a batch's keys and values stand, in columns of one rate; all [B] int64 on the device."""

    slots: Tensor
    prompts: Tensor
    """Addresses of the voices' keys and values, each [planes, P, 2D]."""
    prompt_lengths: Tensor
    """P, the length of each row's prompt."""
    generated: Tensor
    """Columns of each stream before this chunk, without the prompt."""
    lengths: Tensor
    """Valid columns of this chunk."""


@dataclass(frozen=True)
class HeadNorms:
    """Norms of each head's queries and keys, and where the chunk's normalised keys and its values go."""

    weights: tuple[Tensor, Tensor, Tensor, Tensor]
    """Query weight and bias, key weight and bias, each [D] float32."""
    own_kv: Tensor
    """[B, 2, H, T, 2D] view of one solver step and block; may be strided on B and cfg."""


@dataclass(frozen=True)
class Positions:
    """What relative positions add to the scores."""

    query_bias: Tensor
    """[H, D] float32, added to the queries before their product with keys."""
    scores: Tensor
    """[H, rows, R] queries times the encodings of the distances 1 - T, 2 - T, ..."""
    bias: Tensor
    """[H, R] float32, added to `scores`."""


@dataclass(frozen=True)
class Pieces:
    """Attention of which each piece has seen a part of the keys."""

    means: Tensor
    """[pieces, rows, H D] mean value of each piece's keys."""
    masses: Tensor
    """[pieces, rows, H] float32 logarithm of each piece's weight, base 2; minus infinity without keys."""


def attend(
    qkv: Tensor,
    heads: int,
    window: Tensor,
    prompt_plane: int,
    places: KeyPlaces,
    frames: int,
    out: Tensor,
    *,
    norms: HeadNorms | None = None,
    positions: Positions | None = None,
    block: int = 0,
    combines: bool = True,
    overlaps: bool = False,
) -> Pieces | None:
    """Attend to [own chunk | the voice's prompt | the stream's ring].

    Args:
        qkv: [cfg B T, 3 H D] queries, keys and values.
        heads: H.
        window: [slots, (cfg,) H, W, 2D] view of one layer; frame f of a stream stands at f mod W.
        prompt_plane: planes of the prompt before this layer's.
        places: where the keys stand.
        frames: T, padded.
        out: [cfg B T, HD].
        norms: of heads that are normalised.
        positions: None for attention without positions; never together with norms.
        block: columns that share a block, counted from the chunk's start: of the chunk, a query sees its own block and
            those before it; 0 shows the whole chunk. Never together with norms.
        combines: put pieces together; False leaves that to the caller.
        overlaps: start while the kernel before it ends.

    Returns:
        What is to be put together instead of `out`; None if `out` is written.
    """
    rows, streams = out.shape[0], places.slots.shape[0]
    dim = out.shape[1] // heads
    cfgs = rows // frames // streams
    is_short = frames <= SHORT_QUERY_BLOCK and not overlaps
    queries, warps = (SHORT_QUERY_BLOCK, SHORT_QUERY_WARPS) if is_short else (QUERY_BLOCK, QUERY_WARPS)
    query_blocks = triton.cdiv(frames, queries)
    splits = choose_splits(out, query_blocks * heads * cfgs * streams)
    means = masses = out
    if splits > 1:
        means = out.new_empty(splits, rows, heads * dim)
        masses = out.new_empty(splits, rows, heads, dtype=torch.float32)
    n, p = norms, positions
    weights = n.weights if n else (out, p.query_bias if p else out, out, out)
    own = n.own_kv if n else out
    cfg_stride = window.stride(1) if window.dim() > 4 else 0
    kernels.attend_kernel[(query_blocks * splits, heads, cfgs * streams)](
        qkv, own, places.prompts, places.prompt_lengths, window, *weights, p.scores if p else out, p.bias if p else out,
        out, means, masses, places.slots, places.generated, places.lengths, own.stride(0), own.stride(1), prompt_plane,
        window.stride(0), cfg_stride, window.shape[-2], frames, streams, rows,
        p.scores.shape[2] if p else 0, LOG2_E / dim**0.5, block,
        H=heads, D=dim, BD=triton.next_power_of_2(dim), QB=queries, KB=POSITIONS_KEY_BLOCK if p else KEY_BLOCK,
        SPLITS=splits, HAS_NORMS=n is not None, HAS_POSITIONS=p is not None, HAS_BLOCKS=block > 0,
        LINES=triton.next_power_of_2(triton.cdiv(2 * dim * out.element_size(), LINE_BYTES)),
        num_warps=warps, num_stages=3, **overlap_options(overlaps=overlaps),
    )  # fmt: skip
    if splits == 1:
        return None
    if not combines:
        return Pieces(means, masses)
    kernels.combine_kernel[(rows,)](
        means, masses, out, rows,
        H=heads, D=dim, BD=triton.next_power_of_2(dim), SPLITS=splits, BLOCK_H=triton.next_power_of_2(heads),
        num_warps=4,
    )  # fmt: skip
    return None


def choose_splits(x: Tensor, blocks: int) -> int:
    """Return in how many parts the keys are attended to, so that `blocks` blocks become enough."""
    if not x.is_cuda:
        return 1 + blocks % 2
    return min(4, max(1, ENOUGH_BLOCKS // blocks))


def commit_rows(qkv: Tensor, window: Tensor, slots: Tensor, generated: Tensor, lengths: Tensor, frames: int) -> None:
    """Write the chunk's newest keys and values into the streams' rings.

    Args:
        qkv: [L, (cfg) B T, 3 H D] queries, keys, values.
        window: [slots, L, (cfg,) H, W, 2D]; column f of a stream stands at f mod W. May be strided on slots.
        slots: [B].
        generated: [B] columns that the stream's rings had before this chunk.
        lengths: [B] columns of the chunk to write.
        frames: T.
    """
    _, *cfgs, heads, size, width = window.shape[1:]
    planes = qkv.shape[0] * heads * (cfgs[0] if cfgs else 1)
    block = min(32, triton.next_power_of_2(frames))
    grid = (planes, slots.shape[0], triton.cdiv(min(frames, size), block))
    kernels.commit_rows_kernel[grid](
        qkv, window, slots, generated, lengths, qkv.stride(0), window.stride(0), size, frames,
        H=heads, D=width // 2, BD=triton.next_power_of_2(width // 2), TB=block, CFGS=cfgs[0] if cfgs else 1,
        num_warps=4,
    )  # fmt: skip


def rotate_first_head(qkv: Tensor, angles: Tensor, heads: int) -> None:
    """Turn the query and the key of head 0, in place.

    Args:
        qkv: [cfg B T, 3 H D] queries, keys, values.
        angles: [B, T, D / 2, 2] float32, cosines and sines for neighbouring channels.
        heads: H.
    """
    streams, frames, pairs, _ = angles.shape
    rows, at_once = qkv.shape[0], _columns_at_once(qkv)
    kernels.rotate_kernel[(triton.cdiv(rows, at_once),)](
        qkv, angles, rows, streams * frames,
        H=heads, D=2 * pairs, BLOCK_P=triton.next_power_of_2(pairs), ROWS=at_once, num_warps=1,
    )  # fmt: skip


def _columns_at_once(x: Tensor) -> int:
    """Return the columns of one block of a launch: few keep a GPU busy, many the interpreter."""
    return 4 if x.is_cuda else 64


def lead_columns(x: Tensor, tails: Tensor, slots: Tensor, repeat: int = 1) -> Tensor:
    """Return [tail | x, each column `repeat` times] as [B, W + repeat T, C].

    Args:
        x: [(cfg) B, T, C].
        tails: [slots, (cfg,) C, W] what each stream continues from; may be strided on slots and cfg.
        slots: [B].
        repeat: see above.
    """
    rows, frames, channels = x.shape
    width = tails.shape[-1]
    columns = width + repeat * frames
    out = tails.new_empty(rows, columns, channels)
    at_once = _columns_at_once(x)
    kernels.lead_columns_kernel[(triton.cdiv(columns, at_once), rows)](
        tails, x, slots, out, tails.stride(0), tails.stride(1), columns, frames, slots.shape[0],
        C=channels, WIDTH=width, REPEAT=repeat, BLOCK_C=triton.next_power_of_2(channels), COLUMNS=at_once, num_warps=4,
    )  # fmt: skip
    return out


def keep_columns(x: Tensor, tails: Tensor, slots: Tensor, lengths: Tensor, factor: int = 1) -> None:
    """Write the last columns of every row of `lead_columns`'s result into the tails.

    Args:
        x: [(cfg) B, W + T, C].
        tails: [slots, (cfg,) C, W]; may be strided on slots and cfg.
        slots, lengths: [B]; valid columns behind the tail are `factor` times the length.
        factor: see above.
    """
    rows, columns, channels = x.shape
    width = tails.shape[-1]
    at_once = _columns_at_once(x)
    kernels.keep_columns_kernel[(triton.cdiv(width, at_once), rows)](
        x, slots, lengths, tails, tails.stride(0), tails.stride(1), columns, factor, slots.shape[0],
        C=channels, WIDTH=width, BLOCK_C=triton.next_power_of_2(channels), COLUMNS=at_once, num_warps=4,
    )  # fmt: skip


def embed_norm(
    x: Tensor, weight: Tensor, bias: Tensor, factor: float, lengths: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Return (layer_norm(x, eps 1e-5) * weight + bias) * factor, 0 behind a row's end.

    Args:
        x: [B, T, C].
        weight, bias: [C] float32.
        factor: see above.
        lengths: [B] valid columns; None leaves them all.
        dtype: of the result.
    """
    streams, frames, channels = x.shape
    out = torch.empty_like(x, dtype=dtype)
    kernels.embed_norm_kernel[(streams * frames,)](
        x, weight, bias, out, bias if lengths is None else lengths, frames, factor,
        C=channels, BLOCK_C=triton.next_power_of_2(channels), IS_MASKED=lengths is not None, num_warps=4,
    )  # fmt: skip
    return out
