"""The tensors of a TensorRT-LLM checkpoint: names, shapes for each rank, and that the ranks are the source, cut."""

from __future__ import annotations

import pytest
import torch

from llm_service.export.layer import pipeline_layers
from llm_service.export.source import SpeechLMSource
from llm_service.export.trtllm_options import TrtllmOptions, WeightOnly
from llm_service.export.trtllm_weights import dequantise_weight, pack_int4, quantise_weight, unpack_int4
from llm_service.vocab import SPEECH_HEAD_ROWS
from tests.llm_service.export.ranks import WIDE, all_ranks, whole_layer, wide_source

MATRICES = {
    "attention.dense": "self_attn.o_proj",
    "mlp.fc": "mlp.gate_proj",
    "mlp.gate": "mlp.up_proj",
    "mlp.proj": "mlp.down_proj",
}
NORMS = {"input_layernorm": "input_layernorm", "post_layernorm": "post_attention_layernorm"}


@pytest.fixture(scope="module")
def wide() -> SpeechLMSource:
    """A model in memory."""
    return wide_source(seed=3)


def joined_qkv(source: SpeechLMSource, index: int, kind: str) -> torch.Tensor:
    return torch.cat([source.decoder[f"layers.{index}.self_attn.{name}_proj.{kind}"] for name in "qkv"])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("tp_size", "pp_size"), [(1, 1), (2, 1), (4, 1), (1, 2), (2, 3)])
def test_the_ranks_are_the_source_cut(wide: SpeechLMSource, dtype: str, tp_size: int, pp_size: int) -> None:
    stages = all_ranks(wide, TrtllmOptions(dtype, tp_size, pp_size))
    kind = getattr(torch, dtype)
    for index in range(WIDE.layers):
        layer = whole_layer(stages, index, WIDE)
        assert torch.equal(layer.pop("attention.qkv.weight"), joined_qkv(wide, index, "weight").to(kind))
        assert torch.equal(layer.pop("attention.qkv.bias"), joined_qkv(wide, index, "bias").to(kind))
        for name, official in (MATRICES | NORMS).items():
            assert torch.equal(layer.pop(f"{name}.weight"), wide.decoder[f"layers.{index}.{official}.weight"].to(kind))
        assert not layer


def test_a_rank_has_its_heads_and_its_share_of_the_feed_forward(wide: SpeechLMSource) -> None:
    first = all_ranks(wide, TrtllmOptions(tp_size=2))[0][0]
    shapes = {name: tuple(tensor.shape) for name, tensor in first.items() if ".layers.1." in name}
    prefix = "transformer.layers.1."
    assert shapes == {
        f"{prefix}attention.qkv.weight": (128 + 2 * 64, 256),
        f"{prefix}attention.qkv.bias": (128 + 2 * 64,),
        f"{prefix}attention.dense.weight": (256, 128),
        f"{prefix}mlp.fc.weight": (192, 256),
        f"{prefix}mlp.gate.weight": (192, 256),
        f"{prefix}mlp.proj.weight": (256, 192),
        f"{prefix}input_layernorm.weight": (256,),
        f"{prefix}post_layernorm.weight": (256,),
    }


def test_ranks_share_a_key_value_head_where_there_are_too_few(wide: SpeechLMSource) -> None:
    ranks = all_ranks(wide, TrtllmOptions(dtype="float32", tp_size=4))[0]
    keys = [rank["transformer.layers.0.attention.qkv.weight"][64:128] for rank in ranks]
    official = wide.decoder["layers.0.self_attn.k_proj.weight"]
    for rank, own in enumerate(keys):
        assert torch.equal(own, official[64 * (rank // 2) : 64 * (rank // 2) + 64])


def test_embedding_and_head_lie_at_the_ends_of_the_pipeline(wide: SpeechLMSource) -> None:
    stages = all_ranks(wide, TrtllmOptions(pp_size=3))
    outside = [{name for name in stage[0] if ".layers." not in name} for stage in stages]
    assert outside[0] == {"transformer.vocab_embedding.weight"}
    assert outside[1] == set()
    assert outside[2] == {"transformer.ln_f.weight", "lm_head.weight", "lm_head.bias"}
    assert torch.equal(stages[0][0]["transformer.vocab_embedding.weight"], wide.embedding.bfloat16())


def test_layers_are_numbered_within_their_stage(wide: SpeechLMSource) -> None:
    second = all_ranks(wide, TrtllmOptions(dtype="float32", pp_size=2))[1][0]
    norm = second["transformer.layers.0.input_layernorm.weight"]
    assert torch.equal(norm, wide.decoder["layers.2.input_layernorm.weight"])
    assert "transformer.layers.1.input_layernorm.weight" not in second


@pytest.mark.parametrize("tp_size", [1, 2, 4])
def test_the_head_is_the_sources_filled_up_with_what_cannot_come_out(wide: SpeechLMSource, tp_size: int) -> None:
    ranks = all_ranks(wide, TrtllmOptions(dtype="float32", tp_size=tp_size))[0]
    assert len({tuple(rank["lm_head.weight"].shape) for rank in ranks}) == 1
    assert ranks[0]["lm_head.weight"].shape[0] % 8 == 0
    weight = torch.cat([rank["lm_head.weight"] for rank in ranks])
    bias = torch.cat([rank["lm_head.bias"] for rank in ranks])
    assert torch.equal(weight[:SPEECH_HEAD_ROWS], wide.head.weight)
    assert torch.equal(bias[:SPEECH_HEAD_ROWS], wide.head.bias)
    assert not weight[SPEECH_HEAD_ROWS:].any()
    assert (bias[SPEECH_HEAD_ROWS:] == -30000).all()


@pytest.mark.parametrize(("layers", "stages"), [(24, 4), (24, 7), (5, 5), (3, 2)])
def test_stages_cover_the_layers_as_torch_splits_them(layers: int, stages: int) -> None:
    expected = [list(part.tolist()) for part in torch.tensor_split(torch.arange(layers), stages)]
    assert [list(pipeline_layers(layers, stages, stage)) for stage in range(stages)] == expected


@pytest.mark.parametrize("kind", list(WeightOnly))
@pytest.mark.parametrize("tp_size", [1, 2])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weight_only_ranks_stand_for_the_source_within_half_a_step(
    wide: SpeechLMSource, kind: WeightOnly, tp_size: int, dtype: str
) -> None:
    ranks = all_ranks(wide, TrtllmOptions(dtype, tp_size, weight_only=kind))[0]
    exact = all_ranks(wide, TrtllmOptions("float32", tp_size))[0]
    for rank, exact_rank in zip(ranks, exact, strict=True):
        for name in ("attention.qkv", *MATRICES):
            prefix = f"transformer.layers.2.{name}"
            integers, scale = rank[f"{prefix}.weight"], rank[f"{prefix}.per_channel_scale"]
            weight = exact_rank[f"{prefix}.weight"]
            assert integers.dtype == torch.int8
            assert integers.shape == (weight.shape[0] * kind.bits // 8, weight.shape[1])
            assert (scale.dtype, scale.shape) == (getattr(torch, dtype), (weight.shape[0],))
            error = (dequantise_weight(integers, scale, kind) - weight).abs()
            assert (error <= 0.501 * scale.float()[:, None]).all()
            assert error.max() > 0
        assert rank["lm_head.weight"].dtype == rank["transformer.layers.2.attention.qkv.bias"].dtype == scale.dtype


def test_every_channel_uses_the_whole_range(wide: SpeechLMSource) -> None:
    weight = wide.decoder["layers.0.mlp.up_proj.weight"]
    for kind, largest in ((WeightOnly.INT8, 127), (WeightOnly.INT4, 7)):
        integers, _ = quantise_weight(weight, kind, torch.float32)
        plain = unpack_int4(integers) if kind is WeightOnly.INT4 else integers
        assert (plain.abs().amax(dim=1) == largest).all()


def test_a_byte_holds_two_output_channels_the_even_one_low() -> None:
    integers = torch.tensor([[1, -1], [2, 7], [-7, 0], [-2, 3]], dtype=torch.int8)
    packed = pack_int4(integers)
    assert packed.view(torch.uint8).tolist() == [[0x21, 0x7F], [0xE9, 0x30]]
    assert torch.equal(unpack_int4(packed), integers)


def test_a_channel_of_zeros_stays_zero() -> None:
    weight = torch.zeros(2, 4)
    weight[1] = 1.0
    for kind in WeightOnly:
        integers, scale = quantise_weight(weight, kind, torch.float16)
        assert torch.equal(dequantise_weight(integers, scale, kind)[0], weight[0])
        assert (scale > 0).all()
