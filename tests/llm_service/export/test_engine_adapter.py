"""The model class that trtllm-build loads, on stand-ins that have the documented interface and compute with torch."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from llm_service.adapters import TRTLLM_ENGINE_FILE
from llm_service.export.source import SpeechLMSource
from llm_service.export.trtllm import checkpoint_tensors
from llm_service.huggingface_layout import FIRST_ID_KEY, ROWS_KEY
from llm_service.speech_head import speech_rows
from llm_service.vocab import COSYVOICE2, PADDED_VOCABULARY_SIZE, SPEECH_TOKEN_OFFSET
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

    def cast(x: torch.Tensor, dtype: str) -> torch.Tensor:
        return x.to(getattr(torch, dtype))

    def pad(x: torch.Tensor, pad: list[int], mode: str = "constant", value: float | None = None) -> torch.Tensor:
        return functional.pad(x, pad, mode, value)

    stand_in(monkeypatch, "tensorrt_llm.functional", cast=cast, pad=pad)
    stand_in(monkeypatch, "tensorrt_llm.layers", ColumnLinear=ColumnLinear)
    stand_in(monkeypatch, "tensorrt_llm.models", QWenForCausalLM=QWenForCausalLM)
    yield load(TRTLLM_ENGINE_FILE, "models")


def test_an_engines_logits_are_the_sources_and_nothing_else_can_come_out(
    engine: ModuleType, source: SpeechLMSource
) -> None:
    tensors = checkpoint_tensors(source, torch.float32)
    sizes = {"hidden_size": 64, "vocab_size": PADDED_VOCABULARY_SIZE, "dtype": "bfloat16"}
    head = {FIRST_ID_KEY: SPEECH_TOKEN_OFFSET, ROWS_KEY: len(tensors["lm_head.bias"])}
    model = engine.SpeechQwen2ForCausalLM(SimpleNamespace(**sizes, **head))
    assert model.lm_head.options["bias"] is True
    model.lm_head.weight, model.lm_head.bias = tensors["lm_head.weight"], tensors["lm_head.bias"]
    hidden = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    logits = model.lm_head.forward(hidden)
    assert logits.shape == (3, PADDED_VOCABULARY_SIZE)
    assert logits.dtype == torch.float32
    expected = hidden @ source.head.weight.float().T + source.head.bias.float()
    torch.testing.assert_close(logits[:, SPEECH_ROWS], expected, atol=1e-5, rtol=0)
    others = torch.cat([logits[:, : SPEECH_ROWS.start], logits[:, SPEECH_ROWS.stop :]], dim=1)
    assert (others == -30000).all()
