"""The GPU kernels in the Triton language's interpreter: each computes what its operation says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from llm_service.embedded.sampling import TokenSampler
from llm_service.embedded.steps import BANNED, CLOSING, NO_TOKEN, NOT_FINITE, PAGE_TOKENS, SEEN, AnswerStart
from llm_service.gpu import ops
from llm_service.gpu.ops import MAX_PARTS, BeginInputs, CacheView, Parts, RotaryTables, Tile, parts_of
from llm_service.gpu.slot_state import SlotState, StateSizes, start_words
from llm_service.qwen2 import Qwen2Shape
from tests.triton_interpreter import make_the_interpreter_cheap

pytestmark = pytest.mark.slow
make_the_interpreter_cheap()

HIDDEN, HEADS, GROUPS, SIZE = 48, 6, 2, 16
QKV = (HEADS + 2 * GROUPS) * SIZE
SIZES = StateSizes(slots=3, pages=8, positions=200, rows=50, recent=16)
SPARE = SIZES.slots
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    torch.manual_seed(5)
    yield


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-5, atol=1e-5)


def test_the_norm_adds_the_parts_of_a_branch_in_place() -> None:
    hidden, weight = torch.randn(3, HIDDEN), torch.randn(HIDDEN)
    parts = torch.randn(4, 3, HIDDEN)
    expected = hidden + parts.sum(0)
    out = torch.full((3, HIDDEN), torch.nan)
    ops.add_norm(hidden, Parts(parts.flatten(), 4, 3 * HIDDEN), weight, 1e-6, out)
    assert close(hidden, expected)
    assert close(out, functional.rms_norm(expected, (HIDDEN,), weight, 1e-6))


@pytest.mark.parametrize(("channels", "parts"), [(48, 1), (896, 2), (4864, 4)])
def test_products_are_made_in_parts_by_the_shape_of_the_weight_alone(channels: int, parts: int) -> None:
    assert parts_of(channels) == parts
    a, weight, room = torch.randn(3, channels), torch.randn(20, channels), torch.full((MAX_PARTS * 60,), torch.nan)
    for bias in (None, torch.randn(20)):
        made = ops.product_parts(a, weight, room, bias)
        assert made.count == parts
        total = room[: parts * 60].view(parts, 3, 20).sum(0)
        assert torch.allclose(total, functional.linear(a, weight, bias), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("tile", [Tile(16, 16, 32, 4, 1), Tile(64, 32, 16, 4, 1)], ids=str)
def test_a_product_is_the_same_for_a_row_alone_and_among_others(tile: Tile) -> None:
    a, weight, bias = torch.randn(37, HIDDEN), torch.randn(50, HIDDEN), torch.randn(50)
    together, alone = torch.full((37, 50), torch.nan), torch.full((1, 50), torch.nan)
    ops.logits(a, weight, bias, together, tile)
    assert close(together, a @ weight.T + bias)
    for row in (0, 17, 36):
        ops.logits(a[row : row + 1], weight, bias, alone, tile)
        assert torch.equal(alone[0], together[row])


def test_silu_takes_gate_and_up_from_columns_in_turn() -> None:
    a, gate_up = torch.randn(3, HIDDEN), torch.randn(40, HIDDEN)
    out = torch.full((3, 20), torch.nan)
    ops.silu_product(a, gate_up, out)
    assert close(out, functional.silu(a @ gate_up[0::2].T) * (a @ gate_up[1::2].T))


def make_cache() -> tuple[Tensor, Tensor]:
    cache = torch.randn(9, 2, GROUPS, PAGE_TOKENS, SIZE)
    pages = torch.zeros(SIZES.slots + 1, SIZES.pages_per_slot, dtype=torch.int32)
    pages[0, :3], pages[1, :3], pages[2, :2] = ints(5, 2, 7), ints(1, 8, 3), ints(4, 6)
    return cache, pages


ROTARY = RotaryTables.make(Qwen2Shape(HEADS * SIZE, 1, 1, HEADS, GROUPS, 256), 256, CPU)


def make_view(cache: Tensor, pages: Tensor) -> CacheView:
    arrived = torch.zeros(ops.SPLIT_ROWS * GROUPS, dtype=torch.int32)
    return CacheView(cache, pages, torch.full((ops.SPLIT_ROWS, 3, 3, HEADS * SIZE), torch.nan), arrived)


@pytest.mark.parametrize("parts", [1, 2])
def test_attention_reads_pages_and_writes_its_own_key(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    slots, positions = ints(1, 0, SPARE, 2), ints(150, 63, 0, 64)
    qkv = torch.randn(parts, 4, QKV)
    (cache, pages), out = make_cache(), torch.full((4, HEADS * SIZE), torch.nan)
    before, view = cache.clone(), make_view(cache, pages)
    ops.attention(Parts(qkv.flatten(), parts, 4 * QKV), ROTARY, view, slots, positions, out, True)
    heads = qkv.sum(0).view(4, -1, SIZE)
    for row, (slot, position) in enumerate(zip(slots.tolist(), positions.tolist(), strict=True)):
        turned = heads[row] * ROTARY.cosines[position] + heads[row].roll(SIZE // 2, -1) * ROTARY.sines[position]
        page, place = int(pages[slot, position // PAGE_TOKENS]), position % PAGE_TOKENS
        before[page, 0, :, place] = turned[HEADS : HEADS + GROUPS]
        before[page, 1, :, place] = heads[row, HEADS + GROUPS :]
        held = before[pages[slot].long()].permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, : position + 1]
        keys, values = held.repeat_interleave(HEADS // GROUPS, 1)
        expected = functional.scaled_dot_product_attention(turned[:HEADS, None], keys, values)
        assert close(out[row], expected.flatten())
    assert close(cache, before)
    assert not view.arrived.any()
    whole = torch.full((4, HEADS * SIZE), torch.nan)
    monkeypatch.setattr(ops, "SPLIT_ROWS", 0)
    ops.attention(Parts(qkv.flatten(), parts, 4 * QKV), ROTARY, view, slots, positions, whole, True)
    assert torch.equal(whole, out)


def make_start(slot: int, **settings: Any) -> AnswerStart:
    flags = np.zeros(SIZES.rows, np.int8)
    flags[3:6], flags[7], flags[8] = SEEN, BANNED, CLOSING
    plain: dict[str, Any] = {"seed": -12345678901234567, "prompt_tokens": 33, "drawn": 0, "min_tokens": 0, "window": 0}
    plain |= {"repeat_limit": 0, "top_k": 0, "temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "penalty": 1.0}
    return AnswerStart(slot=slot, **plain | settings, recent_rows=(), pages=(5, 2), flags=flags)


def begun(*starts: AnswerStart) -> SlotState:
    """Begin answers in the slots of a new state; entries behind them are left alone."""
    state, entries = SlotState(SIZES, CPU), len(starts) + 1
    words, numbers = torch.full((entries, SIZES.words), 1, dtype=torch.int32), torch.rand(entries, 4)
    pages = torch.zeros(entries, SIZES.pages_per_slot, dtype=torch.int32)
    flags = torch.randint(0, 8, (entries, SIZES.rows), dtype=torch.int8)
    for entry, start in enumerate(starts):
        words[entry] = torch.from_numpy(start_words(start, SIZES.recent))
        numbers[entry] = torch.tensor([start.temperature, start.top_p, start.min_p, start.penalty])
        pages[entry, : len(start.pages)] = ints(*start.pages)
        flags[entry] = torch.from_numpy(start.flags)
    ops.begin_answers(BeginInputs(ints(len(starts), 0, 0, 0), words, numbers, pages, flags), state)
    return state


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="greedy"),
        pytest.param({"penalty": 1.7, "min_tokens": 3}, id="penalty"),
        pytest.param({"window": 10, "repeat_limit": 1}, id="guarded"),
        pytest.param({"window": 4, "repeat_limit": 2, "min_tokens": 3}, id="guarded twice"),
    ],
)
def test_where_nothing_is_random_the_sampler_draws_what_the_one_of_plain_torch_draws(settings: dict[str, Any]) -> None:
    """Over some steps, so that what it remembers counts too; the spare slot is left alone."""
    starts = [make_start(slot, temperature=0.0, **settings) for slot in (2, 0)]
    state, samplers = begun(*starts), [TokenSampler(start) for start in starts]
    for step in range(6):
        scores = 2 * torch.randn(3, SIZES.rows)
        out = torch.full((3,), 99, dtype=torch.int32)
        ops.sample(scores, ints(2, SPARE, 0), None, ints(9 + step, 0, 30 + step), out, state, 1000)
        expected = [sampler.sample(scores[row].numpy()) for sampler, row in zip(samplers, (0, 2), strict=True)]
        assert out.tolist() == [expected[0], 99, expected[1]]
        assert state.last_token.tolist() == [expected[1] + 1000, 0, expected[0] + 1000, 0]
    assert state.next_position.tolist() == [36, 0, 15, 0] and state.drawn.tolist() == [6, 0, 6, 0]


def test_scores_that_can_not_be_drawn_from_are_told() -> None:
    state, out = begun(make_start(0), make_start(1)), torch.zeros(2, dtype=torch.int32)
    state.flags[0] = BANNED
    scores = torch.zeros(2, SIZES.rows)
    scores[1, 3] = torch.nan
    ops.sample(scores, ints(0, 1), None, ints(0, 0), out, state, 0)
    assert out.tolist() == [NO_TOKEN, NOT_FINITE]


@pytest.mark.parametrize(
    ("narrow", "expected"),
    [
        pytest.param({}, {20, 30, 40}, id="wide"),
        pytest.param({"top_k": 2}, {20, 30}, id="top_k"),
        pytest.param({"top_p": 0.55}, {20, 30}, id="top_p"),
        pytest.param({"min_p": 0.5}, {20, 30}, id="min_p"),
        pytest.param({"top_p": 1e-6}, {20}, id="tiny top_p"),
        pytest.param({"temperature": 1e-4}, {20}, id="cold"),
    ],
)
@pytest.mark.parametrize("is_kernel", [True, False], ids=["kernel", "plain torch"])
def test_draws_follow_the_probabilities_within_the_nucleus(
    narrow: dict[str, float], expected: set[int], is_kernel: bool
) -> None:
    start = make_start(0, **narrow)
    state, sampler, out = begun(start), TokenSampler(start), torch.zeros(1, dtype=torch.int32)
    scores = torch.full((1, SIZES.rows), -30.0)
    for row, share in ((20, 0.5), (30, 0.35), (40, 0.15)):
        scores[0, row] = np.log(share)
    counts = np.zeros(SIZES.rows)
    for _ in range(15 if narrow else 60):
        if is_kernel:
            ops.sample(scores, ints(0), None, ints(0), out, state, 0)
        counts[int(out[0]) if is_kernel else sampler.sample(scores[0].numpy())] += 1
    assert set(np.flatnonzero(counts)) == expected
    if not narrow:
        assert counts[[20, 30, 40]] / 60 == pytest.approx([0.5, 0.35, 0.15], abs=0.2)


def test_embeddings_come_from_prompts_or_from_the_latest_tokens() -> None:
    table, latest, places = torch.randn(30, HIDDEN), ints(3, 4, 5, 0), ints(10, 11, 12, 0)
    for tokens, expected, at in ((None, [5, 3], [12, 10]), (ints(29, 0), [29, 0], [0, 0])):
        out, positions = torch.empty(2, HIDDEN), ints(0, 0)
        ops.embed(ints(2, 0), tokens, positions, latest, places, table, out)
        assert torch.equal(out, table[expected]) and positions.tolist() == at
