"""The sizes of the Qwen2 decoder: read from its config.json and written there, and the tensors that belong to them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_service.errors import CheckpointError
from llm_service.vocab import COSYVOICE2, SpeechVocabulary

if TYPE_CHECKING:
    import torch

ROPE_THETA = 1e6
"""Base of the rotary positions in the official model."""
NORM_EPSILON = 1e-6
DECODER_PREFIX = "model."
"""Beginning of the decoder's tensor names in a Hugging Face checkpoint."""
EMBEDDING = "model.embed_tokens.weight"
SHOWN_NAMES = 3  # of wrong tensors, in an error


@dataclass(frozen=True)
class Qwen2Shape:
    """Sizes and constants of a Qwen2 decoder."""

    hidden: int
    feed_forward: int
    layers: int
    heads: int
    key_value_heads: int
    max_positions: int
    norm_epsilon: float = NORM_EPSILON
    rope_theta: float = ROPE_THETA

    @property
    def head_size(self) -> int:
        """Channels of one attention head."""
        return self.hidden // self.heads

    @property
    def key_value_size(self) -> int:
        """Channels of all keys of a position."""
        return self.key_value_heads * self.head_size


def qwen2_config(
    shape: Qwen2Shape, vocabulary: SpeechVocabulary = COSYVOICE2, dtype: str = "bfloat16"
) -> dict[str, Any]:
    """Return what config.json says of a decoder with a family's vocabulary, its weights in one type."""
    return {
        "model_type": "qwen2",
        "vocab_size": vocabulary.table_rows,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.feed_forward,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_value_heads,
        "hidden_act": "silu",
        "max_position_embeddings": shape.max_positions,
        "rms_norm_eps": shape.norm_epsilon,
        "rope_theta": shape.rope_theta,
        "use_sliding_window": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "bos_token_id": vocabulary.sos_id,
        "eos_token_id": vocabulary.eos_id,
        "torch_dtype": dtype,
    }


def read_shape(config_path: Path) -> Qwen2Shape:
    """Read config.json.

    Raises:
        CheckpointError: it is missing or unreadable, or the model is no plain Qwen2.
    """
    try:
        config = json.loads(config_path.read_text(encoding="utf-8"))
    except FileNotFoundError as err:
        raise CheckpointError(f"{config_path} is missing; give the directory that holds Qwen2's config.json") from err
    except (OSError, ValueError) as err:
        raise CheckpointError(f"{config_path} can't be read as JSON: {err}") from err
    return _shape_of(config, config_path)


def _shape_of(config: Mapping[str, Any], path: Path) -> Qwen2Shape:
    expected = {"model_type": "qwen2", "hidden_act": "silu", "use_sliding_window": False}
    for key, value in expected.items():
        found = config.get(key, value)
        if found != value:
            raise CheckpointError(f"{path}: {key} is {found!r}, expected {value!r}; this is no plain Qwen2")
    try:
        shape = Qwen2Shape(
            hidden=int(config["hidden_size"]),
            feed_forward=int(config["intermediate_size"]),
            layers=int(config["num_hidden_layers"]),
            heads=int(config["num_attention_heads"]),
            key_value_heads=int(config["num_key_value_heads"]),
            max_positions=int(config["max_position_embeddings"]),
            norm_epsilon=float(config["rms_norm_eps"]),
            rope_theta=_rope_theta(config),
        )
    except KeyError as err:
        raise CheckpointError(f"{path} has no {err.args[0]}; expected the config.json of a Qwen2") from err
    if shape.hidden % shape.heads or shape.heads % shape.key_value_heads:
        raise CheckpointError(f"{path}: {shape.heads} heads do not divide hidden {shape.hidden} and its key heads")
    return shape


def _rope_theta(config: Mapping[str, Any]) -> float:
    """Newer versions of Transformers write the value into a dictionary of its own."""
    parameters = config.get("rope_parameters") or {}
    return float(config.get("rope_theta", parameters.get("rope_theta", ROPE_THETA)))


def decoder_tensors(shape: Qwen2Shape) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every tensor of the decoder; names as in Transformers' Qwen2Model, no embedding."""
    hidden, ffn, key_value = shape.hidden, shape.feed_forward, shape.key_value_size
    layer: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (hidden, hidden),
        "self_attn.q_proj.bias": (hidden,),
        "self_attn.k_proj.weight": (key_value, hidden),
        "self_attn.k_proj.bias": (key_value,),
        "self_attn.v_proj.weight": (key_value, hidden),
        "self_attn.v_proj.bias": (key_value,),
        "self_attn.o_proj.weight": (hidden, hidden),
        "mlp.gate_proj.weight": (ffn, hidden),
        "mlp.up_proj.weight": (ffn, hidden),
        "mlp.down_proj.weight": (hidden, ffn),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    tensors = {f"layers.{index}.{name}": size for index in range(shape.layers) for name, size in layer.items()}
    return tensors | {"norm.weight": (hidden,)}


def check_tensors(found: Mapping[str, torch.Tensor], expected: Mapping[str, tuple[int, ...]], where: Path) -> None:
    """Check that the tensors are those expected, no more and no less.

    Raises:
        CheckpointError: some are missing, of another shape or unknown; the message names the first of each kind.
    """
    missing = sorted(expected.keys() - found.keys())
    unknown = sorted(found.keys() - expected.keys())
    wrong = [
        f"{name} {list(found[name].shape)} instead of {list(size)}"
        for name, size in expected.items()
        if name in found and tuple(found[name].shape) != size
    ]
    problems = [
        f"{len(names)} {kind} ({', '.join(names[:SHOWN_NAMES])})"
        for kind, names in (("missing", missing), ("of another shape", wrong), ("unknown", unknown))
        if names
    ]
    if problems:
        raise CheckpointError(f"{where}: of {len(expected)} tensors {'; '.join(problems)}; wrong or damaged checkpoint")
