"""A whole TensorRT-LLM checkpoint on disk: its files, its config.json, and that nothing is done twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from llm_service.export import convert
from llm_service.export.convert import Calibration, Origin, convert_trtllm
from llm_service.export.source import SpeechLMSource
from llm_service.export.trtllm_options import SmoothQuant, TrtllmOptions, WeightOnly
from llm_service.qwen2 import qwen2_config
from llm_service.vocab import SPEECH_HEAD_ROWS
from tests.file_modes import assert_all_have_the_usual_mode
from tests.llm_service.export.ranks import whole_layer

FLOAT = TrtllmOptions(dtype="float32")
PROMPT = [158227, 5, 6, 158228, 151700]


def test_config_json_says_what_the_model_is(stock_dir: Path, tmp_path: Path) -> None:
    options = TrtllmOptions(tp_size=2, pp_size=2)
    assert convert_trtllm(Origin(stock_dir), tmp_path / "made", options, 1, None)
    config = json.loads((tmp_path / "made" / "config.json").read_text())
    expected = {
        "architecture": "Qwen2ForCausalLM",
        "qwen_type": "qwen2",
        "dtype": "bfloat16",
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
        "mapping": {"world_size": 4, "tp_size": 2, "pp_size": 2, "cp_size": 1},
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
        "speech_head_first_id": 151663,
        "speech_head_rows": 6576,
    }
    assert {key: config[key] for key in expected} == expected
    names = sorted(path.name for path in (tmp_path / "made").glob("rank*"))
    assert names == [f"rank{number}.safetensors" for number in range(4)]


def test_ranks_of_one_context_share_a_file(stock_dir: Path, tmp_path: Path) -> None:
    convert_trtllm(Origin(stock_dir), tmp_path / "made", TrtllmOptions(cp_size=2), 1, None)
    assert [path.name for path in (tmp_path / "made").glob("rank*")] == ["rank0.safetensors"]
    mapping = json.loads((tmp_path / "made" / "config.json").read_text())["mapping"]
    assert (mapping["world_size"], mapping["cp_size"]) == (2, 2)


@pytest.mark.slow
def test_workers_change_nothing_in_the_files(stock_dir: Path, tmp_path: Path) -> None:
    options = TrtllmOptions(tp_size=2, pp_size=2)
    for workers in (1, 3):
        convert_trtllm(Origin(stock_dir), tmp_path / str(workers), options, workers, None)
    for path in (tmp_path / "1").glob("rank*"):
        assert path.read_bytes() == (tmp_path / "3" / path.name).read_bytes()


@pytest.mark.slow
def test_the_checkpoint_computes_the_sources_logits(stock_dir: Path, source: SpeechLMSource, tmp_path: Path) -> None:
    convert_trtllm(Origin(stock_dir), tmp_path / "made", TrtllmOptions("float32", tp_size=2, pp_size=2), 1, None)
    files = [load_file(tmp_path / "made" / f"rank{number}.safetensors") for number in range(4)]
    stages = [files[:2], files[2:]]
    decoder = read_back(stages, source)
    assert decoder.keys() == source.decoder.keys()
    head_weight = torch.cat([rank["lm_head.weight"] for rank in stages[1]])[:SPEECH_HEAD_ROWS]
    head_bias = torch.cat([rank["lm_head.bias"] for rank in stages[1]])[:SPEECH_HEAD_ROWS]
    embedding = stages[0][0]["transformer.vocab_embedding.weight"]
    got = logits(source, decoder, embedding, head_weight, head_bias)
    assert torch.equal(got, logits(source, source.decoder, source.embedding, source.head.weight, source.head.bias))


def logits(source: SpeechLMSource, decoder: object, embedding: torch.Tensor, *head: torch.Tensor) -> torch.Tensor:
    # NOTE: imported by those who use it: its import takes seconds, and every worker imports this file.
    from transformers import Qwen2Config, Qwen2Model

    model = Qwen2Model(Qwen2Config.from_dict(qwen2_config(source.shape)))
    model.load_state_dict(dict(decoder) | {"embed_tokens.weight": embedding})  # type: ignore[call-overload]
    with torch.inference_mode():
        hidden = model(torch.tensor([PROMPT])).last_hidden_state[0]
        return hidden @ head[0].float().T + head[1].float()


def read_back(stages: list[list[dict[str, torch.Tensor]]], source: SpeechLMSource) -> dict[str, torch.Tensor]:
    """Return the decoder's tensors by Transformers' names."""
    shape = source.shape
    sizes = [shape.hidden, shape.key_value_size, shape.key_value_size]
    names = {
        "attention.dense.weight": "self_attn.o_proj.weight",
        "mlp.fc.weight": "mlp.gate_proj.weight",
        "mlp.gate.weight": "mlp.up_proj.weight",
        "mlp.proj.weight": "mlp.down_proj.weight",
        "input_layernorm.weight": "input_layernorm.weight",
        "post_layernorm.weight": "post_attention_layernorm.weight",
    }
    decoder = {"norm.weight": stages[-1][0]["transformer.ln_f.weight"]}
    for index in range(shape.layers):
        layer = whole_layer(stages, index, shape)
        for kind in ("weight", "bias"):
            parts = torch.split(layer[f"attention.qkv.{kind}"], sizes)
            names_qkv = [f"layers.{index}.self_attn.{name}_proj.{kind}" for name in "qkv"]
            decoder |= dict(zip(names_qkv, parts, strict=True))
        decoder |= {f"layers.{index}.{official}": layer[name] for name, official in names.items()}
    return decoder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "algorithm"),
    [
        pytest.param(TrtllmOptions(weight_only=WeightOnly.INT8), "W8A16", id="int8"),
        pytest.param(TrtllmOptions(weight_only=WeightOnly.INT4), "W4A16", id="int4"),
        pytest.param(TrtllmOptions(smooth_quant=SmoothQuant(0.4, True, True)), "W8A8_SQ_PER_CHANNEL", id="SmoothQuant"),
    ],
)
def test_quantised_checkpoints_are_written_and_named(
    stock_dir: Path, tmp_path: Path, options: TrtllmOptions, algorithm: str
) -> None:
    calibration = Calibration(["hello"], max_tokens=2)
    convert_trtllm(Origin(stock_dir), tmp_path / "made", options, 1, calibration)
    tensors = load_file(tmp_path / "made" / "rank0.safetensors")
    assert tensors["transformer.layers.0.mlp.fc.weight"].dtype == torch.int8
    config = json.loads((tmp_path / "made" / "config.json").read_text())
    assert config["quantization"]["quant_algo"].startswith(algorithm)
    assert config["quantization"].get("smoothquant_val") == (0.4 if options.smooth_quant else None)


def test_a_rerun_with_nothing_to_do_opens_no_model(
    stock_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "made"
    assert convert_trtllm(Origin(stock_dir), made, FLOAT, 1, None)
    assert_all_have_the_usual_mode(made)

    def refuse(*_: object) -> None:
        raise AssertionError("the model was read")

    monkeypatch.setattr(convert, "read_source", refuse)
    assert not convert_trtllm(Origin(stock_dir), made, FLOAT, 2, None)
    with pytest.raises(AssertionError, match="the model was read"):
        convert_trtllm(Origin(stock_dir), made, TrtllmOptions(dtype="float16"), 1, None)
    assert json.loads((made / "config.json").read_text())["dtype"] == "float32"
