"""The decoder's kernels, in the Triton language; `ops.py` says what each computes and launches it.

A row is one token of one sequence: the latest token of an answer, or a token of a prompt. What a kernel computes for a
row never depends on which rows are beside it: every sum has a fixed order, whatever the number of rows. `rows` counts
those of the launch; padding rows belong to the spare slot.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from gpukit.overlap import await_earlier, prefetch_lines


@triton.jit
def _fetch_ahead(weight, n, start_k, N: tl.constexpr, K: tl.constexpr, SPAN: tl.constexpr, LINE: tl.constexpr,
                 LINES: tl.constexpr):  # fmt: skip
    # Bring this program's weights into the L2 cache, a line of 128 bytes at a time.
    line = tl.arange(0, LINES)
    at = weight + tl.minimum(n, N - 1).to(tl.int64)[:, None] * K + start_k + tl.minimum(line * LINE, SPAN - 1)[None, :]
    prefetch_lines(at)


@triton.jit
def begin_answers_kernel(
    words, numbers, flags, page_rows, count,
    seed, next_position, drawn, min_tokens, window, repeat_limit, recent, last_token,
    temperature, top_p, min_p, penalty, top_k, all_flags, all_pages,
    ROWS: tl.constexpr, BLOCK_ROWS: tl.constexpr, WORDS: tl.constexpr, NUMBERS: tl.constexpr,
    RECENT: tl.constexpr, PAGES: tl.constexpr, BLOCK_PAGES: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    await_earlier(OVERLAPS)
    entry = tl.program_id(0)
    if entry < tl.load(count):
        at = words + entry * WORDS
        slot = tl.load(at)
        low = tl.load(at + 1).to(tl.int64) & 0xFFFFFFFF
        tl.store(seed + slot, low | (tl.load(at + 2).to(tl.int64) << 32))
        tl.store(next_position + slot, tl.load(at + 3))
        tl.store(drawn + slot, tl.load(at + 4))
        tl.store(min_tokens + slot, tl.load(at + 5))
        tl.store(window + slot, tl.load(at + 6))
        tl.store(repeat_limit + slot, tl.load(at + 7))
        tl.store(top_k + slot, tl.load(at + 8))
        tl.store(last_token + slot, tl.load(at + 9))
        tl.store(temperature + slot, tl.load(numbers + entry * NUMBERS))
        tl.store(top_p + slot, tl.load(numbers + entry * NUMBERS + 1))
        tl.store(min_p + slot, tl.load(numbers + entry * NUMBERS + 2))
        tl.store(penalty + slot, tl.load(numbers + entry * NUMBERS + 3))
        place = tl.arange(0, RECENT)
        tl.store(recent + slot * RECENT + place, tl.load(at + 16 + place))
        page = tl.arange(0, BLOCK_PAGES)
        has_page = page < PAGES
        held = tl.load(page_rows + entry * PAGES + page, mask=has_page)
        tl.store(all_pages + slot * PAGES + page, held, mask=has_page)
        row = tl.arange(0, BLOCK_ROWS)
        inside = row < ROWS
        bits = tl.load(flags + entry * ROWS + row, mask=inside)
        tl.store(all_flags + slot.to(tl.int64) * ROWS + row, bits, mask=inside)


@triton.jit
def embed_kernel(
    slots, tokens, positions, last_token, next_position, table, hidden,
    IS_PROMPT: tl.constexpr, C: tl.constexpr, BLOCK_C: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    await_earlier(OVERLAPS)
    row = tl.program_id(0)
    if IS_PROMPT:
        token = tl.load(tokens + row)
    else:
        slot = tl.load(slots + row)
        token = tl.load(last_token + slot)
        tl.store(positions + row, tl.load(next_position + slot))
    channel = tl.arange(0, BLOCK_C)
    valid = channel < C
    value = tl.load(table + token.to(tl.int64) * C + channel, mask=valid)
    tl.store(hidden + row * C + channel, value.to(tl.float32), mask=valid)


@triton.jit
def add_norm_kernel(
    hidden, parts, part_stride, weight, out, epsilon,
    PARTS: tl.constexpr, C: tl.constexpr, BLOCK_C: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    channel = tl.arange(0, BLOCK_C)
    valid = channel < C
    # Constants come from memory, not from a cache: they are read while the kernel before still runs.
    gain = tl.load(weight + channel, mask=valid, other=0.0)
    await_earlier(OVERLAPS)
    at = tl.program_id(0) * C + channel
    x = tl.load(hidden + at, mask=valid, other=0.0)
    if PARTS > 0:
        branch = tl.load(parts + at, mask=valid, other=0.0)
        for part in tl.static_range(1, PARTS):
            branch += tl.load(parts + part * part_stride + at, mask=valid, other=0.0)
        x += branch
        tl.store(hidden + at, x, mask=valid)
    inverse = tl.rsqrt(tl.sum(x * x, 0) / C + epsilon)
    tl.store(out + at, (x * inverse * gain).to(out.dtype.element_ty), mask=valid)


@triton.jit
def _part(a, weight, m, n, start_k, rows,
          N: tl.constexpr, K: tl.constexpr, SPAN: tl.constexpr,
          BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    k = tl.arange(0, BK)
    has_row = (m < rows)[:, None]
    has_column = (n < N)[None, :]
    left = a + m.to(tl.int64)[:, None] * K + start_k + k[None, :]
    right = weight + n.to(tl.int64)[None, :] * K + start_k + k[:, None]
    total = tl.zeros([BM, BN], tl.float32)
    for start in tl.range(0, SPAN, BK, num_stages=STAGES):
        if SPAN % BK == 0:
            x = tl.load(left, mask=has_row, other=0.0)
            if N % BN == 0:
                w = tl.load(right)
            else:
                w = tl.load(right, mask=has_column, other=0.0)
        else:
            inside = start + k < SPAN
            x = tl.load(left, mask=has_row & inside[None, :], other=0.0)
            w = tl.load(right, mask=has_column & inside[:, None], other=0.0)
        total = tl.dot(x, w, total, input_precision="ieee")
        left += BK
        right += BK
    return total


@triton.jit
def product_kernel(
    a, weight, bias, out, rows, part_stride,
    N: tl.constexpr, K: tl.constexpr, SPLITS: tl.constexpr, KIND: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
    LINE: tl.constexpr, LINES: tl.constexpr, FETCHES: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    # KIND 0: float32 parts of a sum; 1: SiLU(even columns) * odd columns; 2: as 0, with a bias in the first part.
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    split = tl.program_id(2)
    SPAN: tl.constexpr = K // SPLITS
    if KIND == 2:
        first = tl.load(bias + n, mask=(n < N) & (split + 0 * n == 0), other=0.0)
    if OVERLAPS:
        gdc_launch_dependents()
        if FETCHES:
            _fetch_ahead(weight, n, split * SPAN, N, K, SPAN, LINE, LINES)
        gdc_wait()
    total = _part(a, weight, m, n, split * SPAN, rows, N, K, SPAN, BM, BN, BK, STAGES)
    line = m.to(tl.int64)[:, None]
    has_row = (m < rows)[:, None]
    if KIND == 1:
        gate, up = tl.split(tl.reshape(total, [BM, BN // 2, 2]))
        value = gate * tl.sigmoid(gate) * up
        column = tl.program_id(1) * (BN // 2) + tl.arange(0, BN // 2)
        at = out + line * (N // 2) + column[None, :]
        tl.store(at, value.to(out.dtype.element_ty), mask=has_row & (column < N // 2)[None, :])
    else:
        if KIND == 2:
            total += first[None, :]
        at = out + split.to(tl.int64) * part_stride + line * N + n[None, :]
        tl.store(at, total, mask=has_row & (n < N)[None, :])


@triton.jit
def _summed(parts, part_stride, column, valid, PARTS: tl.constexpr):
    value = tl.load(parts + column, mask=valid, other=0.0)
    for part in tl.static_range(1, PARTS):
        value += tl.load(parts + part * part_stride + column, mask=valid, other=0.0)
    return value


@triton.jit
def _turned(parts, part_stride, column, turned_column, valid, cosine, sine, PARTS: tl.constexpr):
    plain = _summed(parts, part_stride, column, valid, PARTS)
    other = _summed(parts, part_stride, turned_column, valid, PARTS)
    return plain * cosine + other * sine


@triton.jit
def _own_key_value(
    parts, part_stride, cosines, sines, position, group,
    PARTS: tl.constexpr, HEADS: tl.constexpr, KV: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    d = tl.arange(0, D)
    turned = tl.where(d < D // 2, d + D // 2, d - D // 2)
    cosine = tl.load(cosines + position * D + d)
    sine = tl.load(sines + position * D + d)
    base = (HEADS + group) * D
    all_valid = d < D
    k = _turned(parts, part_stride, base + d, base + turned, all_valid, cosine, sine, PARTS)
    v = _summed(parts, part_stride, base + KV * D + d, all_valid, PARTS)
    return k, v


@triton.jit
def _cache_place(cache, pages, slot, position, group, page_stride, PAGES: tl.constexpr, PAGE: tl.constexpr,
                 D: tl.constexpr):  # fmt: skip
    page = tl.load(pages + slot * PAGES + position // PAGE).to(tl.int64)
    return cache + page * page_stride + (group * PAGE + position % PAGE) * D


@triton.jit
def write_cache_kernel(
    qkv, part_stride, cosines, sines, cache, pages, slots, positions, page_stride,
    PARTS: tl.constexpr, HEADS: tl.constexpr, KV: tl.constexpr, D: tl.constexpr,
    PAGES: tl.constexpr, PAGE: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    await_earlier(OVERLAPS)
    row = tl.program_id(0)
    group = tl.program_id(1)
    slot = tl.load(slots + row)
    position = tl.load(positions + row)
    parts = qkv + row.to(tl.int64) * (HEADS + 2 * KV) * D
    k, v = _own_key_value(parts, part_stride, cosines, sines, position, group, PARTS, HEADS, KV, D)
    place = _cache_place(cache, pages, slot, position, group, page_stride, PAGES, PAGE, D)
    d = tl.arange(0, D)
    tl.store(place + d, k.to(cache.dtype.element_ty))
    tl.store(place + KV * PAGE * D + d, v.to(cache.dtype.element_ty))


@triton.jit
def _merged(best, total, mixed, block_best, block_total, block_mixed):
    # The softmax of all keys so far and that of another block; one rounding each, however the kernel is compiled.
    higher = tl.maximum(best, block_best)
    fade, share = tl.exp2(best - higher), tl.exp2(block_best - higher)
    return higher, tl.fma(total, fade, block_total * share), tl.fma(mixed, fade, block_mixed * share)


@triton.jit
def _keep_block(at, best, total, mixed, mask, STRIDE: tl.constexpr):
    tl.store(at, tl.broadcast_to(best, mixed.shape), mask=mask)
    tl.store(at + STRIDE, tl.broadcast_to(total, mixed.shape), mask=mask)
    tl.store(at + 2 * STRIDE, mixed, mask=mask)


@triton.jit
def _kept_block(at, mask, STRIDE: tl.constexpr):
    best, total = tl.load(at, mask=mask, other=0.0), tl.load(at + STRIDE, mask=mask, other=1.0)
    return best, total, tl.load(at + 2 * STRIDE, mask=mask, other=0.0)


@triton.jit
def attention_kernel(
    qkv, part_stride, cosines, sines, cache, pages, slots, positions, page_stride, blocks, arrived, out, scale,
    PARTS: tl.constexpr, HEADS: tl.constexpr, KV: tl.constexpr, D: tl.constexpr, BLOCK_G: tl.constexpr,
    PAGES: tl.constexpr, PAGE: tl.constexpr, KB: tl.constexpr, WRITES: tl.constexpr, STAGES: tl.constexpr,
    SPLITS: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    group = tl.program_id(1)
    first = tl.program_id(2) * KB
    G: tl.constexpr = HEADS // KV
    slot = tl.load(slots + row)
    if OVERLAPS:
        gdc_launch_dependents()
        # Earlier tokens' keys and values come from memory. The position may still be that of the step before.
        for start in range(first, tl.load(positions + row), SPLITS * KB):
            early = tl.minimum(start + tl.arange(0, KB), PAGES * PAGE - 1)
            line = _cache_place(cache, pages, slot, early, group, page_stride, PAGES, PAGE, D)
            prefetch_lines(line)
            prefetch_lines(line + KV * PAGE * D)
        gdc_wait()
    position = tl.load(positions + row)
    element = cache.dtype.element_ty
    parts = qkv + row.to(tl.int64) * (HEADS + 2 * KV) * D
    k, v = _own_key_value(parts, part_stride, cosines, sines, position, group, PARTS, HEADS, KV, D)
    k = k.to(element)
    v = v.to(element)
    d = tl.arange(0, D)
    if WRITES:
        place = _cache_place(cache, pages, slot, position, group, page_stride, PAGES, PAGE, D)
        tl.store(place + d, k)
        tl.store(place + KV * PAGE * D + d, v)
    head = tl.arange(0, BLOCK_G)[:, None]
    is_head = (head < G) & (d[None, :] < D)
    turned = tl.where(d < D // 2, d + D // 2, d - D // 2)[None, :]
    cosine = tl.load(cosines + position * D + d)[None, :]
    sine = tl.load(sines + position * D + d)[None, :]
    base = (group * G + head) * D
    q = _turned(parts, part_stride, base + d[None, :], base + turned, is_head, cosine, sine, PARTS)
    q = (q * scale).to(element)
    # A product as that of the other keys, so that the order of its sum is no matter of layouts.
    best = tl.max(tl.dot(q, tl.broadcast_to(k[:, None], [D, BLOCK_G]), input_precision="ieee"), 1)[:, None]
    total = tl.full([BLOCK_G, 1], 1.0, tl.float32)
    mixed = tl.zeros([BLOCK_G, D], tl.float32) + v.to(tl.float32)[None, :]
    kept = blocks + (row * KV + group) * (1 + tl.cdiv(PAGES * PAGE, KB)) * 3 * G * D + head * D + d[None, :]
    if SPLITS > 1:
        _keep_block(kept, best, total, mixed, is_head, G * D)
    for start in tl.range(first, position, SPLITS * KB, num_stages=STAGES):
        key = start + tl.arange(0, KB)
        seen = key < position
        last = tl.minimum(key, position)
        at = _cache_place(cache, pages, slot, last, group, page_stride, PAGES, PAGE, D)[:, None] + d[None, :]
        keys = tl.load(at, mask=seen[:, None], other=0.0)
        score = tl.dot(q, tl.trans(keys), input_precision="ieee")
        score = tl.where(seen[None, :], score, float("-inf"))
        block_best = tl.max(score, 1)[:, None]
        share = tl.exp2(score - block_best)
        values = tl.load(at + KV * PAGE * D, mask=seen[:, None], other=0.0)
        block_mixed = tl.dot(share.to(element), values, input_precision="ieee")
        block_total = tl.sum(share, 1)[:, None]
        if SPLITS == 1:
            best, total, mixed = _merged(best, total, mixed, block_best, block_total, block_mixed)
        else:
            _keep_block(kept + (1 + start // KB) * 3 * G * D, block_best, block_total, block_mixed, is_head, G * D)
    if SPLITS > 1:
        # The last program to arrive puts all blocks together, in the order in which one program would.
        tl.debug_barrier()
        is_last = tl.atomic_add(arrived + row * KV + group, 1) == SPLITS - 1
        best, total, mixed = _kept_block(kept, is_head, G * D)
        for start in tl.range(0, tl.where(is_last, position, 0), KB, loop_unroll_factor=4):
            block_best, block_total, block_mixed = _kept_block(kept + (1 + start // KB) * 3 * G * D, is_head, G * D)
            best, total, mixed = _merged(best, total, mixed, block_best, block_total, block_mixed)
        is_head = is_head & (head < tl.where(is_last, G, 0))
        tl.store(arrived + row * KV + group, 0, mask=is_last)
    target = out + row.to(tl.int64) * HEADS * D + (group * G + head) * D + d[None, :]
    tl.store(target, (mixed / total).to(out.dtype.element_ty), mask=is_head)


@triton.jit
def _ordered(x):
    # Floats as integers of the same order.
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _drawn_from(share, number, row, BLOCK: tl.constexpr):
    # The first row at which the running sum of the shares passes the number's part of it; a possible one in any case.
    so_far = tl.cumsum(share, 0)
    possible = share > 0
    target = number * tl.max(so_far, 0)
    first = tl.min(tl.where(possible & (so_far > target), row, BLOCK), 0)
    last = tl.max(tl.where(possible, row, -1), 0)
    return tl.minimum(first, last)


@triton.jit
def sample_kernel(
    logits, slots, rows_of, positions, out,
    seed, next_position, drawn, min_tokens, window, repeat_limit, recent, last_token,
    temperature, top_p, min_p, penalty, top_k, all_flags,
    first_id, spare_slot,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, RECENT: tl.constexpr, IS_PROMPT: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    await_earlier(OVERLAPS)
    entry = tl.program_id(0)
    slot = tl.load(slots + entry)
    if slot != spare_slot:
        row = tl.arange(0, BLOCK)
        inside = row < ROWS
        raw = tl.load(logits + entry.to(tl.int64) * ROWS + row, mask=inside, other=0.0)
        broken = tl.sum(((raw != raw) | (tl.abs(raw) == float("inf"))).to(tl.int32), 0)
        flags = all_flags + slot.to(tl.int64) * ROWS
        bits = tl.load(flags + row, mask=inside, other=2).to(tl.int32)
        factor = tl.load(penalty + slot)
        score = tl.where((bits & 1) > 0, tl.where(raw > 0, raw / factor, raw * factor), raw)
        count = tl.load(drawn + slot)
        closed = tl.where(count < tl.load(min_tokens + slot), 6, 2)
        score = tl.where((bits & closed) > 0, float("-inf"), score)
        heat = tl.load(temperature + slot)
        is_greedy = heat == 0.0
        score = score / tl.where(is_greedy, 1.0, heat)
        best = tl.max(score, 0)
        is_possible = (best > float("-inf")) & (broken == 0)
        if is_possible:
            share = tl.exp(score - best)
            key = _ordered(score)
            k = tl.load(top_k + slot)
            nucleus = tl.load(top_p + slot)
            mass = tl.where(nucleus < 1.0, nucleus * tl.sum(share, 0), float("inf"))
            # Bit by bit from the top: the highest key from which on enough rows, or enough mass, are found. It is known
            # well enough when at most one row is between it and a key that is too high.
            lowest = tl.full([], -2147483648, tl.int32)
            most = tl.full([], BLOCK, tl.int32)
            fewest = tl.full([], 0, tl.int32)
            step = lowest
            while (step != 0) & (most - fewest > 1):
                trial = lowest ^ step
                above = key >= trial
                found = tl.sum(above.to(tl.int32), 0)
                enough = ((k > 0) & (found >= k)) | (tl.sum(tl.where(above, share, 0.0), 0) >= mass)
                lowest = tl.where(enough, trial, lowest)
                most = tl.where(enough, found, most)
                fewest = tl.where(enough, fewest, found)
                step = (step >> 1) & 0x7FFFFFFF
            kept = (key >= lowest) & (share >= tl.load(min_p + slot))
            kept = tl.where(is_greedy, score == best, kept)
            key_seed = tl.load(seed + slot)
            number = tl.where(is_greedy, 0.0, tl.rand(key_seed, 2 * count))
            token = _drawn_from(tl.where(kept, share, 0.0), number, row, BLOCK)
            place = tl.arange(0, RECENT)
            width = tl.load(window + slot)
            past = tl.load(recent + slot * RECENT + place)
            repeats = tl.sum(((past == token) & (place < width)).to(tl.int32), 0)
            if (width > 0) & (repeats >= tl.load(repeat_limit + slot)):
                others = tl.where(row == token, float("-inf"), score)
                highest = tl.max(others, 0)
                if highest > float("-inf"):
                    share = tl.exp(others - highest)
                    share = tl.where(is_greedy, (others == highest).to(tl.float32), share)
                    number = tl.where(is_greedy, 0.0, tl.rand(key_seed, 2 * count + 1))
                    token = _drawn_from(share, number, row, BLOCK)
            tl.store(out + entry, token)
            tl.store(last_token + slot, token + first_id)
            old = tl.load(flags + token)
            tl.store(flags + token, old | 1)
            if width > 0:
                tl.store(recent + slot * RECENT + count % width, token)
        else:
            tl.store(out + entry, tl.where(broken > 0, -2, -1))
        at = entry
        if IS_PROMPT:
            at = tl.load(rows_of + entry)
        tl.store(drawn + slot, count + 1)
        tl.store(next_position + slot, tl.load(positions + at) + 1)
