"""Writes a TensorRT-LLM checkpoint for one GPU: config.json, and one file of tensors by TensorRT-LLM's names.

    transformer.vocab_embedding.weight
    transformer.layers.N.attention.{qkv,dense}     queries, keys and values are one matrix, in that order
    transformer.layers.N.mlp.{fc,gate,proj}        fc is gate_proj, as the activation applies to it; gate is up_proj
    transformer.layers.N.{input_layernorm,post_layernorm}.weight
    transformer.ln_f.weight, lm_head.weight, lm_head.bias

The head has the speech and end tokens' rows only, and a bias; the model class in `llm_service.adapters` knows. Source:
TensorRT-LLM 1.2.1, docs/source/legacy/architecture/checkpoint.md and models/qwen/config.py; written to that interface,
not run here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.nn import functional

from llm_service.export.source import SpeechLMSource
from llm_service.huggingface_layout import FIRST_ID_KEY, ROWS_KEY
from llm_service.vocab import SpeechVocabulary
from servicekit.files import usual_mode

# The class that TensorRT-LLM reads config.json as; the build is told of our own class beside it.
ARCHITECTURE = "Qwen2ForCausalLM"
# The head's rows come in runs of this many, as products of half precision like them.
HEAD_MULTIPLE = 8
# The bias of rows that only fill up; as far below any logit as the model class puts all other tokens.
IMPOSSIBLE_LOGIT = -30000.0

MATRICES = {
    "attention.dense.weight": "self_attn.o_proj.weight",
    "mlp.fc.weight": "mlp.gate_proj.weight",
    "mlp.gate.weight": "mlp.up_proj.weight",
    "mlp.proj.weight": "mlp.down_proj.weight",
    "input_layernorm.weight": "input_layernorm.weight",
    "post_layernorm.weight": "post_attention_layernorm.weight",
}
"""TensorRT-LLM's name -> the decoder's; beside them `attention.qkv`, which is joined."""


def write_checkpoint(source: SpeechLMSource, directory: Path, dtype: str) -> None:
    """Write a checkpoint into a directory that exists and is empty; `dtype` is of all tensors."""
    config = json.dumps(_config(source, dtype), indent=2)
    (directory / "config.json").write_text(config + "\n", encoding="utf-8")
    with usual_mode(directory / "rank0.safetensors") as path:
        save_file(checkpoint_tensors(source, getattr(torch, dtype)), path)


def checkpoint_tensors(source: SpeechLMSource, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return all tensors of the checkpoint, by name."""
    decoder = source.decoder
    tensors = {
        "transformer.vocab_embedding.weight": source.embedding,
        "transformer.ln_f.weight": decoder["norm.weight"],
    }
    for index in range(source.shape.layers):
        layer, official = f"transformer.layers.{index}", f"layers.{index}"
        tensors |= {f"{layer}.{name}": decoder[f"{official}.{theirs}"] for name, theirs in MATRICES.items()}
        for kind in ("weight", "bias"):
            joined = torch.cat([decoder[f"{official}.self_attn.{name}_proj.{kind}"] for name in "qkv"])
            tensors[f"{layer}.attention.qkv.{kind}"] = joined
    extra = _padded_rows(source.vocabulary) - source.vocabulary.head_rows
    tensors["lm_head.weight"] = functional.pad(source.head.weight, (0, 0, 0, extra))
    tensors["lm_head.bias"] = functional.pad(source.head.bias, (0, extra), value=IMPOSSIBLE_LOGIT)
    return {name: tensor.to(dtype).contiguous() for name, tensor in tensors.items()}


def _padded_rows(vocabulary: SpeechVocabulary) -> int:
    return -(-vocabulary.head_rows // HEAD_MULTIPLE) * HEAD_MULTIPLE


def _config(source: SpeechLMSource, dtype: str) -> dict[str, Any]:
    """Return config.json; the last two keys are read by the model class in `llm_service.adapters`."""
    shape, vocabulary = source.shape, source.vocabulary
    return {
        "architecture": ARCHITECTURE,
        "dtype": dtype,
        "logits_dtype": "float32",
        "vocab_size": vocabulary.table_rows,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.feed_forward,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_value_heads,
        "head_size": shape.head_size,
        "hidden_act": "silu",
        "norm_epsilon": shape.norm_epsilon,
        "position_embedding_type": "rope_gpt_neox",
        "max_position_embeddings": shape.max_positions,
        "rotary_base": shape.rope_theta,
        "rotary_scaling": None,
        "attn_bias": True,
        "mlp_bias": False,
        "qwen_type": "qwen2",
        "tie_word_embeddings": False,
        "use_parallel_embedding": False,
        "embedding_sharding_dim": 0,
        "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1, "cp_size": 1},
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
        FIRST_ID_KEY: vocabulary.first_id,
        ROWS_KEY: _padded_rows(vocabulary),
    }
