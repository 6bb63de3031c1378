"""The modules that are exported: what they give is what is described, in every precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch

from tests.token2wav_service.export.checkpoints import TINY_FLOW, TINY_SIZES, make_stream_checkpoint
from token2wav_service import graphs
from token2wav_service.checkpoint.family import Family
from token2wav_service.checkpoint.loader import build_flow
from token2wav_service.export.compare import compare_graph
from token2wav_service.export.modules import MixedPrecision, Models, in_precision, module_for
from token2wav_service.export.onnx_file import sample_inputs
from token2wav_service.graphs import AxisRange, GraphSpec, Precision
from token2wav_service.models.flow.dit import DiT

LARGEST_HALVES = 6e4
"""A float16 each; their sum is none."""
EXPECTED_MORE = 12
"""Expected size of an axis beyond its smallest: few, as every axis multiplies the work."""


ALL_GRAPHS = [(family, name) for family in Family for name in graphs.GRAPHS]


@pytest.fixture(scope="module")
def models_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Family], Models]:
    """Each family's tiny checkpoint, made when it is asked for."""
    return cache(lambda family: Models(make_stream_checkpoint(tmp_path_factory.mktemp(family.value), family)))


@pytest.fixture(scope="module")
def models(models_of: Callable[[Family], Models]) -> Models:
    return models_of(Family.STEP_AUDIO2)


def spec_of(name: str, precision: Precision, family: Family = Family.STEP_AUDIO2) -> GraphSpec:
    spec = graphs.describe_graph(name, *TINY_SIZES[family], precision)
    small = {axis: AxisRange(r.min, min(r.opt, r.min + EXPECTED_MORE), r.max) for axis, r in spec.ranges.items()}
    return replace(spec, ranges=small)


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize(("family", "name"), ALL_GRAPHS)
def test_every_precision_stays_near_the_plain_model(
    models_of: Callable[[Family], Models], family: Family, name: str, precision: Precision
) -> None:
    assert compare_graph(None, spec_of(name, precision, family), models_of(family)).failures() == []


def test_what_the_time_makes_stays_in_float32_in_every_family() -> None:
    for family, kept in (
        (Family.STEP_AUDIO2, ("t_embedder.mlp.0", "blocks.0.adaLN_modulation.1")),
        (Family.COSYVOICE2, ("time_mlp.linear_1", "down_blocks.0.0.mlp.1")),
        (Family.COSYVOICE3, ("time_embed.time_mlp.0", "transformer_blocks.0.attn_norm.linear", "norm_out.linear")),
    ):
        estimator = in_precision(build_flow(TINY_SIZES[family][0]).decoder.estimator, Precision.FLOAT16)
        halves = {name for name, value in estimator.named_parameters() if value.dtype == torch.float16}
        assert not {f"{name}.weight" for name in kept} & halves
        assert any(name.endswith("to_q.weight") for name in halves)


def test_what_a_validity_input_rules_out_changes_nothing(models: Models) -> None:
    spec = spec_of(graphs.ESTIMATOR_CHUNK, Precision.FLOAT32)
    sizes = spec.sizes("opt")
    inputs = sample_inputs(spec, sizes, seed=0)
    changed = {
        name: torch.where(inputs[valid][None, :, None, :, None], inputs[name], 100.0)
        for name, valid in (("prompt_kv", "prompt_valid"), ("window_kv", "window_valid"))
    }
    assert not torch.equal(changed["window_kv"], inputs["window_kv"])
    module = module_for(spec, models)
    velocity, _, _ = module(*inputs.values())
    torch.testing.assert_close(module(*(inputs | changed).values())[0], velocity)


def test_a_residual_beyond_the_range_of_a_half_stays_finite() -> None:
    torch.manual_seed(0)
    plain = DiT(TINY_FLOW.estimator).eval()
    block = plain.blocks[0]
    alternating = LARGEST_HALVES * torch.tensor([1.0, -1.0]).repeat(TINY_FLOW.estimator.hidden_size // 2)
    with torch.no_grad():
        plain.in_proj.bias.copy_(alternating)
        block.attn.proj.bias.copy_(alternating)
        block.adaLN_modulation[1].bias.fill_(1.0)
    mel = torch.randn(2, 80, 6)
    inputs = (mel, mel, torch.randn(2, 80), mel, torch.rand(2), torch.ones(2, 1, 1, 6, dtype=torch.bool))
    lengths = torch.tensor([6, 6])
    kept = in_precision(plain, Precision.FLOAT16)
    with MixedPrecision(Precision.FLOAT16):
        velocity, _ = kept(*inputs, lengths)
    naive, _ = plain.half()(*(x.half() if x.is_floating_point() else x for x in inputs), lengths)
    assert velocity.isfinite().all()
    assert not naive.isfinite().all()


def test_attention_without_any_valid_key_stays_finite() -> None:
    q, nothing = torch.randn(1, 1, 2, 4), torch.zeros(1, 1, 1, 2, dtype=torch.bool)
    with MixedPrecision(Precision.FLOAT16):
        mixed = torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=nothing)
    assert mixed.isfinite().all()
    assert mixed.dtype is torch.float32
