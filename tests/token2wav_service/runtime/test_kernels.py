"""The fused kernels against plain tensor code."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from tests.token2wav_service.streaming.family_factory import normal
from tests.token2wav_service.streaming.flow_factory import randomise
from tests.triton_compiler import ARCHITECTURES, compiled_kernels
from token2wav_service.models.config import DiTConfig
from token2wav_service.models.flow.cfm import ConditionalFlowMatching, SolverHistory
from token2wav_service.models.flow.dit import DiT
from token2wav_service.models.noise import NoiseDomain, counter_normal, counter_uniform
from token2wav_service.runtime.kernels import ops, product_ops
from token2wav_service.runtime.kernels.attention_ops import KeyPlaces, Pieces
from token2wav_service.runtime.kernels.product_ops import FEW_ROWS
from token2wav_service.runtime.slots.chunk_solver import SolverPool
from token2wav_service.runtime.slots.dit_solver import DiTSolver

STEPS, LAYERS, HEADS, HIDDEN, WINDOW = 2, 2, 2, 48, 10


def test_noise_equals_the_counter_based_noise() -> None:
    seeds, starts = torch.tensor([5, 2**40 + 3]), torch.tensor([7, 2**33 + 1])
    for width, domain in ((80, NoiseDomain.FLOW), (45, NoiseDomain.SOURCE)):
        got = ops.counter_noise(seeds, starts, 2, width, int(domain))
        torch.testing.assert_close(got, counter_normal(seeds, starts, 2, width, domain), atol=1e-5, rtol=0)
        assert torch.equal(
            ops.counter_uniform(seeds, starts, 2, width, int(domain)),
            counter_uniform(seeds, starts, 2, width, domain),
        )


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "few_rows"), [(16, FEW_ROWS), (24, FEW_ROWS), (24, 0)])
def test_fused_solver_equals_the_plain_one_for_every_row_and_fills_the_rings(dim: int, few_rows: int) -> None:
    cfm = ConditionalFlowMatching(
        DiT(DiTConfig(depth=LAYERS, num_heads=HEADS, head_dim=dim, hidden_size=HIDDEN)), guidance=0.7
    )
    randomise(cfm, 0)
    slots, generated, lengths = torch.tensor([2, 0, 4]), torch.tensor([0, 4, 25]), torch.tensor([5, 1, 3])
    pool = SolverPool(
        normal(5, STEPS, LAYERS, 2, HEADS, WINDOW, 2 * dim), normal(5, STEPS, LAYERS, 2, 2, 2, HIDDEN, seed=1)
    )
    prompts = [normal(STEPS, LAYERS, 2, HEADS, n, 2 * dim, seed=n) for n in (6, 9, 7)]
    noise, mu, speaker = normal(3, 5, 80, seed=2), normal(3, 5, 80, seed=3), normal(3, 80, seed=4)
    places = KeyPlaces(
        slots, torch.tensor([p.data_ptr() for p in prompts]), torch.tensor([6, 9, 7]), generated, lengths
    )
    solver = DiTSolver(cfm, STEPS, torch.float32)
    assert solver.few_rows == FEW_ROWS
    solver.few_rows = few_rows
    mel, own, tails = solver.compute(noise, mu, speaker, None, places, pool)
    for row in range(3):
        size, slot = int(lengths[row]), int(slots[row])
        ring = pool.window[slot][..., : min(int(generated[row]), WINDOW), :]
        history = SolverHistory(
            torch.cat([prompts[row], ring], 4).unsqueeze(3), _upstream_tails(pool.tails[slot]).unsqueeze(3)
        )
        mask = torch.ones(1, 1, 1, history.kv.shape[5] + size, dtype=torch.bool)
        one = slice(row, row + 1)
        expected, update = cfm(
            noise[one, :size].transpose(1, 2), mu[one, :size].transpose(1, 2), speaker[one],
            torch.zeros(1, 80, size), mask, lengths[one], STEPS, history,
        )  # fmt: skip
        torch.testing.assert_close(mel[row, :size], expected[0].T, atol=1e-4, rtol=0)
        torch.testing.assert_close(own[row][..., :size, :], update.kv[:, :, :, 0], atol=1e-4, rtol=0)
        torch.testing.assert_close(_upstream_tails(tails[row]), update.tail[:, :, :, 0], atol=1e-4, rtol=0)
    ops.commit_window(own, pool.window, slots, generated, lengths)
    for row in range(3):
        for frame in range(int(lengths[row])):
            place = (int(generated[row]) + frame) % WINDOW
            assert torch.equal(pool.window[slots[row]][..., place, :], own[row][..., frame, :])


@pytest.mark.parametrize("channels", [40, 512, 1536])
def test_products_of_few_rows_equal_the_library_s(channels: int) -> None:
    x, weight, bias = normal(5, channels), normal(20, channels, seed=1), normal(20, seed=2)
    expected = functional.linear(x, weight, bias)
    parts = product_ops.linear_in_parts(x, weight, bias, is_few=True)
    assert parts.shape == (product_ops.parts_of(channels), 5, 20)
    torch.testing.assert_close(parts.sum(0), expected, atol=1e-3, rtol=0)
    if len(parts) == 1:
        torch.testing.assert_close(product_ops.linear(x, weight, bias, is_few=True), expected, atol=1e-3, rtol=0)
        for form in ("tanh", "none"):
            activated = product_ops.linear_gelu(x, weight, bias, is_few=True, is_exact=form == "none")
            torch.testing.assert_close(activated, functional.gelu(expected, approximate=form), atol=1e-3, rtol=0)
        strided = functional.pad(x, (3, 0))[:, 3:]
        torch.testing.assert_close(product_ops.linear(strided, weight, bias, is_few=True), expected, atol=1e-3, rtol=0)


def test_pieces_of_attention_are_weighed_and_multiplied_and_a_piece_without_keys_is_left_out() -> None:
    rows, heads, dim = 5, 3, 24
    means, masses = normal(2, rows, heads * dim), normal(2, rows, heads, seed=1)
    masses[1, 2] = float("-inf")
    weight, bias = normal(20, heads * dim, seed=2), normal(20, seed=3)
    shares = (masses * math.log(2)).softmax(0)
    mixed = (shares[..., None] * means.view(2, rows, heads, dim)).sum(0).flatten(1)
    parts = product_ops.linear_of_attention(Pieces(means, masses), means[0], weight, bias, is_few=True)
    torch.testing.assert_close(parts.sum(0), functional.linear(mixed, weight, bias), atol=1e-4, rtol=0)


def test_sums_that_can_t_be_cut_into_equal_parts_are_left_to_the_library() -> None:
    assert [product_ops.parts_of(channels) for channels in (512, 513, 514, 1536, 2048)] == [1, 0, 2, 3, 4]
    cfm = ConditionalFlowMatching(DiT(DiTConfig(depth=1, num_heads=1, head_dim=16, hidden_size=1024)), guidance=0.7)
    assert DiTSolver(cfm, STEPS, torch.float32).few_rows == 0


@pytest.mark.parametrize(
    ("dtype", "overlaps", "shared", "expected"),
    [
        pytest.param(torch.float16, True, 232_448, True, id="H100"),
        pytest.param(torch.bfloat16, True, 232_448, True, id="H100, bfloat16"),
        pytest.param(torch.float32, True, 232_448, False, id="tiles of float32 are too large"),
        pytest.param(torch.float16, False, 166_912, False, id="A100"),
        pytest.param(torch.float16, True, 101_376, False, id="a newer GPU with little shared memory"),
    ],
)
def test_few_rows_have_kernels_of_their_own_where_the_gpu_has_what_they_need(
    dtype: torch.dtype, overlaps: bool, shared: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(product_ops, "starts_early", lambda: overlaps)
    monkeypatch.setattr(product_ops, "_shared_bytes", lambda _: shared)
    assert product_ops.suits(torch.device("cuda"), dtype) is expected


def _upstream_tails(tails: torch.Tensor) -> torch.Tensor:
    """[n, L, convolution, cfg, column, C] as [n, L, cfg, 2C, column]."""
    return tails.permute(0, 1, 3, 2, 5, 4).reshape(STEPS, LAYERS, 2, 2 * HIDDEN, 2)


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_kernel_compiles_for_a_gpu_at_the_demo_voice_s_sizes(architecture: str, tmp_path: Path) -> None:
    compiled = compiled_kernels("tests.token2wav_service.runtime.compile_kernels", architecture, cache=tmp_path)
    some = {"attend_kernel", "commit_rows_kernel", "combine_kernel", "product_kernel", "mixed_product_kernel"}
    assert some <= compiled
