"""The GPU kernels in the Triton language's interpreter, against the same operations in plain torch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from llm_service.gpu import ops, plain_ops
from llm_service.gpu.ops import MAX_PARTS, BeginInputs, CacheView, Parts, RotaryTables, Tile, parts_of, tile_for
from llm_service.gpu.slot_state import BANNED, CLOSING, PAGE_TOKENS, SEEN, SlotState, StateSizes
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
    plain = torch.empty(3, HIDDEN)
    plain_ops.add_norm(expected, None, weight, 1e-6, plain)
    assert close(out, plain)


def test_picked_rows_are_normed_and_the_stream_stays() -> None:
    hidden, weight, branch = torch.randn(5, HIDDEN), torch.randn(HIDDEN), torch.randn(5 * HIDDEN)
    before = hidden.clone()
    outs = [torch.full((2, HIDDEN), torch.nan) for _ in range(2)]
    for module, out in zip((ops, plain_ops), outs, strict=True):
        module.add_norm(hidden, Parts(branch, 1, 5 * HIDDEN), weight, 1e-6, out, ints(4, 1))
    assert close(*outs) and torch.equal(hidden, before)


@pytest.mark.parametrize(("channels", "parts"), [(48, 1), (896, 2), (4864, 4)])
def test_products_are_made_in_parts_by_the_shape_of_the_weight_alone(channels: int, parts: int) -> None:
    assert parts_of(channels) == parts
    a, weight, room = torch.randn(3, channels), torch.randn(20, channels), torch.full((MAX_PARTS * 60,), torch.nan)
    made = ops.product_parts(a, weight, room)
    assert made.count == parts
    total = room[: parts * 60].view(parts, 3, 20).sum(0)
    assert torch.allclose(total, a @ weight.T, rtol=1e-4, atol=1e-3)


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
    outs = [torch.full((3, 20), torch.nan) for _ in range(2)]
    for module, out in zip((ops, plain_ops), outs, strict=True):
        module.silu_product(a, gate_up, out)
    assert close(*outs)


def test_every_number_of_rows_has_a_tile() -> None:
    for rows in (1, 64, 65, 512, 2048):
        assert all(tile_for(rows, *shape).rows >= 16 for shape in ((896, 896), (9728, 896), (896, 4864)))


def make_cache() -> tuple[Tensor, Tensor]:
    cache = torch.randn(9, 2, GROUPS, PAGE_TOKENS, SIZE)
    pages = torch.zeros(SIZES.slots + 1, SIZES.pages_per_slot, dtype=torch.int32)
    pages[0, :3], pages[1, :3], pages[2, :2] = ints(5, 2, 7), ints(1, 8, 3), ints(4, 6)
    return cache, pages


ROTARY = RotaryTables.make(Qwen2Shape(HEADS * SIZE, 1, 1, HEADS, GROUPS, 256), 256, CPU)


@pytest.mark.parametrize("parts", [1, 2])
def test_attention_reads_pages_and_writes_its_own_key(parts: int) -> None:
    slots, positions = ints(1, 0, SPARE, 2), ints(150, 63, 0, 64)
    qkv, bias = torch.randn(parts, 4, QKV), torch.randn(QKV)
    whole = Parts(qkv.sum(0).flatten(), 1, 4 * QKV)
    (cache, pages), outs = make_cache(), [torch.full((4, HEADS * SIZE), torch.nan) for _ in range(2)]
    other = cache.clone()
    ops.attention(
        Parts(qkv.flatten(), parts, 4 * QKV),
        bias,
        ROTARY,
        CacheView(cache, pages),
        slots,
        positions,
        outs[0],
        HEADS,
        True,
    )
    plain_ops.attention(whole, bias, ROTARY, CacheView(other, pages), slots, positions, outs[1], HEADS, True)
    assert close(cache, other) and close(*outs)


def test_a_prompt_row_attends_as_the_same_token_of_an_answer_does() -> None:
    slots, positions = ints(1, 1, 1), ints(62, 63, 64)
    qkv, bias = torch.randn(3 * QKV), torch.randn(QKV)
    cache, pages = make_cache()
    other = cache.clone()
    prompt, answer = torch.empty(3, HEADS * SIZE), torch.empty(3, HEADS * SIZE)
    view = CacheView(cache, pages)
    ops.write_cache(Parts(qkv, 1, 0), bias, ROTARY, view, slots, positions, HEADS)
    ops.attention(Parts(qkv, 1, 0), bias, ROTARY, view, slots, positions, prompt, HEADS, False)
    for row in range(3):
        at = slice(row, row + 1)
        one = Parts(qkv[row * QKV : (row + 1) * QKV].clone(), 1, 0)
        ops.attention(one, bias, ROTARY, CacheView(other, pages), slots[at], positions[at], answer[at], HEADS, True)
    assert torch.equal(prompt, answer) and torch.equal(cache, other)


def make_state(**settings: float) -> SlotState:
    state = SlotState(SIZES, CPU)
    state.recent.fill_(-1)
    state.seed.copy_(torch.tensor([11, -12345678901234567, (1 << 62) + 5, 0]))
    for name, value in settings.items():
        getattr(state, name).fill_(value)
    return state


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="plain"),
        pytest.param({"temperature": 0.0}, id="greedy"),
        pytest.param({"temperature": 0.7, "top_k": 5, "top_p": 0.8}, id="top_k-top_p"),
        pytest.param({"min_p": 0.3, "penalty": 1.7}, id="min_p-penalty"),
        pytest.param({"window": 10, "repeat_limit": 1, "top_k": 3}, id="guarded"),
        pytest.param({"window": 10, "repeat_limit": 1, "temperature": 0.0, "min_tokens": 3}, id="greedy-guarded"),
    ],
)
def test_the_sampler_draws_what_the_plain_one_draws(settings: dict[str, float]) -> None:
    """Over some steps, so that what it remembers counts too."""
    states = [make_state(**settings) for _ in range(2)]
    flags = torch.zeros(SIZES.rows, dtype=torch.int8)
    flags[3:6], flags[7], flags[8] = SEEN, BANNED, CLOSING
    slots, positions = ints(2, SPARE, 0), ints(9, 0, 30)
    for state in states:
        state.flags[:] = flags
    for _ in range(6):
        scores = 2 * torch.randn(3, SIZES.rows)
        outs = [torch.full((3,), 99, dtype=torch.int32) for _ in range(2)]
        for module, state, out in zip((ops, plain_ops), states, outs, strict=True):
            module.sample(scores, slots, None, positions, out, state, 1000)
        assert torch.equal(*outs) and outs[0][1] == 99
    for name in ("drawn", "next_position", "last_token", "recent", "flags"):
        assert torch.equal(getattr(states[0], name), getattr(states[1], name)), name
    assert states[0].next_position.tolist() == [31, 0, 10, 0] and states[0].drawn.tolist() == [6, 0, 6, 0]


def test_scores_that_can_not_be_drawn_from_are_told() -> None:
    for module in (ops, plain_ops):
        state, out = make_state(), torch.zeros(2, dtype=torch.int32)
        state.flags[0] = BANNED
        scores = torch.zeros(2, SIZES.rows)
        scores[1, 3] = torch.nan
        module.sample(scores, ints(0, 1), None, ints(0, 0), out, state, 0)
        assert out.tolist() == [plain_ops.NO_TOKEN, plain_ops.NOT_FINITE]


def test_draws_follow_the_probabilities() -> None:
    state, out = make_state(), torch.zeros(1, dtype=torch.int32)
    scores = torch.full((1, SIZES.rows), -30.0)
    scores[0, 7], scores[0, 40] = 1.0, 0.0
    counts = np.zeros(SIZES.rows)
    for _ in range(2000):
        plain_ops.sample(scores, ints(0), None, ints(0), out, state, 0)
        counts[int(out[0])] += 1
    assert abs(counts[7] / 2000 - 0.731) < 0.04 and counts[7] + counts[40] == 2000


def test_an_answer_begins_with_its_settings_pages_and_flags() -> None:
    words = torch.zeros(2, SIZES.words, dtype=torch.int32)
    words[0, :9] = ints(2, -5, 7, 33, 4, 6, 10, 2, 50)
    words[0, 16:] = torch.arange(16)
    pages = torch.arange(2 * SIZES.pages_per_slot, dtype=torch.int32).view(2, -1)
    flags = torch.randint(0, 8, (2, SIZES.rows), dtype=torch.int8)
    inputs = BeginInputs(ints(1, 0, 0, 0), words, torch.rand(2, 4), pages, flags)
    states = [make_state() for _ in range(2)]
    for module, state in zip((ops, plain_ops), states, strict=True):
        module.begin_answers(inputs, state)
    for one, other in zip(states[0].sampling(), states[1].sampling(), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(states[0].pages, states[1].pages)
    assert int(states[0].seed[2]) == (7 << 32) + (1 << 32) - 5


def test_embeddings_come_from_prompts_or_from_the_latest_tokens() -> None:
    table = torch.randn(30, HIDDEN)
    latest, places = ints(3, 4, 5, 0), ints(10, 11, 12, 0)
    for tokens in (None, ints(29, 0)):
        outs, all_positions = [torch.empty(2, HIDDEN) for _ in range(2)], [ints(0, 0), ints(0, 0)]
        for module, out, positions in zip((ops, plain_ops), outs, all_positions, strict=True):
            module.embed(ints(2, 0), tokens, positions, latest, places, table, out)
        assert torch.equal(*outs) and torch.equal(*all_positions)
        assert all_positions[0].tolist() == ([12, 10] if tokens is None else [0, 0])
