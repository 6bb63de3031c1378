"""The model class that trtllm-build loads, on stand-ins that have the documented interface and compute with torch."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from llm_service.adapters import TRTLLM_ENGINE_FILE
from llm_service.export.trtllm_options import TrtllmOptions, WeightOnly
from llm_service.huggingface_layout import FIRST_ID_KEY, ROWS_KEY
from llm_service.speech_head import speech_rows
from llm_service.vocab import COSYVOICE2, PADDED_VOCABULARY_SIZE, SPEECH_TOKEN_OFFSET
from tests.llm_service.export.ranks import all_ranks, wide_source
from tests.llm_service.export.stand_ins import load, stand_in

SPEECH_ROWS = speech_rows(COSYVOICE2)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The model class that trtllm-build loads, on stand-ins that compute at once with torch."""

    class ColumnLinear:
        def __init__(self, in_features: int, out_features: int, **options: Any) -> None:
            self.options = options
            self.weight, self.bias = torch.zeros(out_features, in_features), torch.zeros(out_features)

        def forward(self, x: torch.Tensor, lora_runtime_params: Any = None) -> torch.Tensor:
            return functional.linear(x, self.weight, self.bias)

    class QWenForCausalLM:
        def __init__(self, config: Any) -> None:
            self.lm_head: Any = None

        @classmethod
        def from_checkpoint(
            cls, ckpt_dir: str, rank: Any = None, config: Any = None, *, preprocess_weights_hook: Any = None
        ) -> dict[str, torch.Tensor]:
            weights: dict[str, torch.Tensor] = preprocess_weights_hook(config.weights)
            return weights

    def preprocess(tensor: torch.Tensor, quant_mode: torch.dtype, act_dtype: torch.dtype) -> tuple[Any, ...]:
        return tensor, quant_mode, act_dtype

    def cast(x: torch.Tensor, dtype: str) -> torch.Tensor:
        return x.to(getattr(torch, dtype))

    def pad(x: torch.Tensor, pad: list[int], mode: str = "constant", value: float | None = None) -> torch.Tensor:
        return functional.pad(x, pad, mode, value)

    stand_in(monkeypatch, "tensorrt_llm.functional", cast=cast, pad=pad)
    stand_in(monkeypatch, "tensorrt_llm.layers", ColumnLinear=ColumnLinear)
    stand_in(monkeypatch, "tensorrt_llm.models", QWenForCausalLM=QWenForCausalLM)
    stand_in(monkeypatch, "tensorrt_llm.quantization.functional", preprocess_weights_for_mixed_gemm=preprocess)
    yield load(TRTLLM_ENGINE_FILE, "models")


def engine_config(**changes: Any) -> SimpleNamespace:
    mapping = SimpleNamespace(tp_group=[0], tp_size=1, is_last_pp_rank=lambda: True)
    sizes = {"hidden_size": 256, "vocab_size": PADDED_VOCABULARY_SIZE, "dtype": "bfloat16"}
    head = {FIRST_ID_KEY: SPEECH_TOKEN_OFFSET, ROWS_KEY: 6568}
    return SimpleNamespace(**sizes, **head, mapping=mapping, **changes)


def test_an_engines_logits_are_the_sources_and_nothing_else_can_come_out(engine: ModuleType) -> None:
    source = wide_source(seed=5)
    rank = all_ranks(source, TrtllmOptions(dtype="float32"))[0][0]
    model = engine.SpeechQwen2ForCausalLM(engine_config())
    assert model.lm_head.options["bias"] is True
    model.lm_head.weight, model.lm_head.bias = rank["lm_head.weight"], rank["lm_head.bias"]
    hidden = torch.randn(3, 256, generator=torch.Generator().manual_seed(0))
    logits = model.lm_head.forward(hidden)
    assert logits.shape == (3, PADDED_VOCABULARY_SIZE)
    assert logits.dtype == torch.float32
    expected = hidden @ source.head.weight.T + source.head.bias
    torch.testing.assert_close(logits[:, SPEECH_ROWS], expected, atol=1e-5, rtol=0)
    others = torch.cat([logits[:, : SPEECH_ROWS.start], logits[:, SPEECH_ROWS.stop :]], dim=1)
    assert (others == -30000).all()


def test_the_head_lives_on_the_last_stage_only(engine: ModuleType) -> None:
    config = engine_config()
    config.mapping.is_last_pp_rank = lambda: False
    assert engine.SpeechQwen2ForCausalLM(config).lm_head is None


@pytest.mark.parametrize("kind", list(WeightOnly))
def test_integer_weights_reach_the_kernels_as_input_by_output(engine: ModuleType, kind: WeightOnly) -> None:
    options = TrtllmOptions(weight_only=kind)
    weights = all_ranks(wide_source(seed=6), options)[0][0]
    config = engine_config(weights=weights, quantization=SimpleNamespace(quant_algo=options.quant_algorithm))
    loaded = engine.SpeechQwen2ForCausalLM.from_checkpoint("DIR", config=config)
    name = "transformer.layers.0.mlp.fc.weight"
    tensor, weight_type, activation_type = loaded[name]
    assert torch.equal(tensor, weights[name].T)
    assert tensor.shape == (256, 384 * kind.bits // 8)
    assert weight_type == (torch.int8 if kind is WeightOnly.INT8 else torch.quint4x2)
    assert activation_type == torch.float16
    assert torch.equal(loaded["lm_head.weight"], weights["lm_head.weight"])


def test_other_weights_are_left_as_they_are(engine: ModuleType) -> None:
    for algorithm in (None, "W8A8_SQ_PER_TENSOR_PLUGIN"):
        weights = {"w": torch.ones(2, 2, dtype=torch.int8), "n": torch.ones(2)}
        config = engine_config(weights=weights, quantization=SimpleNamespace(quant_algo=algorithm))
        loaded = engine.SpeechQwen2ForCausalLM.from_checkpoint("DIR", config=config)
        assert all(loaded[name] is weights[name] for name in weights)
