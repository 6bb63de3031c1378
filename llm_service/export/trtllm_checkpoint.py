"""Writes a TensorRT-LLM checkpoint: config.json and a file of tensors for each rank, several at a time if asked for.

Source: TensorRT-LLM 1.2.1, docs/source/legacy/architecture/checkpoint.md and models/qwen/config.py; written to that
interface, not run here.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from tqdm import tqdm

from llm_service.export.layer import Rank, layer_weights
from llm_service.export.smooth_quant import LayerRanges, SmoothedLayer, smooth_layer
from llm_service.export.source import SpeechLMSource
from llm_service.export.trtllm_options import TrtllmOptions
from llm_service.export.trtllm_weights import padded_head_rows, rank_tensors
from llm_service.huggingface_layout import FIRST_ID_KEY, ROWS_KEY
from llm_service.qwen2 import Qwen2Shape
from llm_service.vocab import COSYVOICE2, SpeechVocabulary
from servicekit.files import usual_mode

CONFIG_FILE = "config.json"
# The class that TensorRT-LLM reads config.json as; the build is told of our own class beside it.
ARCHITECTURE = "Qwen2ForCausalLM"


def write_checkpoint(
    source: SpeechLMSource,
    directory: Path,
    options: TrtllmOptions,
    workers: int,
    ranges: Sequence[LayerRanges] | None,
) -> None:
    """Write a checkpoint into an empty directory.

    Args:
        source: the model.
        directory: exists and is empty.
        options: checked with `check_options`.
        workers: rank files made at the same time.
        ranges: ranges of activations of each layer, with SmoothQuant; else None.
    """
    config = json.dumps(checkpoint_config(source.shape, options, source.vocabulary), indent=2)
    (directory / CONFIG_FILE).write_text(config + "\n", encoding="utf-8")
    smoothed = _smoothed(source, options, ranges)
    ranks = [Rank(tensor, stage) for stage, tensor in itertools.product(range(options.pp_size), range(options.tp_size))]

    def write_rank(number: int) -> None:
        tensors = rank_tensors(source, options, ranks[number], smoothed)
        with usual_mode(directory / f"rank{number}.safetensors") as path:
            save_file(tensors, path)

    with ThreadPoolExecutor(workers) as pool:
        for _ in tqdm(pool.map(write_rank, range(len(ranks))), desc="writing ranks", total=len(ranks), unit="rank"):
            pass


def checkpoint_config(
    shape: Qwen2Shape, options: TrtllmOptions, vocabulary: SpeechVocabulary = COSYVOICE2
) -> dict[str, Any]:
    """Return config.json; the last two keys are read by the model class in `llm_service.adapters`."""
    return {
        "architecture": ARCHITECTURE,
        "dtype": options.dtype,
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
        "mapping": {
            "world_size": options.world_size,
            "tp_size": options.tp_size,
            "pp_size": options.pp_size,
            "cp_size": options.cp_size,
        },
        "quantization": _quantization(options),
        FIRST_ID_KEY: vocabulary.first_id,
        ROWS_KEY: padded_head_rows(options.tp_size, vocabulary),
    }


def _quantization(options: TrtllmOptions) -> dict[str, Any]:
    settings: dict[str, Any] = {"quant_algo": options.quant_algorithm, "kv_cache_quant_algo": None}
    if options.smooth_quant is not None:
        settings["smoothquant_val"] = options.smooth_quant.alpha
    return settings


def _smoothed(
    source: SpeechLMSource, options: TrtllmOptions, ranges: Sequence[LayerRanges] | None
) -> list[SmoothedLayer] | None:
    if options.smooth_quant is None or ranges is None:
        return None
    return [
        smooth_layer(layer_weights(source.decoder, index), seen, options.smooth_quant, source.shape)
        for index, seen in enumerate(ranges)
    ]
