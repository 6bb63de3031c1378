"""SmoothQuant: smoothing changes nothing, quantising little, and the engine's formula gives the product back."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn import functional

from llm_service.errors import ConfigError
from llm_service.export.calibration import measure_ranges, prompts_of
from llm_service.export.layer import LayerWeights, layer_weights
from llm_service.export.smooth_quant import (
    LayerRanges,
    MatrixRange,
    QuantisedMatrix,
    SmoothedLayer,
    smooth_layer,
)
from llm_service.export.source import SpeechLMSource
from llm_service.export.trtllm_options import SmoothQuant, TrtllmOptions
from llm_service.vocab import SOS_ID, TASK_ID
from tests.llm_service.export.ranks import WIDE, Tensors, all_ranks, whole_layer, wide_source

MODES = [SmoothQuant(0.5, channel, token) for channel in (False, True) for token in (False, True)]
OUTLIER = 40.0  # times the other channels' activations


@pytest.fixture(scope="module")
def wide() -> SpeechLMSource:
    """A model in memory."""
    return wide_source(seed=4)


def activations(size: int, seed: int) -> torch.Tensor:
    inputs = torch.randn(32, size, generator=torch.Generator().manual_seed(seed))
    inputs[:, 5] *= OUTLIER
    return inputs


def ranges_of(weights: LayerWeights) -> LayerRanges:
    def seen(weight: torch.Tensor, seed: int) -> MatrixRange:
        inputs = activations(weight.shape[1], seed)
        return MatrixRange(inputs.abs().amax(dim=0), float((inputs @ weight.T).abs().max()))

    return LayerRanges(
        qkv=seen(weights.qkv, 1),
        dense=seen(weights.dense, 2),
        fc=seen(weights.fc, 3),
        gate=seen(weights.gate, 3),
        proj=seen(weights.proj, 4),
    )


def smoothed_layers(source: SpeechLMSource, mode: SmoothQuant) -> list[SmoothedLayer]:
    weights = [layer_weights(source.decoder, index) for index in range(source.shape.layers)]
    return [smooth_layer(layer, ranges_of(layer), mode, source.shape) for layer in weights]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_smoothing_moves_factors_without_changing_products(wide: SpeechLMSource, mode: SmoothQuant) -> None:
    weights = layer_weights(wide.decoder, 0)
    layer = smoothed_layers(wide, mode)[0]

    def matrix(quantised: QuantisedMatrix, factors: torch.Tensor) -> torch.Tensor:
        return quantised.integers.float() * quantised.scale[:, None] / factors

    pairs = [
        (layer.qkv, weights.qkv, weights.input_norm / layer.input_norm),
        (layer.fc, weights.fc, weights.post_norm / layer.post_norm),
        (layer.gate, weights.gate, weights.post_norm / layer.post_norm),
        (layer.dense, weights.dense, layer.dense_smoother),
        (layer.proj, weights.proj, layer.proj_smoother),
    ]
    for quantised, original, factors in pairs:
        error = (matrix(quantised, factors) - original).abs() * factors
        assert (error <= 0.501 * quantised.scale[:, None]).all()


def test_smoothing_halves_the_outliers_weight_in_the_range(wide: SpeechLMSource) -> None:
    ranges = ranges_of(layer_weights(wide.decoder, 0))
    before = ranges.qkv.input_max.max() / ranges.qkv.input_max.median()
    smoothed = (
        ranges.qkv.input_max
        * smoothed_layers(wide, SmoothQuant(0.5))[0].input_norm
        / wide.decoder["layers.0.input_layernorm.weight"]
    )
    assert smoothed.max() / smoothed.median() < before / 4


@pytest.mark.parametrize("tp_size", [1, 2])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_the_engines_formula_gives_the_product_back(wide: SpeechLMSource, mode: SmoothQuant, tp_size: int) -> None:
    options = TrtllmOptions("float32", tp_size, smooth_quant=mode)
    stages = all_ranks(wide, options, smoothed_layers(wide, mode))
    layer, weights = whole_layer(stages, 1, WIDE), layer_weights(wide.decoder, 1)
    pairs = {
        "attention.qkv": (weights.qkv, 1, layer["input_layernorm.weight"] / weights.input_norm),
        "mlp.fc": (weights.fc, 3, layer["post_layernorm.weight"] / weights.post_norm),
        "mlp.gate": (weights.gate, 3, layer["post_layernorm.weight"] / weights.post_norm),
        "attention.dense": (weights.dense, 2, 1 / layer["attention.dense.smoother"][0]),
        "mlp.proj": (weights.proj, 4, 1 / layer["mlp.proj.smoother"][0]),
    }
    for name, (weight, seed, factors) in pairs.items():
        inputs = activations(weight.shape[1], seed)
        expected = inputs @ weight.T
        got = engine_product(layer, name, inputs * factors, mode)
        assert float((got - expected).norm() / expected.norm()) < 0.03, name


def engine_product(layer: Tensors, name: str, inputs: torch.Tensor, mode: SmoothQuant) -> torch.Tensor:
    """Compute as the engine does: 8-bit integers, an exact sum, then the scales of the checkpoint."""
    if mode.per_token:
        token_scale = inputs.abs().amax(dim=1, keepdim=True) / 127
        scaled = inputs / token_scale
    else:
        where = {
            "attention.qkv": "input_layernorm.scale_to_int",
            "attention.dense": "attention.quantization_scaling_factor",
            "mlp.proj": "mlp.quantization_scaling_factor",
        }.get(name, "post_layernorm.scale_to_int")
        token_scale, scaled = layer[f"{name}.act_scale"], inputs * layer[where]
    sums = scaled.round().clamp(-128, 127) @ layer[f"{name}.weight"].float().T
    return sums * token_scale * layer[f"{name}.per_channel_scale"]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_names_shapes_and_types_are_the_engines(wide: SpeechLMSource, mode: SmoothQuant) -> None:
    options = TrtllmOptions("bfloat16", 2, smooth_quant=mode)
    rank = all_ranks(wide, options, smoothed_layers(wide, mode))[0][1]
    prefix = "transformer.layers.0."
    layer = {name.removeprefix(prefix): tensor for name, tensor in rank.items() if name.startswith(prefix)}

    def width(size: int) -> tuple[int, int]:
        return (1, size if mode.per_channel else 1)

    shapes = {
        "attention.qkv.weight": (256, 256),
        "attention.qkv.per_channel_scale": (1, 256),
        "attention.dense.weight": (256, 128),
        "attention.dense.per_channel_scale": width(256),
        "attention.dense.smoother": (1, 128),
        "mlp.fc.weight": (192, 256),
        "mlp.fc.per_channel_scale": width(192),
        "mlp.gate.weight": (192, 256),
        "mlp.gate.per_channel_scale": width(192),
        "mlp.proj.weight": (256, 192),
        "mlp.proj.per_channel_scale": width(256),
        "mlp.proj.smoother": (1, 192),
        "input_layernorm.scale_to_int": (1,),
        "post_layernorm.scale_to_int": (1,),
    }
    if not mode.per_token:
        shapes |= {f"{name}.act_scale": (1, 1) for name in ("attention.qkv", "attention.dense")}
        shapes |= {f"mlp.{name}.act_scale": (1, 1) for name in ("fc", "gate", "proj")}
        shapes |= {f"{name}.quantization_scaling_factor": (1,) for name in ("attention", "mlp")}
    floating = {"attention.qkv.bias": (256,), "input_layernorm.weight": (256,), "post_layernorm.weight": (256,)}
    assert {name: tuple(tensor.shape) for name, tensor in layer.items()} == shapes | floating
    for name, tensor in layer.items():
        expected = torch.int8 if name in shapes and name.endswith("weight") else torch.float32
        assert tensor.dtype == (torch.bfloat16 if name in floating else expected), name
    is_one = float(layer["input_layernorm.scale_to_int"]) == 1.0
    assert is_one == mode.per_token


def test_one_scale_for_a_matrix_is_one_each_for_queries_keys_and_values(wide: SpeechLMSource) -> None:
    weights = layer_weights(wide.decoder, 0)
    louder = dataclasses.replace(weights, qkv=torch.cat([weights.qkv[:256] * 8, weights.qkv[256:]]))
    layer = smooth_layer(louder, ranges_of(louder), SmoothQuant(0.5, per_channel=False), WIDE)
    runs = torch.split(layer.qkv.scale, [256, 128, 128])
    assert all(len(run.unique()) == 1 for run in runs)
    assert runs[0][0] > 4 * runs[1][0]
    assert len(layer.fc.scale.unique()) == 1


@pytest.mark.slow
def test_calibration_sees_what_the_model_computes(source: SpeechLMSource) -> None:
    prompts = [(SOS_ID, 5, 6, TASK_ID), (SOS_ID, 7, TASK_ID)]
    ranges = measure_ranges(source, prompts, max_tokens=3, seed=0, device="cpu")
    assert len(ranges) == source.shape.layers
    norm = source.decoder["layers.0.input_layernorm.weight"].float()
    rows = torch.tensor(sorted({token for prompt in prompts for token in prompt}))
    read = functional.rms_norm(source.embedding[rows].float(), norm.shape, norm, source.shape.norm_epsilon)
    assert (ranges[0].qkv.input_max >= read.abs().amax(dim=0) - 1e-5).all()
    assert torch.equal(ranges[0].fc.input_max, ranges[0].gate.input_max)
    again = measure_ranges(source, prompts, max_tokens=3, seed=0, device="cpu")
    assert torch.equal(again[1].proj.input_max, ranges[1].proj.input_max)
    longer = measure_ranges(source, prompts, max_tokens=6, seed=0, device="cpu")
    assert (longer[0].qkv.input_max >= ranges[0].qkv.input_max).all()
    assert (longer[0].qkv.input_max > ranges[0].qkv.input_max).any()


def test_calibration_needs_texts(source: SpeechLMSource) -> None:
    assert prompts_of(source, ["ab"]) == [(SOS_ID, 64, 65, TASK_ID)]
    with pytest.raises(ConfigError, match="texts"):
        measure_ranges(source, [], max_tokens=3, seed=0, device="cpu")
