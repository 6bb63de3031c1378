"""Integer weights with a scale for each output channel, and how 4-bit ones are packed.

    int8   weight [out, in] int8                                              per_channel_scale [out]
    int4   weight [out / 2, in] int8: a byte holds rows 2i (low) and 2i + 1   per_channel_scale [out]

A weight is its integer times its channel's scale. The order is plain: linear weights of a TensorRT-LLM checkpoint are
[out, in], and the build puts them into the order that the GPU's kernels read (`llm_service.adapters`).

Source: TensorRT-LLM 1.2.1, docs/source/legacy/architecture/checkpoint.md (order), reference/precision.md (scales) and
quantization/functional.py (two's complement, low half first); scales differ: the largest weight becomes 127 or 7, so
that positive and negative ones err alike.
"""

from __future__ import annotations

import torch

from llm_service.export.trtllm_options import WeightOnly

NIBBLE_BITS = 4
LOW_NIBBLE = 0x0F
# A channel of zeros would have no scale, and anything times zero is right. Half precision can hold it.
SMALLEST_SCALE = 1e-7


def quantise_weight(
    weight: torch.Tensor, kind: WeightOnly, scale_dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise a matrix, symmetrically and each output channel by its own largest weight.

    Args:
        weight: [out, in], floating point.
        kind: int8 or int4; int4 needs an even number of output channels.
        scale_dtype: of the scales; the integers are chosen for the rounded scales.

    Returns:
        Integers, packed as above, and scales [out]. Each weight errs by half a scale at most.
    """
    largest = (1 << (kind.bits - 1)) - 1
    values = weight.float()
    scale = (values.abs().amax(dim=1) / largest).clamp(min=SMALLEST_SCALE).to(scale_dtype)
    integers = (values / scale.float()[:, None]).round().clamp(-largest, largest).to(torch.int8)
    return (pack_int4(integers) if kind is WeightOnly.INT4 else integers), scale


def dequantise_weight(integers: torch.Tensor, scale: torch.Tensor, kind: WeightOnly) -> torch.Tensor:
    """Return the matrix [out, in] float32 that packed integers and scales [out] stand for."""
    plain = unpack_int4(integers) if kind is WeightOnly.INT4 else integers
    return plain.float() * scale.float()[:, None]


def pack_int4(integers: torch.Tensor) -> torch.Tensor:
    """Pack rows in pairs: [out, in] int8 of -8..7 -> [out / 2, in] int8, the even row in the low half of the byte."""
    low, high = integers[0::2] & LOW_NIBBLE, integers[1::2] & LOW_NIBBLE
    return low | (high << NIBBLE_BITS)


def unpack_int4(packed: torch.Tensor) -> torch.Tensor:
    """Undo `pack_int4`: [out / 2, in] int8 -> [out, in] int8."""
    # Shifting up and down again copies the sign of four bits into eight.
    low = (packed << NIBBLE_BITS) >> NIBBLE_BITS
    return torch.stack([low, packed >> NIBBLE_BITS], dim=1).reshape(-1, packed.shape[1])
