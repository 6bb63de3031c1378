"""The decoder's operations: what each computes, on which shapes, and how its kernel is launched.

Products are in the weights' type with float32 sums; the residual stream, norms, softmax and logits are float32. On a
CPU the same kernels run in the Triton language's interpreter. They know nothing of requests.

Matrix products are cut into programs by tiles, whose sizes by number of rows were measured on one H200. No tile changes
a result: an element's sum runs over K in the same order, in the same parts, whatever the tile. `parts_of` alone says
how many parts a sum has, and depends on the weight's shape only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from gpukit.overlap import IS_INTERPRETED, LINE_BYTES, overlap_options
from llm_service.gpu import kernels
from llm_service.gpu.slot_state import NUMBERS, SlotState
from llm_service.qwen2 import Qwen2Shape

LOG2_E = 1.4426950408889634
KEY_BLOCK = 128
ATTENTION_STAGES = 2
ATTENTION_WARPS = 4
SPLIT_ROWS = 8
"""Rows up to which blocks of keys have programs of their own, at most `MOST_SPLITS` a row; more rows fill a GPU."""
MOST_SPLITS = 16
LEAST_DOT = 16
"""Rows of the smallest product of a tensor core; the query heads of one key head are padded to it."""
PARTS, SILU, BIASED = 0, 1, 2
SAMPLER_WARPS = 8

OVERLAP_ROWS = 64
"""Rows up to which a step waits for weights and launches, not for sums: kernels start while the one before them ends,
and products fetch their weights before their turn. With more rows that takes room from the kernel that runs."""

PART_CHANNELS = 448
"""Least length of one part of a sum: two parts of 896 keep all multiprocessors busy where a weight has few rows."""
MAX_PARTS = 4
STEP_CHANNELS = 64
WIDE_COLUMNS = 4096
DEEP_CHANNELS = 2048


@dataclass(frozen=True)
class Tile:
    """One program's share of a product."""

    rows: int
    columns: int
    channels: int  # of one step along K
    warps: int
    stages: int


# Rows up to which a line holds; tiles for a plain weight, one of many columns, one of many channels.
_TILES = (
    (16, Tile(16, 16, 64, 2, 7), Tile(16, 32, 128, 4, 7), Tile(64, 16, 128, 4, 4)),
    (64, Tile(64, 32, 64, 4, 5), Tile(64, 32, 64, 4, 5), Tile(64, 16, 128, 4, 4)),
    (256, Tile(64, 64, 64, 4, 5), Tile(64, 128, 64, 4, 3), Tile(64, 64, 64, 4, 5)),
    (512, Tile(64, 64, 64, 4, 4), Tile(64, 128, 64, 4, 3), Tile(128, 64, 64, 4, 4)),
    (1 << 31, Tile(128, 128, 64, 8, 3), Tile(128, 128, 64, 8, 3), Tile(128, 256, 64, 8, 3)),
)
INTERPRETED = Tile(16, 512, 256, 4, 1)
"""Tile for the interpreter, whose time depends on the number of programs and operations, not on their sizes."""


def parts_of(channels: int) -> int:
    """Return into how many parts the sum over K is cut."""
    parts = MAX_PARTS
    while parts > 1 and (channels % (parts * STEP_CHANNELS) or channels // parts < PART_CHANNELS):
        parts //= 2
    return parts


def tile_for(rows: int, columns: int, channels: int) -> Tile:
    """Choose the tile for a product of so many rows with a weight [columns, channels]."""
    plain, wide, deep = next(tiles for most, *tiles in _TILES if rows <= most)
    if columns > WIDE_COLUMNS:
        return wide
    return deep if channels > DEEP_CHANNELS else plain


def overlap(rows: int) -> dict[str, bool]:
    """Return the launch options for a step of so many rows."""
    return overlap_options(overlaps=rows <= OVERLAP_ROWS)


@dataclass(frozen=True)
class Parts:
    """A product whose sum over K is left in parts, to be added up in order by its reader."""

    tensor: Tensor  # flat float32; part p begins at p * stride
    count: int
    stride: int


@dataclass(frozen=True)
class RotaryTables:
    """Cosines and signed sines of every position, [positions, D] float32."""

    cosines: Tensor
    sines: Tensor

    @classmethod
    def make(cls, shape: Qwen2Shape, positions: int, device: torch.device) -> RotaryTables:
        """Compute them for so many positions."""
        half = torch.arange(0, shape.head_size, 2, dtype=torch.float32) / shape.head_size
        angles = torch.arange(positions, dtype=torch.float32)[:, None] / shape.rope_theta**half
        sines = angles.sin()
        tables = torch.cat([angles.cos()] * 2, 1), torch.cat([-sines, sines], 1)
        return cls(*(table.to(device).contiguous() for table in tables))


def embed(
    slots: Tensor, tokens: Tensor | None, positions: Tensor, latest: Tensor, places: Tensor, table: Tensor, out: Tensor
) -> None:
    """Write the embeddings of a launch's rows as the residual stream.

    Args:
        slots: [R] int32 of each row.
        tokens: [R] int32 LLM ids of prompt rows; None: each slot's latest token.
        positions: [R] int32; with `tokens` given, else written here from `places`.
        latest: [slots] int32, each slot's latest token.
        places: [slots] int32, that token's position.
        table: [vocabulary, C].
        out: [R, C] float32.
    """
    rows, channels = out.shape
    kernels.embed_kernel[(rows,)](
        slots, slots if tokens is None else tokens, positions, latest, places, table, out,
        IS_PROMPT=tokens is not None, C=channels, BLOCK_C=triton.next_power_of_2(channels),
        num_warps=4, **overlap(rows),
    )  # fmt: skip


def add_norm(hidden: Tensor, branch: Parts | None, weight: Tensor, epsilon: float, out: Tensor) -> None:
    """hidden += branch (in place), then out = hidden / rms(hidden) * weight.

    Args:
        hidden: [R, C] float32 residual stream.
        branch: [R, C] in parts; None at the first norm.
        weight: [C] float32.
        epsilon: added to the mean square.
        out: [R, C].
    """
    rows, channels = out.shape
    kernels.add_norm_kernel[(rows,)](
        hidden, hidden if branch is None else branch.tensor, 0 if branch is None else branch.stride, weight, out,
        epsilon, PARTS=0 if branch is None else branch.count,
        C=channels, BLOCK_C=triton.next_power_of_2(channels), num_warps=4, **overlap(rows),
    )  # fmt: skip


def product_parts(a: Tensor, weight: Tensor, room: Tensor, bias: Tensor | None = None) -> Parts:
    """Return a @ weight.T + bias in parts.

    Args:
        a: [R, K].
        weight: [N, K].
        room: flat float32 of at least MAX_PARTS * R * N.
        bias: [N] float32; None adds nothing.
    """
    rows, columns = a.shape[0], weight.shape[0]
    splits = parts_of(a.shape[1])
    _product(a, weight, bias, room, PARTS if bias is None else BIASED, splits, _tile(a, weight))
    return Parts(room, splits, rows * columns)


def silu_product(a: Tensor, gate_up: Tensor, out: Tensor) -> None:
    """out [R, F] = silu(a @ gate.T) * (a @ up.T), gate and up rows of `gate_up` [2F, K] in turn."""
    _product(a, gate_up, None, out, SILU, 1, _tile(a, gate_up))


def logits(a: Tensor, head: Tensor, bias: Tensor, out: Tensor, tile: Tile | None = None) -> None:
    """out [P, rows] float32 = a @ head.T + bias."""
    _product(a, head, bias, out, BIASED, 1, tile or _tile(a, head))


def _tile(a: Tensor, weight: Tensor) -> Tile:
    return INTERPRETED if IS_INTERPRETED else tile_for(a.shape[0], *weight.shape)


def _product(a: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, kind: int, splits: int, tile: Tile) -> None:
    rows, channels = a.shape
    columns = weight.shape[0]
    line = LINE_BYTES // weight.element_size()
    lines = triton.next_power_of_2(triton.cdiv(channels // splits, line))
    grid = (triton.cdiv(rows, tile.rows), triton.cdiv(columns, tile.columns), splits)
    kernels.product_kernel[grid](
        a, weight, weight if bias is None else bias, out, rows, rows * columns,
        N=columns, K=channels, SPLITS=splits, KIND=kind,
        BM=tile.rows, BN=tile.columns, BK=tile.channels, STAGES=tile.stages,
        LINE=line, LINES=lines, FETCHES=rows <= OVERLAP_ROWS, num_warps=tile.warps, **overlap(rows),
    )  # fmt: skip


@dataclass(frozen=True)
class BeginInputs:
    """Answers that begin in a launch; see `slot_state.AnswerStart`."""

    count: Tensor  # [1] int32, how many of the entries are used
    words: Tensor  # [entries, words] int32
    numbers: Tensor  # [entries, NUMBERS] float32
    pages: Tensor  # [entries, most pages of a slot] int32
    flags: Tensor  # [entries, rows] int8


@dataclass(frozen=True)
class CacheView:
    """Keys and values of one layer, and which pages each slot has."""

    tensor: Tensor  # [pages, 2, G, page tokens, D], a view of all layers' cache
    pages: Tensor  # [slots, most pages of a slot] int32
    blocks: Tensor  # [SPLIT_ROWS, 1 + blocks of KEY_BLOCK, 3, H D] float32: what few rows make of own and other keys
    arrived: Tensor  # [SPLIT_ROWS G] int32, 0 between kernels: programs that are done with their blocks


def write_cache(
    qkv: Parts, rotary: RotaryTables, cache: CacheView, slots: Tensor, positions: Tensor, heads: int
) -> None:
    """Write the keys and values of prompt rows, so that rows of the same launch can attend to them."""
    _, _, groups, page_tokens, size = cache.tensor.shape
    kernels.write_cache_kernel[(slots.shape[0], groups)](
        qkv.tensor, qkv.stride, rotary.cosines, rotary.sines, cache.tensor, cache.pages, slots, positions,
        cache.tensor.stride(0), PARTS=qkv.count, HEADS=heads, KV=groups, D=size,
        PAGES=cache.pages.shape[1], PAGE=page_tokens, num_warps=2, **overlap(slots.shape[0]),
    )  # fmt: skip


def attention(
    qkv: Parts, rotary: RotaryTables, cache: CacheView, slots: Tensor, positions: Tensor, out: Tensor, writes: bool
) -> None:
    """Attend from each row to itself and to all earlier positions of its slot.

    The row's own key comes first, the others follow in blocks from position 0 on: the same order for a prompt's row and
    an answer's, so that a token's values don't depend on which of both it was.

    Args:
        qkv: [R, (H + 2G) D] in parts.
        rotary: tables.
        cache: of this layer.
        slots: [R] int32.
        positions: [R] int32.
        out: [R, H D].
        writes: put the rows' own keys and values into the cache; False when `write_cache` has.
    """
    _, _, groups, page_tokens, size = cache.tensor.shape
    rows, heads = slots.shape[0], out.shape[1] // size
    splits = min(MOST_SPLITS, triton.cdiv(cache.pages.shape[1] * page_tokens, KEY_BLOCK)) if rows <= SPLIT_ROWS else 1
    kernels.attention_kernel[(rows, groups, splits)](
        qkv.tensor, qkv.stride, rotary.cosines, rotary.sines, cache.tensor, cache.pages, slots, positions,
        cache.tensor.stride(0), cache.blocks, cache.arrived, out, size**-0.5 * LOG2_E, PARTS=qkv.count,
        HEADS=heads, KV=groups, D=size, BLOCK_G=max(LEAST_DOT, triton.next_power_of_2(heads // groups)),
        PAGES=cache.pages.shape[1], PAGE=page_tokens, KB=KEY_BLOCK, WRITES=writes, STAGES=ATTENTION_STAGES,
        SPLITS=splits, num_warps=ATTENTION_WARPS, **overlap(rows),
    )  # fmt: skip


def begin_answers(inputs: BeginInputs, state: SlotState) -> None:
    """Put beginning answers' settings, pages and flags into their slots."""
    sizes = state.sizes
    kernels.begin_answers_kernel[(inputs.words.shape[0],)](
        inputs.words, inputs.numbers, inputs.flags, inputs.pages, inputs.count, *state.sampling(), state.pages,
        ROWS=sizes.rows, BLOCK_ROWS=triton.next_power_of_2(sizes.rows), WORDS=sizes.words, NUMBERS=NUMBERS,
        RECENT=sizes.recent, PAGES=sizes.pages_per_slot, BLOCK_PAGES=triton.next_power_of_2(sizes.pages_per_slot),
        num_warps=4, **overlap(inputs.words.shape[0]),
    )  # fmt: skip


def sample(
    scores: Tensor,
    slots: Tensor,
    rows_of: Tensor | None,
    positions: Tensor,
    out: Tensor,
    state: SlotState,
    first_id: int,
) -> None:
    """Draw each slot's next token and move the slot on.

    Penalty, masks, temperature, then the rows within top_k, top_p (of the whole mass) and min_p (of the likeliest);
    rows tied with the last one stay in. A token found often enough among the slot's recent ones is drawn again from all
    others. Randomness is Philox of the slot's seed at the number of its token, so it depends on nothing else.

    Args:
        scores: [P, rows] float32 logits.
        slots: [P] int32; the spare slot's are left alone.
        rows_of: [P] int32, where each stands in the launch; None: in the same order.
        positions: [R] int32 of the launch.
        out: [P] int32 head rows; -1 when no token is possible, -2 when the logits are not finite.
        state: of all slots.
        first_id: LLM id of head row 0.
    """
    sizes = state.sizes
    kernels.sample_kernel[(slots.shape[0],)](
        scores, slots, slots if rows_of is None else rows_of, positions, out, *state.sampling(), first_id, sizes.slots,
        ROWS=sizes.rows, BLOCK=triton.next_power_of_2(sizes.rows), RECENT=sizes.recent, IS_PROMPT=rows_of is not None,
        num_warps=SAMPLER_WARPS, **overlap(slots.shape[0]),
    )  # fmt: skip
