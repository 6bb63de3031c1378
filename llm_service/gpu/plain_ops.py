"""The operations of `ops` in plain torch and numpy, row by row: what the kernels must compute, and how a CPU does it.

Each row is computed alone, so that here too nothing depends on the rows beside it. Slow on purpose: for tests, and for
trying the GPU engine where there is no GPU.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from llm_service.gpu.ops import BeginInputs, CacheView, Parts, RotaryTables
from llm_service.gpu.slot_state import BANNED, CLOSING, FIXED_WORDS, PAGE_TOKENS, SEEN, SlotState

NO_TOKEN, NOT_FINITE = -1, -2
_PHILOX_KEYS = (0x9E3779B9, 0xBB67AE85)
_PHILOX_FACTORS = (0xD2511F53, 0xCD9E8D57)
_PHILOX_ROUNDS = 10
_WORD = (1 << 32) - 1
_UNIT = np.float32(4.6566127342e-10)
"""Just under 2 to the -31: turns 31 random bits into a number from 0 on and below 1."""


def embed(
    slots: Tensor, tokens: Tensor | None, positions: Tensor, latest: Tensor, places: Tensor, table: Tensor, out: Tensor
) -> None:
    """See `ops.embed`."""
    if tokens is None:
        positions.copy_(places[slots])
        tokens = latest[slots]
    out.copy_(table[tokens.long()])


def add_norm(
    hidden: Tensor, branch: Parts | None, weight: Tensor, epsilon: float, out: Tensor, picked: Tensor | None = None
) -> None:
    """See `ops.add_norm`."""
    if branch is not None and picked is None:
        hidden += branch.tensor[: hidden.numel()].view_as(hidden)
    rows = hidden if picked is None else hidden[picked.long()]
    if branch is not None and picked is not None:
        rows = rows + branch.tensor[: hidden.numel()].view_as(hidden)[picked.long()]
    out.copy_(rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + epsilon) * weight)


def product_parts(a: Tensor, weight: Tensor, room: Tensor) -> Parts:
    """See `ops.product_parts`; one part."""
    rows, columns = a.shape[0], weight.shape[0]
    room[: rows * columns].view(rows, columns).copy_(_product(a, weight))
    return Parts(room, 1, rows * columns)


def silu_product(a: Tensor, gate_up: Tensor, out: Tensor) -> None:
    """See `ops.silu_product`."""
    both = _product(a, gate_up)
    out.copy_(functional.silu(both[:, 0::2]) * both[:, 1::2])


def logits(a: Tensor, head: Tensor, bias: Tensor, out: Tensor) -> None:
    """See `ops.logits`."""
    out.copy_(_product(a, head) + bias)


def _product(a: Tensor, weight: Tensor) -> Tensor:
    matrix = weight.float()
    return torch.stack([matrix @ row for row in a.float()])


def write_cache(
    qkv: Parts, bias: Tensor, rotary: RotaryTables, cache: CacheView, slots: Tensor, positions: Tensor, heads: int
) -> None:
    """See `ops.write_cache`."""
    groups, size = cache.tensor.shape[2], cache.tensor.shape[4]
    projected = _projected(qkv, bias, slots.shape[0]).view(-1, heads + 2 * groups, size)
    for row, slot, position in zip(projected, slots.tolist(), positions.tolist(), strict=True):
        page = cache.tensor[int(cache.pages[slot, position // PAGE_TOKENS])]
        page[0, :, position % PAGE_TOKENS] = _turned(row[heads : heads + groups], rotary, position)
        page[1, :, position % PAGE_TOKENS] = row[heads + groups :]


def attention(
    qkv: Parts,
    bias: Tensor,
    rotary: RotaryTables,
    cache: CacheView,
    slots: Tensor,
    positions: Tensor,
    out: Tensor,
    heads: int,
    writes: bool,
) -> None:
    """See `ops.attention`."""
    if writes:
        write_cache(qkv, bias, rotary, cache, slots, positions, heads)
    groups, size = cache.tensor.shape[2], cache.tensor.shape[4]
    projected = _projected(qkv, bias, slots.shape[0]).view(-1, heads + 2 * groups, size)
    for index, (slot, position) in enumerate(zip(slots.tolist(), positions.tolist(), strict=True)):
        pages = cache.pages[slot, : position // PAGE_TOKENS + 1].long()
        held = cache.tensor[pages].transpose(0, 2).transpose(0, 1).flatten(2, 3)[:, :, : position + 1].float()
        queries = _turned(projected[index, :heads], rotary, position).view(groups, heads // groups, size)
        scores = queries @ held[0].transpose(1, 2) * size**-0.5
        out[index] = (scores.softmax(-1) @ held[1]).reshape(-1)


def _projected(qkv: Parts, bias: Tensor, rows: int) -> Tensor:
    return qkv.tensor[: rows * bias.shape[0]].view(rows, -1) + bias


def _turned(heads: Tensor, rotary: RotaryTables, position: int) -> Tensor:
    return heads * rotary.cosines[position] + heads.roll(heads.shape[-1] // 2, -1) * rotary.sines[position]


def begin_answers(inputs: BeginInputs, state: SlotState) -> None:
    """See `ops.begin_answers`."""
    for entry in range(int(inputs.count[0])):
        words = inputs.words[entry].tolist()
        slot = words[0]
        state.seed[slot] = int(np.array(words[1:3], np.int32).view(np.int64)[0])
        fields = ("next_position", "drawn", "min_tokens", "window", "repeat_limit", "top_k", "last_token")
        for name, value in zip(fields, words[3:10], strict=True):
            getattr(state, name)[slot] = value
        for name, number in zip(("temperature", "top_p", "min_p", "penalty"), inputs.numbers[entry], strict=True):
            getattr(state, name)[slot] = number
        state.recent[slot] = inputs.words[entry, FIXED_WORDS:]
        state.pages[slot] = inputs.pages[entry]
        state.flags[slot] = inputs.flags[entry]


def sample(
    scores: Tensor,
    slots: Tensor,
    rows_of: Tensor | None,
    positions: Tensor,
    out: Tensor,
    state: SlotState,
    first_id: int,
) -> None:
    """See `ops.sample`."""
    for entry, slot in enumerate(slots.tolist()):
        if slot == state.sizes.slots:
            continue
        row = _drawn(scores[entry].numpy(), state, slot)
        out[entry] = row
        count = int(state.drawn[slot])
        if row >= 0:
            state.last_token[slot] = row + first_id
            state.flags[slot, row] |= SEEN
            if state.window[slot] > 0:
                state.recent[slot, count % int(state.window[slot])] = row
        state.drawn[slot] = count + 1
        state.next_position[slot] = positions[entry if rows_of is None else int(rows_of[entry])] + 1


def _drawn(raw: npt.NDArray[np.float32], state: SlotState, slot: int) -> int:
    if not np.isfinite(raw).all():
        return NOT_FINITE
    count, heat = int(state.drawn[slot]), np.float32(state.temperature[slot])
    flags = state.flags[slot].numpy()
    penalty = np.float32(state.penalty[slot])
    scores = np.where(flags & SEEN, np.where(raw > 0, raw / penalty, raw * penalty), raw)
    closed = BANNED | CLOSING if count < int(state.min_tokens[slot]) else BANNED
    scores = np.where(flags & closed, np.float32(-np.inf), scores) / (heat if heat else np.float32(1))
    if not np.isfinite(scores.max()):
        return NO_TOKEN
    seed, width = int(state.seed[slot]), int(state.window[slot])
    row = _likeliest(scores) if heat == 0 else _pick(_nucleus(scores, state, slot), philox(seed, 2 * count))
    repeats = int((state.recent[slot, :width] == row).sum())
    if width and repeats >= int(state.repeat_limit[slot]):
        others = scores.copy()
        others[row] = -np.inf
        if np.isfinite(others.max()):
            return _likeliest(others) if heat == 0 else _pick(_shares(others), philox(seed, 2 * count + 1))
    return row


def _nucleus(scores: npt.NDArray[np.float32], state: SlotState, slot: int) -> npt.NDArray[np.float32]:
    """Return the shares of the rows within top_k, top_p and min_p; 0 elsewhere."""
    shares = _shares(scores)
    falling = np.sort(scores)[::-1]
    lowest = np.float32(-np.inf)
    if 0 < (top_k := int(state.top_k[slot])) < len(scores):
        lowest = falling[top_k - 1]
    if (top_p := np.float32(state.top_p[slot])) < 1:
        mass = np.cumsum(np.sort(shares)[::-1])
        count = int(np.searchsorted(mass, top_p * mass[-1], side="left"))
        lowest = max(lowest, falling[min(count, len(falling) - 1)])
    return np.where((scores >= lowest) & (shares >= np.float32(state.min_p[slot])), shares, np.float32(0))


def _shares(scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    shares: npt.NDArray[np.float32] = np.exp(scores - scores.max())
    return shares


def _likeliest(scores: npt.NDArray[np.float32]) -> int:
    return int(scores.argmax())


def _pick(shares: npt.NDArray[np.float32], number: np.float32) -> int:
    so_far = np.cumsum(shares)
    possible = np.flatnonzero(shares > 0)
    passing = possible[so_far[possible] > number * so_far.max()]
    return int(passing[0] if len(passing) else possible[-1])


def philox(seed: int, offset: int) -> np.float32:
    """Return the uniform number of a seed at an offset, as the Triton language's `rand` does.

    Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (Philox 4x32-10); counter (offset, 0, 0, 0).
    """
    key = [seed & _WORD, seed >> 32 & _WORD]
    counter = [offset & _WORD, 0, 0, 0]
    for _ in range(_PHILOX_ROUNDS):
        high, low = zip(
            *(divmod(factor * part, 1 << 32) for factor, part in zip(_PHILOX_FACTORS, counter[::2], strict=True)),
            strict=True,
        )
        counter = [high[1] ^ counter[1] ^ key[0], low[1], high[0] ^ counter[3] ^ key[1], low[0]]
        key = [(part + step) & _WORD for part, step in zip(key, _PHILOX_KEYS, strict=True)]
    bits = int(np.array(counter[0], np.uint32).view(np.int32))
    return np.float32(-bits - 1 if bits < 0 else bits) * _UNIT
