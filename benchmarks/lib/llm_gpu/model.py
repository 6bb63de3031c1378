"""A random LLM of the official sizes on a GPU, the engine on it, and its float32 reference."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from llm_service.checkpoint import LOGIT_STD, OFFICIAL_LLM
from llm_service.embedded.answer import WAIT_SHARE
from llm_service.embedded.sampling import RepetitionGuard
from llm_service.gpu.build import GpuEngineOptions
from llm_service.gpu.ops import RotaryTables
from llm_service.gpu.weights import LayerWeights, Weights
from llm_service.vocab import COSYVOICE2

CONTEXT_TOKENS = 2048
"""Longest prompt plus answer in these measurements."""


def random_weights(device: torch.device, dtype: torch.dtype, seed: int) -> Weights:
    """Make weights of the official sizes, spread as `make_random_llm` spreads them."""
    shape = OFFICIAL_LLM
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*size: int) -> Tensor:
        spread: float = size[-1] ** -0.5
        return (torch.randn(*size, device=device, generator=generator) * spread).to(dtype)

    def layer() -> LayerWeights:
        hidden, ffn, qkv = shape.hidden, shape.feed_forward, shape.hidden + 2 * shape.key_value_size
        ones = torch.ones(hidden, device=device)
        return LayerWeights(
            first_norm=ones,
            qkv=normal(qkv, hidden),
            qkv_bias=normal(qkv).float(),
            output=normal(hidden, hidden),
            second_norm=ones,
            gate_up=normal(2 * ffn, hidden),
            down=normal(hidden, ffn),
        )

    head = torch.randn(COSYVOICE2.head_rows, shape.hidden, device=device, generator=generator)
    table = torch.randn(COSYVOICE2.table_rows, shape.hidden, device=device, generator=generator)
    return Weights(
        shape=shape,
        vocabulary=COSYVOICE2,
        embedding=table.to(dtype),
        layers=tuple(layer() for _ in range(shape.layers)),
        norm=torch.ones(shape.hidden, device=device),
        head=(head * LOGIT_STD * shape.hidden**-0.5).to(dtype),
        head_bias=torch.randn(COSYVOICE2.head_rows, device=device, generator=generator) * 0.1,
    )


def options(slots: int, wait_share: float = WAIT_SHARE) -> GpuEngineOptions:
    """Return the options under which everything here runs: the service's own, apart from the slots."""
    return GpuEngineOptions(
        device=torch.device("cuda"),
        dtype=torch.bfloat16,
        slots=slots,
        max_sequence_tokens=CONTEXT_TOKENS,
        memory_share=0.4,
        guard=RepetitionGuard(),
        wait_share=wait_share,
    )


@dataclass(frozen=True)
class Reference:
    """The same weights, computed in float32 by plain torch: no kernels, no cache, no batches of the engine's."""

    weights: Weights

    @torch.inference_mode()
    def logits(self, token_ids: Tensor, first: int) -> Tensor:
        """Return the logits after each token from `first` on.

        Args:
            token_ids: [B, T] LLM ids.
            first: position.

        Returns:
            [B, T - first, rows] float32.
        """
        weights, shape = self.weights, self.weights.shape
        length = token_ids.shape[1]
        rotary = RotaryTables.make(shape, length, token_ids.device)
        hidden = weights.embedding[token_ids].float()
        for layer in weights.layers:
            hidden = hidden + self._attend(layer, self._norm(hidden, layer.first_norm), rotary)
            inner = self._norm(hidden, layer.second_norm) @ layer.gate_up.float().T
            hidden = hidden + (functional.silu(inner[..., 0::2]) * inner[..., 1::2]) @ layer.down.float().T
        last = self._norm(hidden[:, first:], weights.norm)
        return last @ weights.head.float().T + weights.head_bias

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        square = hidden.square().mean(-1, keepdim=True)
        return hidden * torch.rsqrt(square + self.weights.shape.norm_epsilon) * weight

    def _attend(self, layer: LayerWeights, normed: Tensor, rotary: RotaryTables) -> Tensor:
        shape = self.weights.shape
        rows, length, _ = normed.shape
        heads = (normed @ layer.qkv.float().T + layer.qkv_bias).view(rows, length, -1, shape.head_size).transpose(1, 2)
        first_value = shape.heads + shape.key_value_heads
        queries = _turned(heads[:, : shape.heads], rotary)
        keys, values = _turned(heads[:, shape.heads : first_value], rotary), heads[:, first_value:]
        mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)
        return mixed.transpose(1, 2).reshape(rows, length, -1) @ layer.output.float().T


def _turned(heads: Tensor, rotary: RotaryTables) -> Tensor:
    return heads * rotary.cosines + heads.roll(heads.shape[-1] // 2, -1) * rotary.sines
