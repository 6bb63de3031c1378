"""Runs steps on the device without waiting for them: one CUDA graph for each number of rows, inputs and answers apart.

    pinned inputs --copy--> graph: [begin] embed, layers, head, draw --copy--> pinned tokens, event

A step is launched while the one before it still runs; `LaunchedStep.tokens` waits for its own step only. In the Triton
language's interpreter the same launches run at once, without graphs. Knows nothing of requests or of time.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpukit.graphs import capture, compiling_side_by_side, graph_memory, own_stream, warm_up
from llm_service.embedded.steps import AnswerStart, Ints, PromptPiece, RunnerLimits
from llm_service.gpu.decoder import PromptInputs, SlotDecoder
from llm_service.gpu.ops import BeginInputs
from llm_service.gpu.slot_state import NUMBERS, start_words

logger = logging.getLogger(__name__)

STEPS_AT_ONCE = 3
"""Number of host buffer sets: one step runs, one is launched behind it, one is being read."""
ROWS_PER_DRAW = 16
LEAST_DRAWS = 8


@dataclass(frozen=True)
class RunnerSizes:
    """For which numbers of rows there are graphs, in rising order."""

    decode_rows: tuple[int, ...]
    prompt_rows: tuple[int, ...]
    draws: int  # most answers that begin in one step

    @property
    def max_rows(self) -> int:
        """Rows of the largest launch."""
        return max(self.decode_rows[-1], self.prompt_rows[-1])

    @property
    def max_draws(self) -> int:
        """Most rows of a launch for which a token is drawn."""
        return max(self.decode_rows[-1], self.draws)

    def draws_of(self, prompt_rows: int) -> int:
        """Return how many prompts may end in a launch of so many rows."""
        return min(self.draws, max(LEAST_DRAWS, prompt_rows // ROWS_PER_DRAW))


class LaunchedStep:
    """The tokens of one step, once it has run."""

    def __init__(self, tokens: Tensor, event: torch.cuda.Event | None) -> None:
        self._tokens = tokens
        self._event = event

    def tokens(self) -> list[int]:
        """Wait for the step and return the head rows drawn, in the order of its rows; see `ops.sample`."""
        if self._event is not None:
            self._event.synchronize()
        drawn: list[int] = self._tokens.tolist()
        return drawn


class _Mirror:
    """A buffer on the device and its pinned twins on the host, used in turn."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self.device = torch.zeros(shape, dtype=dtype, device=device)
        is_cuda = device.type == "cuda"
        self._hosts = [torch.zeros(shape, dtype=dtype, pin_memory=is_cuda) for _ in range(STEPS_AT_ONCE)]
        self._views = [host.numpy() for host in self._hosts]
        self._turn = 0

    def next(self) -> tuple[Any, Tensor]:
        """Return the next host buffer, as array and as tensor."""
        self._turn = (self._turn + 1) % len(self._hosts)
        return self._views[self._turn], self._hosts[self._turn]


@dataclass
class _DecodeBucket:
    slots: _Mirror
    tokens: _Mirror
    launch: Callable[[], None]
    loaded: Ints | None = None  # what `slots` holds on the device


@dataclass
class _PromptBucket:
    rows: int
    draws: int
    ints: _Mirror
    numbers: _Mirror
    flags: _Mirror
    tokens: _Mirror
    launch: Callable[[], None]


class StepRunner:
    """Launches decode steps and prompt steps. Not thread-safe."""

    def __init__(self, decoder: SlotDecoder, sizes: RunnerSizes) -> None:
        """Take the decoder; `warm_up` must come before the first step."""
        self._decoder = decoder
        self.sizes = sizes
        self._device = decoder.weights.embedding.device
        self._spare = decoder.state.sizes.slots
        self._pool = graph_memory(self._device)
        self._stream = own_stream(self._device)
        self._decode: dict[int, _DecodeBucket] = {}
        self._prompt: dict[int, _PromptBucket] = {}

    @property
    def limits(self) -> RunnerLimits:
        """What one step may hold."""
        rows = self._decoder.weights.embedding.shape[0]
        return RunnerLimits(self.sizes.decode_rows[-1], self.sizes.prompt_rows[-1], self.sizes.draws, rows)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Compile and capture all graphs, the largest first, so that they share their memory."""
        for rows in reversed(self.sizes.prompt_rows):
            self._prompt[rows] = self._prompt_bucket(rows)
        for rows in reversed(self.sizes.decode_rows):
            self._decode[rows] = self._decode_bucket(rows)
        if self._stream is None:
            return
        buckets: list[_DecodeBucket | _PromptBucket] = [*self._prompt.values(), *self._decode.values()]
        with compiling_side_by_side():
            for bucket in buckets:
                warm_up(bucket.launch, self._stream)
        self._stream.synchronize()
        for bucket in buckets:
            bucket.launch = capture(bucket.launch, self._pool, self._stream).replay
        torch.cuda.synchronize(self._device)
        logger.info("captured %d graphs: decode rows %s, prompt rows %s", len(buckets), *_bounds(self.sizes))

    @torch.inference_mode()
    def decode(self, slots: Ints) -> LaunchedStep:
        """Advance slots by a token each; at most the largest decode bucket."""
        rows = self.sizes.decode_rows
        bucket = self._decode[rows[bisect_left(rows, len(slots))]]
        with torch.cuda.stream(self._stream):
            if bucket.loaded is None or not np.array_equal(bucket.loaded, slots):
                view, host = bucket.slots.next()
                view[: len(slots)] = slots
                view[len(slots) :] = self._spare
                bucket.slots.device.copy_(host, non_blocking=True)
                bucket.loaded = slots.copy()
            bucket.launch()
            return self._launched(bucket.tokens, len(slots))

    @torch.inference_mode()
    def prompt(self, pieces: Sequence[PromptPiece]) -> LaunchedStep:
        """Run pieces of prompts; the step has a token for each piece that ends its prompt, in their order.

        Args:
            pieces: no more rows than the largest prompt bucket, no more ends than its draws.
        """
        bucket = self._prompt[self._prompt_rows(pieces)]
        ends = self._fill(bucket, pieces)
        with torch.cuda.stream(self._stream):
            bucket.launch()
            return self._launched(bucket.tokens, ends)

    def _prompt_rows(self, pieces: Sequence[PromptPiece]) -> int:
        rows = sum(len(piece.token_ids) for piece in pieces)
        ends = sum(piece.ends or piece.start is not None for piece in pieces)
        fitting = [size for size in self.sizes.prompt_rows if size >= rows and self.sizes.draws_of(size) >= ends]
        return fitting[0]

    def _fill(self, bucket: _PromptBucket, pieces: Sequence[PromptPiece]) -> int:
        ints, host = bucket.ints.next()
        fields = _IntFields(ints, self._int_shapes(bucket.rows, bucket.draws))
        fields.reset(self._spare)
        row = ends = 0
        for piece in pieces:
            size = len(piece.token_ids)
            at = slice(row, row + size)
            fields.tokens[at], fields.slots[at] = piece.token_ids, piece.slot
            fields.positions[at] = np.arange(piece.first_position, piece.first_position + size)
            row += size
            if piece.ends:
                fields.drawn_slots[ends], fields.drawn_rows[ends] = piece.slot, row - 1
                ends += 1
        starts = [piece.start for piece in pieces if piece.start is not None]
        with torch.cuda.stream(self._stream):
            self._fill_starts(bucket, fields, starts)
            bucket.ints.device.copy_(host, non_blocking=True)
        return ends

    def _fill_starts(self, bucket: _PromptBucket, fields: _IntFields, starts: Sequence[AnswerStart]) -> None:
        count = len(starts)
        fields.count[0] = count
        if not count:
            return
        numbers, numbers_host = bucket.numbers.next()
        flags, flags_host = bucket.flags.next()
        for index, start in enumerate(starts):
            fields.words[index] = start_words(start, self._decoder.state.sizes.recent)
            fields.pages[index, : len(start.pages)] = start.pages
            numbers[index] = start.temperature, start.top_p, start.min_p, start.penalty
            flags[index] = start.flags
        bucket.numbers.device[:count].copy_(numbers_host[:count], non_blocking=True)
        bucket.flags.device[:count].copy_(flags_host[:count], non_blocking=True)

    def _launched(self, tokens: _Mirror, count: int) -> LaunchedStep:
        _, host = tokens.next()
        host.copy_(tokens.device, non_blocking=True)
        event = None
        if self._stream is not None:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
        return LaunchedStep(host[:count], event)

    def _decode_bucket(self, rows: int) -> _DecodeBucket:
        slots = _Mirror((rows,), torch.int32, self._device)
        slots.device.fill_(self._spare)
        tokens = _Mirror((rows,), torch.int32, self._device)
        return _DecodeBucket(slots, tokens, lambda: self._decoder.decode(slots.device, tokens.device))

    def _prompt_bucket(self, rows: int) -> _PromptBucket:
        draws = self.sizes.draws_of(rows)
        shapes = self._int_shapes(rows, draws)
        ints = _Mirror((sum(map(math.prod, shapes)),), torch.int32, self._device)
        numbers = _Mirror((draws, NUMBERS), torch.float32, self._device)
        flags = _Mirror((draws, self._decoder.state.sizes.rows), torch.int8, self._device)
        tokens = _Mirror((draws,), torch.int32, self._device)
        on_device = _IntFields(ints.device, shapes)
        on_device.reset(self._spare)
        begin = BeginInputs(on_device.count, on_device.words, numbers.device, on_device.pages, flags.device)
        inputs = PromptInputs(
            *(on_device.tokens, on_device.slots, on_device.positions, on_device.drawn_slots, on_device.drawn_rows),
            begin,
        )
        return _PromptBucket(
            rows, draws, ints, numbers, flags, tokens, lambda: self._decoder.prompt(inputs, tokens.device)
        )

    def _int_shapes(self, rows: int, draws: int) -> list[tuple[int, ...]]:
        state = self._decoder.state.sizes
        per_draw = ((draws, state.words), (draws, state.pages_per_slot))
        return [(4,), (rows,), (rows,), (rows,), (draws,), (draws,), *per_draw]


class _IntFields:
    """The integer inputs of a prompt step, as parts of one flat buffer that is copied at once, an array or a tensor."""

    def __init__(self, buffer: Any, shapes: Sequence[tuple[int, ...]]) -> None:
        parts, begin = [], 0
        for shape in shapes:
            parts.append(buffer[begin : begin + math.prod(shape)].reshape(shape))
            begin += math.prod(shape)
        self.count, self.tokens, self.slots, self.positions, self.drawn_slots, self.drawn_rows = parts[:6]
        self.words, self.pages = parts[6:]

    def reset(self, spare_slot: int) -> None:
        """Leave nothing to do."""
        for part in (self.count, self.tokens, self.positions, self.drawn_rows, self.words, self.pages):
            part[...] = 0
        self.slots[...] = spare_slot
        self.drawn_slots[...] = spare_slot


def _bounds(sizes: RunnerSizes) -> tuple[str, str]:
    return f"1..{sizes.decode_rows[-1]}", f"{sizes.prompt_rows[0]}..{sizes.prompt_rows[-1]}"
