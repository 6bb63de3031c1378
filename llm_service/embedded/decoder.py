"""The Qwen2 decoder in plain torch: embedding, layers and last norm, on a cache of slots.

Computes what Transformers' `Qwen2Model` does, operation by operation, so that the logits are equal but for rounding; a
test compares them. The running service imports no Transformers: its import alone takes seconds of a CPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from llm_service.qwen2 import Qwen2Shape
from llm_service.speech_head import decoder_of


class SlotCache:
    """Key-value tensors [slots, key-value heads, positions, head size] of each layer, allocated once."""

    def __init__(self, shape: Qwen2Shape, slots: int, positions: int, device: torch.device, dtype: torch.dtype) -> None:
        """Allocate; `positions` is a slot's capacity in tokens."""
        self.slots = slots
        size = (slots, shape.key_value_heads, positions, shape.head_size)
        self._keys = [torch.zeros(size, device=device, dtype=dtype) for _ in range(shape.layers)]
        self._values = [torch.zeros(size, device=device, dtype=dtype) for _ in range(shape.layers)]
        self._slots = slice(0, 0)
        self._lengths: list[int] = []

    def view(self, slots: slice, lengths: list[int]) -> None:
        """Aim the next forward: row b of it is slot `slots.start + b`.

        Args:
            slots: neighbouring slots.
            lengths: places of its slot that row b reads, from 0, the new ones at their end; 0: it takes no part.
        """
        self._slots, self._lengths = slots, lengths

    def update(self, new_keys: torch.Tensor, new_values: torch.Tensor, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Write [B, heads, T, head size] keys and values in place; return those to attend to, as views."""
        keys, values = self._keys[layer][self._slots], self._values[layer][self._slots]
        new = new_keys.shape[2]
        for row, length in enumerate(self._lengths):
            if length:
                keys[row, :, length - new : length] = new_keys[row]
                values[row, :, length - new : length] = new_values[row]
        return keys, values

    def clear(self, slot: int) -> None:
        """Zero one slot, after a failure that may have left values there that are not finite."""
        for tensor in (*self._keys, *self._values):
            tensor[slot] = 0


def free_memory_bytes(device: torch.device) -> int:
    """Return how much of a device's memory is free; of the host's if it is the CPU."""
    if device.type == "cuda":
        free_bytes: int = torch.cuda.mem_get_info(device)[0]
        return free_bytes
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


_TYPICAL_ROWS = 4
"""Rows that oneDNN chooses its layout of a matrix for."""


class Linear:
    """A matrix [outputs, inputs] and, if there is one, its bias [outputs].

    In float32 on a CPU, the matrix lies in oneDNN's own layout: a product with few rows takes half of the time.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight, self._bias = weight, bias
        self._is_packed = weight.device.type == "cpu" and weight.dtype is torch.float32 and _has_onednn()
        if self._is_packed:
            self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _TYPICAL_ROWS)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return [..., outputs] of [..., inputs]."""
        if not self._is_packed:
            return functional.linear(inputs, self._weight, self._bias)
        made: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, self._weight, self._bias, "none", [], "")
        return made


def _has_onednn() -> bool:
    found: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return found


@dataclass(frozen=True)
class DecoderLayer:
    """The weights of one layer."""

    first_norm: Tensor  # [hidden]
    projections: Linear  # of queries, keys and values, in this order
    output: Linear
    second_norm: Tensor  # [hidden]
    gate_up: Linear  # gate, then up
    down: Linear


class Decoder:
    """Weights of the decoder, all on one device and in one computing type."""

    def __init__(self, shape: Qwen2Shape, take: Callable[[str], Tensor]) -> None:
        """Take every tensor once, by its name in Transformers' `Qwen2Model`; see `load_decoder`."""
        self.shape = shape
        self._embedding = take("embed_tokens.weight")
        self._layers = [_layer(take, f"layers.{index}.") for index in range(shape.layers)]
        self._norm = take("norm.weight")
        steps = torch.arange(0, shape.head_size, 2, dtype=torch.float) / shape.head_size
        self._frequencies = (1.0 / shape.rope_theta**steps).to(self._embedding.device)

    def forward(self, ids: Tensor, positions: Tensor, lengths: list[int], cache: SlotCache) -> Tensor:
        """Run tokens and write their keys and values.

        Args:
            ids: [B, T] int64.
            positions: [B, T] int64, of the tokens in their slots.
            lengths: places of its slot that row b attends to, causally, the T new ones included; 0: the row takes no
                part, and what is returned of it has no meaning.
            cache: aimed at the slots of the rows with `SlotCache.view`.

        Returns:
            [B, T, hidden] behind the last norm.
        """
        hidden = functional.embedding(ids, self._embedding)
        rotation = self._rotation(positions)
        for index, layer in enumerate(self._layers):
            attended = self._attend(index, layer, self._normed(hidden, layer.first_norm), rotation, lengths, cache)
            hidden = hidden + attended
            gate, up = layer.gate_up(self._normed(hidden, layer.second_norm)).chunk(2, dim=-1)
            hidden = hidden + layer.down(functional.silu(gate) * up)
        return self._normed(hidden, self._norm)

    def _attend(
        self,
        index: int,
        layer: DecoderLayer,
        inputs: Tensor,
        rotation: tuple[Tensor, Tensor],
        lengths: list[int],
        cache: SlotCache,
    ) -> Tensor:
        """Return the attention branch of a layer, [B, T, hidden]."""
        heads, groups = self.shape.heads, self.shape.key_value_heads
        split = (*inputs.shape[:2], -1, self.shape.head_size)
        parts = layer.projections(inputs).view(split).transpose(1, 2)
        turned = _rotated(parts[:, : heads + groups], *rotation)
        keys, values = cache.update(turned[:, heads:], parts[:, heads + groups :], index)
        attended = slot_attention(turned[:, :heads], keys, values, lengths)
        return layer.output(attended.flatten(2))

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosine and sine of the positions' angles, [B, 1, T, head size] each."""
        angles = positions[:, :, None].float() * self._frequencies
        both = torch.cat([angles, angles], dim=-1)[:, None]
        dtype = self._embedding.dtype
        return both.cos().to(dtype), both.sin().to(dtype)

    def _normed(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """Return the root-mean-square norm, computed in float32."""
        if hidden.dtype is torch.float32:
            return functional.rms_norm(hidden, hidden.shape[-1:], weight, self.shape.norm_epsilon)
        exact = hidden.float()
        exact = exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + self.shape.norm_epsilon)
        return weight * exact.to(hidden.dtype)


def load_decoder(
    shape: Qwen2Shape, files: Mapping[str, Tensor], where: Path, device: torch.device, dtype: torch.dtype
) -> Decoder:
    """Make a decoder of a checkpoint's tensors, by their Hugging Face names; those of the head are left.

    Raises:
        CheckpointError: tensors are missing, unknown or of another shape.
    """
    tensors = decoder_of(files, shape, where)
    # Each tensor is freed when it is converted: a large model is never in memory twice.
    return Decoder(shape, lambda name: tensors.pop(name).to(device, dtype))


def slot_attention(query: Tensor, key: Tensor, value: Tensor, lengths: list[int]) -> Tensor:
    """Causal grouped-query attention of each row over its own slot, read in place.

    Row by row: a row's sums then don't depend on how long its neighbours are. Query heads of one group become queries
    of one head, [heads, T, D] -> [key-value heads, group * T, D], so that keys and values needn't be repeated.

    Args:
        query: [B, heads, T, D].
        key: [B, key-value heads, at least the longest length, D], as is `value`.
        value: see `key`.
        lengths: row b's places in its slot, the T new ones included; 0 leaves the row out.

    Returns:
        [B, T, heads, D].
    """
    _, heads, new, size = query.shape
    key_heads = key.shape[1]
    groups = heads // key_heads
    outputs = query.new_zeros(query.shape)
    for row, length in enumerate(lengths):
        if not length:
            continue
        folded = query[row : row + 1].reshape(1, key_heads, groups * new, size)
        keys, values = key[row : row + 1, :, :length], value[row : row + 1, :, :length]
        mask = _causal_mask(new, length, groups, query.device) if new > 1 else None
        output = functional.scaled_dot_product_attention(folded, keys, values, attn_mask=mask)
        outputs[row] = output.reshape(heads, new, size)
    return outputs.transpose(1, 2)


def _causal_mask(new: int, length: int, groups: int, device: torch.device) -> Tensor:
    """Return [groups * new, length] bool: the last `new` places each see those up to themselves."""
    allowed = torch.ones(new, length, dtype=torch.bool, device=device).tril(length - new)
    return allowed.repeat(groups, 1)


def _rotated(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Return [B, heads, T, D] turned by rotary position embedding, whose pairs are channels i and i + D / 2."""
    first, second = heads.chunk(2, dim=-1)
    return heads * cosine + torch.cat([-second, first], dim=-1) * sine


def _layer(take: Callable[[str], Tensor], at: str) -> DecoderLayer:
    def joined(part: str, *names: str) -> Tensor:
        return torch.cat([take(f"{at}{name}.{part}") for name in names])

    projections = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    return DecoderLayer(
        first_norm=take(f"{at}input_layernorm.weight"),
        projections=Linear(joined("weight", *projections), joined("bias", *projections)),
        output=Linear(take(f"{at}self_attn.o_proj.weight")),
        second_norm=take(f"{at}post_attention_layernorm.weight"),
        gate_up=Linear(joined("weight", "mlp.gate_proj", "mlp.up_proj")),
        down=Linear(take(f"{at}mlp.down_proj.weight")),
    )
