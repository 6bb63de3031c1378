"""Attention over history that stays where it is, in the Triton language; `attention_ops.py` launches it."""

from __future__ import annotations

import triton
import triton.language as tl

from gpukit.overlap import await_earlier, prefetch_lines

# A block is D wide, or BD, the next power of two, where D is none: then its last columns are zeros. Only such a block
# is masked by columns, so that the loads of others stay wide.


@triton.jit
def _load_head(at, rows, d, D: tl.constexpr, BD: tl.constexpr):
    if BD == D:
        loaded = tl.load(at, mask=rows[:, None], other=0.0)
    else:
        loaded = tl.load(at, mask=rows[:, None] & (d < D)[None, :], other=0.0)
    return loaded


@triton.jit
def _store_head(at, x, rows, d, D: tl.constexpr, BD: tl.constexpr):
    if BD == D:
        tl.store(at, x, mask=rows[:, None])
    else:
        tl.store(at, x, mask=rows[:, None] & (d < D)[None, :])


@triton.jit
def _load_weight(at, d, D: tl.constexpr, BD: tl.constexpr):
    if BD == D:
        loaded = tl.load(at + d)
    else:
        loaded = tl.load(at + d, mask=d < D, other=0.0)
    return loaded


@triton.jit
def _head_norm(x, weights, biases, d, D: tl.constexpr, BD: tl.constexpr):
    x = x.to(tl.float32)
    centred = x - (tl.sum(x, 1) / D)[:, None]
    if BD != D:
        centred = tl.where((d < D)[None, :], centred, 0.0)
    inverse = tl.rsqrt(tl.sum(centred * centred, 1) / D + 1e-5)
    return centred * inverse[:, None] * weights[None, :] + biases[None, :]


@triton.jit
def _fold(score, v, seen, best, total, mixed, scale):
    # One more block of keys into the running softmax, in base 2.
    score = tl.where(seen, score * scale, float("-inf"))
    new_best = tl.maximum(best, tl.max(score, 1))
    weight = tl.exp2(score - new_best[:, None])
    decay = tl.exp2(best - new_best)
    total = total * decay + tl.sum(weight, 1)
    mixed = mixed * decay[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
    return new_best, total, mixed


@triton.jit
def _position_score(scores, score_bias, head, rows, row, query, place, frames, pitch, shown):
    distance = query[:, None] - place[None, :].to(tl.int32) + frames - 1
    at = scores + (head.to(tl.int64) * rows + row[:, None]) * pitch + distance
    added = tl.load(at, mask=shown, other=0.0).to(tl.float32)
    return added + tl.load(score_bias + head * pitch + distance, mask=shown, other=0.0)


@triton.jit
def _history(
    prompts, prompt_lengths, window, slots, generated, prompt_plane, cfg, head, stream,
    window_slot_stride, window_cfg_stride, window_size,
    D2: tl.constexpr, H: tl.constexpr, BYTES: tl.constexpr,
):  # fmt: skip
    # Where the voice's prompt and the stream's ring stand, and how many keys each has. Both, and what says where they
    # are, were written before the step: they may be read while earlier kernels of it run.
    prompt_count = tl.load(prompt_lengths + stream).to(tl.int32)
    window_count = tl.minimum(tl.load(generated + stream), window_size).to(tl.int32)
    plane = prompt_plane + cfg * H + head
    prompt_address = tl.load(prompts + stream) + plane * prompt_count * (D2 * BYTES)
    ring = window + tl.load(slots + stream) * window_slot_stride + cfg * window_cfg_stride
    ring_address = (ring + head * window_size * D2).to(tl.int64)
    return prompt_address, prompt_count, ring_address, window_count


@triton.jit
def _tile(tile, before_ring, prompt_address, prompt_count, ring_address, window_count, KB: tl.constexpr):
    # Whether a tile is the prompt's; where its keys stand, how many there are, and which of them it has.
    is_prompt = tile < before_ring
    address = tl.where(is_prompt, prompt_address, ring_address)
    count = tl.where(is_prompt, prompt_count, window_count)
    key = tl.where(is_prompt, tile, tile - before_ring) * KB + tl.arange(0, KB)
    return is_prompt, address, count, key


@triton.jit
def _fetch_tiles(first, end, before_ring, prompt_address, prompt_count, ring_address, window_count,
                 KB: tl.constexpr, ROW_BYTES: tl.constexpr, LINES: tl.constexpr):  # fmt: skip
    # Brings this part's keys and values into the L2 cache, a line of 128 bytes at a time.
    line = tl.arange(0, LINES) * 128
    for tile in range(first, end):
        _, address, count, key = _tile(
            tile, before_ring, prompt_address, prompt_count, ring_address, window_count, KB
        )  # fmt: skip
        key = tl.minimum(key, count - 1).to(tl.int64)
        prefetch_lines(address + key[:, None] * ROW_BYTES + tl.minimum(line, ROW_BYTES - 1)[None, :])


# Sizes that differ between programs are not specialised on: each would compile every variant again.
_SIZES = ("frames", "streams", "rows", "prompt_plane", "window_size", "score_pitch", "block")


@triton.jit(do_not_specialize=_SIZES)
def attend_kernel(
    qkv, own_kv, prompts, prompt_lengths, window, q_weight, q_bias, k_weight, k_bias, scores, score_bias, out,
    means, masses, slots, generated, lengths,
    own_stream_stride, own_cfg_stride, prompt_plane, window_slot_stride, window_cfg_stride, window_size,
    frames, streams, rows, score_pitch, scale, block,
    H: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, QB: tl.constexpr, KB: tl.constexpr, SPLITS: tl.constexpr,
    HAS_NORMS: tl.constexpr, HAS_POSITIONS: tl.constexpr, HAS_BLOCKS: tl.constexpr, LINES: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    query_block = tl.program_id(0) // SPLITS
    split = tl.program_id(0) % SPLITS
    head = tl.program_id(1)
    cfg = (tl.program_id(2) // streams).to(tl.int64)
    stream = (tl.program_id(2) % streams).to(tl.int64)
    element = qkv.dtype.element_ty
    BYTES: tl.constexpr = qkv.dtype.element_ty.primitive_bitwidth // 8
    prompt_address, prompt_count, ring_address, window_count = _history(
        prompts, prompt_lengths, window, slots, generated, prompt_plane, cfg, head, stream,
        window_slot_stride, window_cfg_stride, window_size, 2 * D, H, BYTES,
    )  # fmt: skip
    before_ring = tl.cdiv(prompt_count, KB)
    tiles = before_ring + tl.cdiv(window_count, KB)
    first_tile, end_tile = tiles * split // SPLITS, tiles * (split + 1) // SPLITS
    if OVERLAPS:
        _fetch_tiles(
            first_tile, end_tile, before_ring, prompt_address, prompt_count, ring_address, window_count,
            KB, 2 * D * BYTES, LINES,
        )  # fmt: skip
    d = tl.arange(0, BD)
    if HAS_NORMS:
        q_weights, q_biases = _load_weight(q_weight, d, D, BD), _load_weight(q_bias, d, D, BD)
        k_weights, k_biases = _load_weight(k_weight, d, D, BD), _load_weight(k_bias, d, D, BD)
    await_earlier(OVERLAPS)
    query = query_block * QB + tl.arange(0, QB)
    first_row = (cfg * streams + stream) * frames
    row = first_row + query
    inside = query < frames
    q = _load_head(qkv + row[:, None] * (3 * H * D) + head * D + d[None, :], inside, d, D, BD)
    if HAS_NORMS:
        q = _head_norm(q, q_weights, q_biases, d, D, BD).to(element)
    if HAS_POSITIONS:
        q = (q.to(tl.float32) + _load_weight(q_bias + head * D, d, D, BD)[None, :]).to(element)
    best = tl.full((QB,), float("-inf"), tl.float32)
    total = tl.zeros((QB,), tl.float32)
    mixed = tl.zeros((QB, BD), tl.float32)

    # The first part also handles the chunk itself.
    own_count = tl.load(lengths + stream).to(tl.int32)
    if HAS_BLOCKS:
        # No key behind the last query's block is needed.
        own_count = tl.minimum(own_count, ((query_block + 1) * QB - 1) // block * block + block)
    for begin in range(0, tl.where(split == 0, own_count, 0), KB):
        key = begin + tl.arange(0, KB)
        seen = key < own_count
        at = qkv + (first_row + key[:, None]) * (3 * H * D) + (H + head) * D + d[None, :]
        k = _load_head(at, seen, d, D, BD)
        v = _load_head(at + H * D, seen, d, D, BD)
        if HAS_NORMS:
            k = _head_norm(k, k_weights, k_biases, d, D, BD).to(element)
            kept = own_kv + stream * own_stream_stride + cfg * own_cfg_stride
            kept += (head * frames + key[:, None]) * 2 * D + d[None, :]
            # A vector, as in `_store_shifted`.
            is_kept = seen & ((query_block + 0 * key) == 0)
            _store_head(kept, k, is_kept, d, D, BD)
            _store_head(kept + D, v, is_kept, d, D, BD)
        score = tl.dot(q, tl.trans(k), input_precision="ieee")
        if HAS_POSITIONS:
            shown = inside[:, None] & seen[None, :]
            score += _position_score(scores, score_bias, head, rows, row, query, key, frames, score_pitch, shown)
        if HAS_BLOCKS:
            # Every row sees the first key, so that no row's greatest score is minus infinity.
            visible = seen[None, :] & (key[None, :] < (query // block * block + block)[:, None])
            best, total, mixed = _fold(score, v, visible, best, total, mixed, scale)
        else:
            best, total, mixed = _fold(score, v, seen[None, :], best, total, mixed, scale)

    # Then the voice's prompt and the stream's ring of newest frames.
    made = tl.load(generated + stream)
    for tile in range(first_tile, end_tile):
        is_prompt, address, count, key = _tile(
            tile, before_ring, prompt_address, prompt_count, ring_address, window_count, KB
        )  # fmt: skip
        seen = key < count
        # The alignment is stated so that loads are 16 bytes wide: a pointer from memory could be unaligned.
        kv = tl.multiple_of(address.to(tl.pointer_type(element)), 16 if D % 8 == 0 else 2)
        kv += key[:, None] * 2 * D + d[None, :]
        k = _load_head(kv, seen, d, D, BD)
        v = _load_head(kv + D, seen, d, D, BD)
        score = tl.dot(q, tl.trans(k), input_precision="ieee")
        if HAS_POSITIONS:
            # Position of a key, counted from the chunk's first frame.
            in_ring = made - 1 - (made - 1 - key) % window_size - made
            place = tl.where(is_prompt, key - prompt_count - window_count, in_ring)
            shown = inside[:, None] & seen[None, :]
            score += _position_score(scores, score_bias, head, rows, row, query, place, frames, score_pitch, shown)
        best, total, mixed = _fold(score, v, seen[None, :], best, total, mixed, scale)

    at = row[:, None] * H * D + head * D + d[None, :]
    if SPLITS == 1:
        _store_head(out + at, (mixed / total[:, None]).to(out.dtype.element_ty), inside, d, D, BD)
    else:
        # A part without keys weighs nothing.
        has_keys = total > 0
        some = tl.where(has_keys, total, 1.0)
        _store_head(means + split * rows * H * D + at, (mixed / some[:, None]).to(element), inside, d, D, BD)
        mass = tl.where(has_keys, best + tl.log2(some), float("-inf"))
        tl.store(masses + (split * rows + row) * H + head, mass, mask=inside)


@triton.jit(do_not_specialize=("rows",))
def combine_kernel(
    means, masses, out, rows,
    H: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, SPLITS: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, BLOCK_H)
    d = tl.arange(0, BD)
    valid = head < H
    best = tl.full((BLOCK_H,), float("-inf"), tl.float32)
    for split in tl.static_range(SPLITS):
        best = tl.maximum(best, tl.load(masses + (split * rows + row) * H + head, mask=valid, other=0.0))
    total = tl.zeros((BLOCK_H,), tl.float32)
    mixed = tl.zeros((BLOCK_H, BD), tl.float32)
    at = row * H * D + head[:, None] * D + d[None, :]
    for split in tl.static_range(SPLITS):
        share = tl.exp2(tl.load(masses + (split * rows + row) * H + head, mask=valid, other=0.0) - best)
        total += share
        mixed += share[:, None] * _load_head(means + split * rows * H * D + at, valid, d, D, BD).to(tl.float32)
    _store_head(out + at, (mixed / total[:, None]).to(out.dtype.element_ty), valid, d, D, BD)


@triton.jit(do_not_specialize=("window_size", "frames"))
def commit_rows_kernel(
    qkv, window, slots, generated, lengths, layer_stride, window_slot_stride, window_size, frames,
    H: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, TB: tl.constexpr, CFGS: tl.constexpr,
):  # fmt: skip
    # Rows [L, cfg, B, T, 3, H, D]; rings [S, L, cfg, H, W, 2D].
    plane = tl.program_id(0).to(tl.int64)
    stream = tl.program_id(1).to(tl.int64)
    length = tl.load(lengths + stream)
    frame = tl.maximum(length - window_size, 0) + tl.program_id(2) * TB + tl.arange(0, TB)
    place = (tl.load(generated + stream) + frame) % window_size
    d = tl.arange(0, 2 * BD)
    keep = (frame < length)[:, None]
    if BD != D:
        keep = keep & (d < 2 * D)[None, :]
    cfg = plane // H % CFGS
    first_row = (cfg * tl.num_programs(1) + stream) * frames
    row = qkv + (plane // H // CFGS) * layer_stride + (first_row + frame[:, None]) * 3 * H * D
    source = row + (1 + d[None, :] // D) * H * D + (plane % H) * D + d[None, :] % D
    target = window + tl.load(slots + stream) * window_slot_stride + plane * window_size * 2 * D
    tl.store(target + place[:, None] * 2 * D + d[None, :], tl.load(source, mask=keep), mask=keep)


@triton.jit(do_not_specialize=("rows", "rows_per_cfg"))
def rotate_kernel(
    qkv, angles, rows, rows_per_cfg, H: tl.constexpr, D: tl.constexpr, BLOCK_P: tl.constexpr, ROWS: tl.constexpr
):
    # Turns neighbouring channels of head 0's query and key, in place; angles [B, T, D / 2, 2] cosines and sines.
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    pair = tl.arange(0, BLOCK_P)[None, :]
    valid = (row < rows) & (pair < D // 2)
    angle = angles + (row % rows_per_cfg) * D + 2 * pair
    cosine = tl.load(angle, mask=valid, other=0.0)
    sine = tl.load(angle + 1, mask=valid, other=0.0)
    for which in tl.static_range(2):
        at = qkv + row * 3 * H * D + which * H * D + 2 * pair
        a = tl.load(at, mask=valid, other=0.0).to(tl.float32)
        b = tl.load(at + 1, mask=valid, other=0.0).to(tl.float32)
        tl.store(at, (a * cosine - b * sine).to(qkv.dtype.element_ty), mask=valid)
        tl.store(at + 1, (b * cosine + a * sine).to(qkv.dtype.element_ty), mask=valid)


@triton.jit(do_not_specialize=("columns", "frames", "streams"))
def lead_columns_kernel(
    tail, x, slots, out, tail_slot_stride, tail_cfg_stride, columns, frames, streams,
    C: tl.constexpr, WIDTH: tl.constexpr, REPEAT: tl.constexpr, BLOCK_C: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    # Tails [S, cfg, C, WIDTH]; out [cfg, B, WIDTH + REPEAT T, C].
    stream = tl.program_id(1).to(tl.int64)
    slot = tl.load(slots + stream % streams)
    column = (tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS))[:, None]
    channel = tl.arange(0, BLOCK_C)[None, :]
    valid = (column < columns) & (channel < C)
    old = tail + slot * tail_slot_stride + stream // streams * tail_cfg_stride + channel * WIDTH + column
    value = tl.load(old, mask=valid & (column < WIDTH), other=0.0)
    new = x + (stream * frames + (column - WIDTH) // REPEAT) * C + channel
    value += tl.load(new, mask=valid & (column >= WIDTH), other=0.0).to(value.dtype)
    tl.store(out + (stream * columns + column) * C + channel, value, mask=valid)


@triton.jit(do_not_specialize=("columns", "factor", "streams"))
def keep_columns_kernel(
    x, slots, lengths, tail, tail_slot_stride, tail_cfg_stride, columns, factor, streams,
    C: tl.constexpr, WIDTH: tl.constexpr, BLOCK_C: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    stream = tl.program_id(1).to(tl.int64)
    column = (tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS))[:, None]
    channel = tl.arange(0, BLOCK_C)[None, :]
    valid = (column < WIDTH) & (channel < C)
    at = tl.load(lengths + stream % streams) * factor + column
    kept = tail + tl.load(slots + stream % streams) * tail_slot_stride + stream // streams * tail_cfg_stride
    value = tl.load(x + (stream * columns + at) * C + channel, mask=valid)
    tl.store(kept + channel * WIDTH + column, value, mask=valid)


@triton.jit(do_not_specialize=("frames",))
def embed_norm_kernel(
    x_ptr, weight, bias, out, lengths, frames, factor, C: tl.constexpr, BLOCK_C: tl.constexpr, IS_MASKED: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK_C)
    valid = channel < C
    x = tl.load(x_ptr + row * C + channel, mask=valid, other=0.0).to(tl.float32)
    mean = tl.sum(x, 0) / C
    centred = tl.where(valid, x - mean, 0.0)
    y = centred * tl.rsqrt(tl.sum(centred * centred, 0) / C + 1e-5)
    y = (y * tl.load(weight + channel, mask=valid, other=0.0) + tl.load(bias + channel, mask=valid, other=0.0)) * factor
    if IS_MASKED:
        y = tl.where((row % frames + 0 * channel) < tl.load(lengths + row // frames), y, 0.0)
    tl.store(out + row * C + channel, y.to(out.dtype.element_ty), mask=valid)
