"""A whole TensorRT-LLM checkpoint on disk: its files, its config.json, and that nothing is done twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from llm_service.errors import LLMConfigError
from llm_service.export import convert
from llm_service.export.convert import Origin, convert_trtllm
from llm_service.export.source import SpeechLMSource
from llm_service.export.trtllm import MATRICES
from llm_service.qwen2 import qwen2_config
from llm_service.vocab import SPEECH_HEAD_ROWS
from tests.file_modes import assert_all_have_the_usual_mode

PROMPT = [158227, 5, 6, 158228, 151700]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_config_json_says_what_the_model_is(stock_dir: Path, tmp_path: Path, dtype: str) -> None:
    assert convert_trtllm(Origin(stock_dir), tmp_path / "made", dtype)
    config = json.loads((tmp_path / "made" / "config.json").read_text())
    expected = {
        "architecture": "Qwen2ForCausalLM",
        "qwen_type": "qwen2",
        "dtype": dtype,
        "logits_dtype": "float32",
        "vocab_size": 158336,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_size": 16,
        "position_embedding_type": "rope_gpt_neox",
        "rotary_base": 1e6,
        "norm_epsilon": 1e-6,
        "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1, "cp_size": 1},
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
        "speech_head_first_id": 151663,
        "speech_head_rows": 6568,
    }
    assert {key: config[key] for key in expected} == expected
    tensors = load_file(tmp_path / "made" / "rank0.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {getattr(torch, dtype)}
    assert (tensors["lm_head.bias"][SPEECH_HEAD_ROWS:] < -29000).all()


@pytest.mark.slow
def test_the_checkpoint_computes_the_sources_logits(stock_dir: Path, source: SpeechLMSource, tmp_path: Path) -> None:
    convert_trtllm(Origin(stock_dir), tmp_path / "made", "float32")
    tensors = load_file(tmp_path / "made" / "rank0.safetensors")
    decoder = read_back(tensors, source)
    assert decoder.keys() == source.decoder.keys()
    head = (tensors["lm_head.weight"][:SPEECH_HEAD_ROWS], tensors["lm_head.bias"][:SPEECH_HEAD_ROWS])
    got = logits(source, decoder, tensors["transformer.vocab_embedding.weight"], *head)
    assert torch.equal(got, logits(source, source.decoder, source.embedding, source.head.weight, source.head.bias))


def logits(source: SpeechLMSource, decoder: object, embedding: torch.Tensor, *head: torch.Tensor) -> torch.Tensor:
    # NOTE: imported by those who use it: its import takes seconds, and every worker imports this file.
    from transformers import Qwen2Config, Qwen2Model

    model = Qwen2Model(Qwen2Config.from_dict(qwen2_config(source.shape)))
    model.load_state_dict(dict(decoder) | {"embed_tokens.weight": embedding})  # type: ignore[call-overload]
    with torch.inference_mode():
        hidden = model(torch.tensor([PROMPT])).last_hidden_state[0]
        return hidden @ head[0].float().T + head[1].float()


def read_back(tensors: dict[str, torch.Tensor], source: SpeechLMSource) -> dict[str, torch.Tensor]:
    """Return the decoder's tensors by Transformers' names."""
    shape = source.shape
    sizes = [shape.hidden, shape.key_value_size, shape.key_value_size]
    decoder = {"norm.weight": tensors["transformer.ln_f.weight"]}
    for index in range(shape.layers):
        layer = f"transformer.layers.{index}"
        for kind in ("weight", "bias"):
            parts = torch.split(tensors[f"{layer}.attention.qkv.{kind}"], sizes)
            names = [f"layers.{index}.self_attn.{name}_proj.{kind}" for name in "qkv"]
            decoder |= dict(zip(names, parts, strict=True))
        decoder |= {f"layers.{index}.{theirs}": tensors[f"{layer}.{name}"] for name, theirs in MATRICES.items()}
    return decoder


def test_a_rerun_with_nothing_to_do_opens_no_model(
    stock_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "made"
    assert convert_trtllm(Origin(stock_dir), made, "float32")
    assert_all_have_the_usual_mode(made)

    def refuse(*_: object) -> None:
        raise AssertionError("the model was read")

    monkeypatch.setattr(convert, "read_source", refuse)
    assert not convert_trtllm(Origin(stock_dir), made, "float32")
    with pytest.raises(LLMConfigError, match="dtype is 'float8'"):
        convert_trtllm(Origin(stock_dir), made, "float8")
    with pytest.raises(AssertionError, match="the model was read"):
        convert_trtllm(Origin(stock_dir), made, "float16")
    assert json.loads((made / "config.json").read_text())["dtype"] == "float32"
