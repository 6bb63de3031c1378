"""A model held in memory, and the files of ranks put together again: the way back from what the converter writes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from llm_service.export.layer import Rank
from llm_service.export.smooth_quant import SmoothedLayer
from llm_service.export.source import SpeechLMSource
from llm_service.export.trtllm_options import TrtllmOptions
from llm_service.export.trtllm_weights import rank_tensors
from llm_service.qwen2 import Qwen2Shape, decoder_tensors
from llm_service.speech_head import SpeechHead
from llm_service.vocab import SPEECH_HEAD_ROWS

Tensors = dict[str, torch.Tensor]

# Wide enough for weight-only products on two ranks; fewer key-value heads than four ranks.
WIDE = Qwen2Shape(
    hidden=256,
    feed_forward=384,
    layers=3,
    heads=4,
    key_value_heads=2,
    max_positions=512,
    norm_epsilon=1e-6,
    rope_theta=1e6,
)
EMBEDDING_ROWS = 16  # the converter copies the table as it is


def wide_source(seed: int) -> SpeechLMSource:
    """Return a random model of `WIDE` sizes, in float32."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator) * size[-1] ** -0.5

    decoder = {name: normal(*size) for name, size in decoder_tensors(WIDE).items()}
    head = SpeechHead(normal(SPEECH_HEAD_ROWS, WIDE.hidden), normal(SPEECH_HEAD_ROWS), has_bias=True)
    return SpeechLMSource(WIDE, decoder, normal(EMBEDDING_ROWS, WIDE.hidden), head, {})


def whole_layer(stages: list[list[Tensors]], index: int, shape: Qwen2Shape) -> Tensors:
    """Return layer `index` in one piece, by TensorRT-LLM's names within the layer.

    Args:
        stages: tensors of each rank, [pipeline stage][tensor rank].
        index: of the whole model.
        shape: the model's sizes.
    """
    for stage in stages:
        prefixes = sorted({name.split(".")[2] for name in stage[0] if name.startswith("transformer.layers.")}, key=int)
        if index < len(prefixes):
            prefix = f"transformer.layers.{index}."
            parts = [
                {name.removeprefix(prefix): tensor for name, tensor in rank.items() if name.startswith(prefix)}
                for rank in stage
            ]
            return {name: _joined(name, [part[name] for part in parts], shape) for name in parts[0]}
        index -= len(prefixes)
    raise AssertionError("no stage has that layer")


def _joined(name: str, parts: list[torch.Tensor], shape: Qwen2Shape) -> torch.Tensor:
    if parts[0].numel() == 1:
        return parts[0]
    if name.startswith("attention.qkv."):
        return _joined_qkv(parts, shape, dim=1 if parts[0].ndim == 2 and parts[0].shape[0] == 1 else 0)
    if name in ("attention.dense.weight", "mlp.proj.weight", "attention.dense.smoother", "mlp.proj.smoother"):
        return torch.cat(parts, dim=1)
    if name in ("mlp.fc.weight", "mlp.gate.weight"):
        return torch.cat(parts)
    if name in ("mlp.fc.per_channel_scale", "mlp.gate.per_channel_scale"):
        return torch.cat(parts, dim=parts[0].ndim - 1)
    return parts[0]


def _joined_qkv(parts: list[torch.Tensor], shape: Qwen2Shape, dim: int) -> torch.Tensor:
    """Join what has a row for each query, key and value channel; a head that several ranks hold is taken once."""
    queries = shape.hidden // len(parts)
    own_heads = max(shape.key_value_heads // len(parts), 1)
    copies = max(len(parts) // shape.key_value_heads, 1)
    packing = (queries + 2 * own_heads * shape.head_size) // parts[0].shape[dim]  # 2 where bytes hold two rows
    sizes = [size // packing for size in (queries, own_heads * shape.head_size, own_heads * shape.head_size)]
    split = [torch.split(part, sizes, dim=dim) for part in parts]
    joined = [torch.cat([part[0] for part in split], dim=dim)]
    joined += [torch.cat([part[kind] for part in split[::copies]], dim=dim) for kind in (1, 2)]
    return torch.cat(joined, dim=dim)


def all_ranks(
    source: SpeechLMSource, options: TrtllmOptions, smoothed: Sequence[SmoothedLayer] | None = None
) -> list[list[Tensors]]:
    """Return the tensors of every rank, [pipeline stage][tensor rank]."""
    return [
        [rank_tensors(source, options, Rank(tensor, stage), smoothed) for tensor in range(options.tp_size)]
        for stage in range(options.pp_size)
    ]
