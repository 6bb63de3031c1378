"""The vocoder's kernels, in the Triton language; `vocoder_ops.py` says what each computes and launches it.

Tensors are channels last: [..., B, N, C] for stream, column and channel.
"""

from __future__ import annotations

import triton
import triton.language as tl

NONE = tl.constexpr(0)
SNAKE = tl.constexpr(1)
ELU = tl.constexpr(2)
LEAKY = tl.constexpr(3)
HARMONICS_BLOCK = tl.constexpr(16)
LARGEST_HALF = tl.constexpr(65504.0)
TWO_PI = tl.constexpr(6.283185307179586)


@triton.jit
def _snake(x, alpha):
    # sin^2 has the period pi: the angle is reduced to half a period at most, then a polynomial, exact to 3e-7.
    turns = x * alpha * 0.3183098861837907
    turns -= tl.floor(turns + 0.5)
    t = turns * turns
    wave = t * (t * (t * (t * (t * -3.35633232 + 13.0483569) - 30.1006397) + 42.7270643) - 32.4696636) + 9.8696042
    return x + t * wave / (alpha + 1e-9)


@triton.jit
def _store(pointer, value, mask):
    element = pointer.dtype.element_ty
    if element == tl.float16:
        # Saturated: an infinity would spread over the row.
        value = tl.minimum(tl.maximum(value, -LARGEST_HALF), LARGEST_HALF)
    tl.store(pointer, value.to(element), mask=mask)


# Sizes that differ between programs are not specialised on: each would compile every variant again.
_SIZES = ("in_columns", "columns", "streams", "taps_0", "taps_1", "taps_2", "scale", "extra", "dilation", "pad")


@triton.jit(do_not_specialize=_SIZES)
def convolution_kernel(
    x, weight, bias, alpha, residual, out, activated, lengths,
    x_branch_stride, residual_branch_stride, in_columns, columns, streams, taps_0, taps_1, taps_2, scale, extra,
    dilation, pad, slope,
    CIN: tl.constexpr, COUT: tl.constexpr, STRIDE: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, HAS_OUT: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    # Branches differ in their taps; `pad` counts columns before the first one, or is -1 for "same" padding.
    channel_tiles = tl.cdiv(COUT, BN)
    tile = tl.program_id(0)
    stream = tl.program_id(1)
    branch = tl.program_id(2)
    taps = tl.where(branch == 0, taps_0, tl.where(branch == 1, taps_1, taps_2))
    first_tap = tl.where(branch == 0, 0, tl.where(branch == 1, taps_0, taps_0 + taps_1))
    before = tl.where(pad < 0, (taps - 1) * dilation // 2, pad)
    column = (tile // channel_tiles) * BM + tl.arange(0, BM)
    channel = (tile % channel_tiles) * BN + tl.arange(0, BN)
    has_channel = channel < COUT
    k = tl.arange(0, BK)
    x += branch * x_branch_stride + stream.to(tl.int64) * in_columns * CIN
    weight += first_tap * CIN * COUT
    end = tl.minimum(tl.load(lengths + stream).to(tl.int32) * scale + extra, columns)
    # A tile beyond the row's end is only cleared.
    steps = tl.where((tile // channel_tiles) * BM < end, taps, 0) * tl.cdiv(CIN, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for step in range(steps):
        tap = step // tl.cdiv(CIN, BK)
        inner = (step % tl.cdiv(CIN, BK)) * BK + k
        source = column * STRIDE + tap * dilation - before
        inside = ((source >= 0) & (source < in_columns))[:, None]
        if CIN % BK == 0:
            a = tl.load(x + source[:, None] * CIN + inner[None, :], mask=inside, other=0.0)
        else:
            a = tl.load(x + source[:, None] * CIN + inner[None, :], mask=inside & (inner < CIN)[None, :], other=0.0)
        rows = weight + (tap * CIN + inner)[:, None] * COUT + channel[None, :]
        if CIN % BK == 0 and COUT % BN == 0:
            b = tl.load(rows)
        else:
            b = tl.load(rows, mask=(inner < CIN)[:, None] & has_channel[None, :], other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    value = total + tl.load(bias + branch * COUT + channel, mask=has_channel, other=0.0)[None, :]
    place = stream.to(tl.int64) * columns * COUT + column[:, None] * COUT + channel[None, :]
    own = branch.to(tl.int64) * streams * columns * COUT + place
    stored = (column < columns)[:, None] & has_channel[None, :]
    if HAS_RESIDUAL:
        added = tl.load(residual + branch * residual_branch_stride + place, mask=stored, other=0.0)
        value += added.to(tl.float32)
    value = tl.where((column < end)[:, None], value, 0.0)
    if HAS_OUT:
        _store(out + own, value, stored)
    if ACTIVATION == SNAKE:
        a = tl.load(alpha + branch * COUT + channel, mask=has_channel, other=1.0)[None, :]
        _store(activated + own, _snake(value, a), stored)
    if ACTIVATION == ELU:
        _store(activated + own, tl.where(value > 0, value, tl.exp(tl.minimum(value, 0.0)) - 1), stored)
    if ACTIVATION == LEAKY:
        _store(activated + own, tl.where(value > 0, value, value * slope), stored)


@triton.jit(do_not_specialize=("size", "total", "columns", "scale", "extra"))
def fan_out_kernel(
    first, second, alpha, out, activated, lengths, size, total, columns, scale, extra,
    C: tl.constexpr, SHIFT: tl.constexpr, BRANCHES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    stream = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    column = place // C
    channel = place % C
    end = tl.minimum(tl.load(lengths + stream).to(tl.int32) * scale + extra, columns)
    # With SHIFT, `first` has one column less: it is reflected on the left.
    source = tl.where(column == 0, 1, column - 1) if SHIFT else column
    x = tl.load(first + stream * (size - SHIFT * C) + source * C + channel, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(second + stream * size + place, mask=inside, other=0.0).to(tl.float32)
    x = tl.where(column < end, x, 0.0)
    _store(out + stream * size + place, x, inside)
    for branch in tl.static_range(BRANCHES):
        a = tl.load(alpha + branch * C + channel)
        _store(activated + branch * total + stream * size + place, _snake(x, a), inside)


@triton.jit(do_not_specialize=("total",))
def mean_kernel(x, out, total, slope, BRANCHES: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < total
    value = tl.zeros((BLOCK,), tl.float32)
    for branch in tl.static_range(BRANCHES):
        value += tl.load(x + branch * total + place, mask=inside, other=0.0).to(tl.float32)
    value = value / BRANCHES
    _store(out + place, tl.where(value > 0, value, value * slope), inside)


@triton.jit(do_not_specialize=("frames", "columns"))
def join_kernel(
    tail, mel, slots, tail_lengths, lengths, out, half, frames, columns,
    C: tl.constexpr, BLOCK_C: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    stream = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0)
    channel = tl.arange(0, BLOCK_C)
    inside = channel < C
    # A vector, as in `_store_shifted`.
    held = tl.load(tail_lengths + stream) + 0 * channel
    end = tl.load(lengths + stream) + held
    old = tail + (tl.load(slots + stream) * C + channel) * TAIL + column
    value = tl.load(old, mask=inside & (column < held), other=0.0)
    new = mel + (stream * frames + column - held) * C + channel
    value += tl.load(new, mask=inside & (column >= held) & (column < end), other=0.0)
    place = (stream * columns + column) * C + channel
    tl.store(out + place, value, mask=inside)
    _store(half + place, value, inside)


@triton.jit(do_not_specialize=("frames",))
def phase_kernel(
    pitch, lengths, tail_lengths, has_speech, slots, carried, at_frames, step, offset, frames, turn, rate, samples,
    HARMONICS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    stream = tl.program_id(0)
    frame = tl.arange(0, BLOCK)[None, :]
    harmonic = tl.arange(0, HARMONICS_BLOCK)[:, None]
    last = tl.load(lengths + stream).to(tl.int32) - 1
    # Past its end a row repeats its last frame.
    f0 = tl.abs(tl.load(pitch + stream * frames + tl.minimum(frame, last)))
    cycles = f0 * (harmonic + 1).to(tl.float32) / rate
    cycles = cycles - tl.floor(cycles)
    summed = tl.cumsum(tl.where(frame <= last, cycles, 0.0).to(tl.float64), 1)
    phase = summed.to(tl.float32) * turn
    steps = cycles * turn
    inside = (harmonic < HARMONICS) & (frame < frames)
    place = (stream * HARMONICS + harmonic) * frames + frame
    tl.store(at_frames + place, phase, mask=inside)
    tl.store(step + place, steps, mask=inside)
    # The right edge of a frame lies half of the next frame's step further.
    ahead = tl.abs(tl.load(pitch + stream * frames + tl.minimum(frame + 1, last)))
    ahead = ahead * (harmonic + 1).to(tl.float32) / rate
    ahead = (ahead - tl.floor(ahead)) * turn
    edge = phase + ahead / 2
    row = tl.arange(0, HARMONICS_BLOCK)
    valid = row < HARMONICS
    target = carried + tl.load(slots + stream) * HARMONICS + row
    before = tl.maximum(tl.load(tail_lengths + stream).to(tl.int32) - 1, 0)
    at_tail = tl.sum(tl.where(frame == before, edge, 0.0), 1)
    began = _positive_rest(tl.load(target, mask=valid, other=0.0) - at_tail)
    begin = tl.where((tl.load(has_speech + stream) + 0 * row) != 0, began, 0.0)
    tl.store(offset + stream * HARMONICS + row, begin, mask=valid)
    at_end = tl.sum(tl.where(frame == last, edge, 0.0), 1)
    tl.store(target, _positive_rest(at_end + begin), mask=valid)


@triton.jit
def _positive_rest(angle):
    exact = angle.to(tl.float64)
    return (exact - tl.floor(exact / TWO_PI) * TWO_PI).to(tl.float32)


@triton.jit(do_not_specialize=("frames", "size"))
def source_kernel(
    pitch, at_frames, step, offset, noise, merge, bias, lengths, has_speech, slots, cached, out,
    frames, samples, size, overlap, amplitude, sigma, threshold,
    HARMONICS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    stream = tl.program_id(1).to(tl.int64)
    sample = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[:, None]
    harmonic = tl.arange(0, HARMONICS_BLOCK)[None, :]
    inside = sample < size
    valid = inside & (harmonic < HARMONICS)
    length = tl.load(lengths + stream).to(tl.int32)
    # Linear interpolation between the frames' centres, held beyond the first and the last.
    position = tl.maximum((sample.to(tl.float32) + 0.5) * (1.0 / samples) - 0.5, 0.0)
    low = tl.minimum(position.to(tl.int32), frames - 1)
    high = tl.minimum(low + 1, frames - 1)
    weight = position - low.to(tl.float32)
    row = at_frames + (stream * HARMONICS + harmonic) * frames
    phase = (
        tl.load(row + low, mask=valid, other=0.0) * (1 - weight) + tl.load(row + high, mask=valid, other=0.0) * weight
    )
    # But in the first and the last half frame the phase goes on at the edge's pitch.
    half = samples // 2
    steps = step + (stream * HARMONICS + harmonic) * frames
    begins = length * samples - half
    ramp = ((sample - begins).to(tl.float32) + 0.5) / samples
    at_end = tl.load(row + length - 1 + 0 * sample, mask=valid, other=0.0)
    step_end = tl.load(steps + length - 1 + 0 * sample, mask=valid, other=0.0)
    phase = tl.where((sample >= begins) & (sample < begins + half), at_end + step_end * ramp, phase)
    back = ((half - 1 - sample).to(tl.float32) + 0.5) / samples
    at_start = tl.load(row + 0 * sample, mask=valid, other=0.0)
    step_start = tl.load(steps + 0 * sample, mask=valid, other=0.0)
    phase = tl.where(sample < half, at_start - step_start * back, phase)
    phase += tl.load(offset + stream * HARMONICS + harmonic, mask=harmonic < HARMONICS, other=0.0)
    f0 = tl.abs(tl.load(pitch + stream * frames + sample // samples, mask=inside, other=0.0))
    voiced = tl.where(f0 > threshold, 1.0, 0.0)
    drawn = tl.load(noise + (stream * size + sample) * HARMONICS + harmonic, mask=valid, other=0.0)
    value = amplitude * tl.sin(phase) * voiced + drawn * (sigma * voiced + amplitude / 3.0 * (1 - voiced))
    value = tl.where(valid, value * tl.load(merge + harmonic, mask=harmonic < HARMONICS, other=0.0), 0.0)
    total = tl.sum(value, 1)[:, None] + tl.load(bias)
    # tanh; the argument is bounded so that the exponential is finite.
    total = 1 - 2 / (tl.exp(2 * tl.minimum(tl.maximum(total, -20.0), 20.0)) + 1)
    is_cached = inside & (sample < overlap) & ((tl.load(has_speech + stream) + 0 * sample) != 0)
    old = tl.load(cached + tl.load(slots + stream) * overlap + sample, mask=is_cached, other=0.0)
    tl.store(out + stream * size + sample, tl.where(is_cached, old, total), mask=inside)


@triton.jit(do_not_specialize=("size", "columns"))
def stft_kernel(
    source, table, lengths, out, size, columns, frame_samples, frame_columns,
    N_FFT: tl.constexpr, HOP: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    stream = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.arange(0, C)[None, :]
    length = tl.load(lengths + stream).to(tl.int32)
    last = length * frame_samples - 1
    value = tl.zeros((BLOCK, C), tl.float32)
    for n in tl.static_range(N_FFT):
        # Reflected at the row's own ends.
        index = tl.abs(column * HOP + n - N_FFT // 2)
        index = tl.maximum(last - tl.abs(last - index), 0)
        sample = tl.load(source + stream * size + index, mask=index < size, other=0.0)
        value += sample[:, None] * tl.load(table + n * C + channel)
    value = tl.where((column < length * frame_columns + 1)[:, None], value, 0.0)
    _store(out + (stream * columns + column[:, None]) * C + channel, value, (column < columns)[:, None])


@triton.jit(do_not_specialize=("columns", "size"))
def istft_kernel(
    spectra, table, window, lengths, has_speech, slots, held, fade, out, columns, size, frame_samples, frame_columns,
    overlap, limit, largest,
    N_FFT: tl.constexpr, HOP: tl.constexpr, BINS: tl.constexpr, FADES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # One row of HOP samples is what N_FFT / HOP columns add up to.
    stream = tl.program_id(1).to(tl.int64)
    group = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    frequency = tl.arange(0, 16)[None, :]
    has_bin = frequency < BINS
    lane = tl.arange(0, HOP)[None, :]
    length = tl.load(lengths + stream).to(tl.int32)
    value = tl.zeros((BLOCK, HOP), tl.float32)
    envelope = tl.zeros((BLOCK, HOP), tl.float32)
    for i in tl.static_range(N_FFT // HOP):
        column = group + N_FFT // HOP // 2 - i
        valid = (column >= 0) & (column < length * frame_columns + 1) & (column < columns)
        row = spectra + (stream * columns + column[:, None]) * 2 * BINS + frequency
        mask = valid[:, None] & has_bin
        magnitude = tl.minimum(tl.exp(tl.minimum(tl.load(row, mask=mask, other=0.0).to(tl.float32), 80.0)), largest)
        angle = tl.sin(tl.load(row + BINS, mask=mask, other=0.0).to(tl.float32))
        magnitude = tl.where(mask, magnitude, 0.0)
        real, imaginary = magnitude * tl.cos(angle), magnitude * tl.sin(angle)
        for r in tl.static_range(HOP):
            place = (i * HOP + r) * 16 + frequency
            mixed = real * tl.load(table + place) + imaginary * tl.load(table + N_FFT * 16 + place)
            value += tl.where(lane == r, tl.sum(mixed, 1)[:, None], 0.0)
        square = tl.load(window + i * HOP + lane)
        envelope += tl.where(valid[:, None], square * square, 0.0)
    value = value / tl.maximum(envelope, 1e-30)
    value = tl.minimum(tl.maximum(value, -limit), limit)
    sample = group[:, None] * HOP + lane
    value = tl.where(sample < length * frame_samples, value, 0.0)
    if FADES:
        fades = (sample < overlap) & ((tl.load(has_speech + stream) + 0 * sample) != 0)
        old = tl.load(held + tl.load(slots + stream) * overlap + sample, mask=fades, other=0.0)
        rising = tl.load(fade + sample, mask=fades, other=0.0)
        falling = tl.load(fade + overlap + sample, mask=fades, other=0.0)
        value = tl.where(fades, value * rising + old * falling, value)
    tl.store(out + stream * size + sample, value, mask=sample < size)


@triton.jit(do_not_specialize=("columns", "size"))
def keep_kernel(
    mel, source, speech, slots, lengths, mel_tail, source_tail, speech_tail, columns, size, frame_samples,
    C: tl.constexpr, TAIL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    stream = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slots + stream)
    first = tl.maximum(tl.load(lengths + stream).to(tl.int32) - TAIL, 0)
    overlap = TAIL * frame_samples
    kept = place < overlap
    sample = tl.minimum(first * frame_samples + place, size - 1)
    tl.store(source_tail + slot * overlap + place, tl.load(source + stream * size + sample, mask=kept), mask=kept)
    tl.store(speech_tail + slot * overlap + place, tl.load(speech + stream * size + sample, mask=kept), mask=kept)
    channel, column = place // TAIL, tl.minimum(first + place % TAIL, columns - 1)
    kept = place < C * TAIL
    value = tl.load(mel + (stream * columns + column) * C + channel, mask=kept)
    tl.store(mel_tail + slot * C * TAIL + place, value, mask=kept)
