"""Runs the models' products in a smaller type, as the graph for a strongly typed runtime must say it node by node.

Linear layers, convolutions and attention's two products take their operands in the graph's type and give
float32 back. Everything between them is float32: norms, softmax, activations, residual sums. The time embedding and
its modulations, small and sensitive, are float32 altogether. A cache and what is appended to it keep the graph's type.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from token2wav_service.graphs.spec import Precision

M = TypeVar("M", bound=nn.Module)

FLOAT32_PARTS = ("t_embedder", "adaLN_modulation", "time_mlp", "mlp.1", "attn_norm", "norm_out")
"""Modules whose layers stay in float32, by a part of their name: the time's embedding in the DiT and in the other two,
and what is made of it in the DiT, in the U-Net's resnets and in the rotary DiT."""
DTYPES = {Precision.FLOAT32: torch.float32, Precision.FLOAT16: torch.float16}
"""Torch's types of products and caches."""
_PRODUCTS = (nn.Linear, nn.Conv1d, nn.ConvTranspose1d)


def in_precision(module: M, precision: Precision) -> M:
    """Return a copy whose linear and convolution weights have the graph's type; to be run under `MixedPrecision`."""
    copied = copy.deepcopy(module)
    for name, layer in copied.named_modules():
        if isinstance(layer, _PRODUCTS) and not any(f".{part}." in f".{name}." for part in FLOAT32_PARTS):
            layer.to(DTYPES[precision])
    return copied


class MixedPrecision(TorchFunctionMode):
    """While it is entered, products run in one type and everything else in float32."""

    def __init__(self, precision: Precision) -> None:
        super().__init__()
        self.dtype = DTYPES[precision]
        self._rules: Mapping[Any, Callable[..., Tensor]] = {
            functional.linear: _like_weight(functional.linear),
            functional.conv1d: _like_weight(functional.conv1d),
            functional.conv_transpose1d: _like_weight(functional.conv_transpose1d),
            functional.scaled_dot_product_attention: self._attention,
            torch.cat: self._cat,
        }

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self._rules.get(func, func)(*args, **(kwargs or {}))

    def _attention(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor) -> Tensor:
        # The scale comes first: TensorRT fuses only this order.
        scaled = query * (1 / math.sqrt(query.shape[-1]))
        scores = self._matmul(scaled, key.transpose(-1, -2))
        # The smallest number, not minus infinity: a row without any valid key stays finite.
        lowest = torch.finfo(torch.float32).min
        seen = scores.masked_fill(~attn_mask, lowest) if attn_mask.dtype == torch.bool else scores + attn_mask
        return self._matmul(functional.softmax(seen, -1), value)

    def _cat(self, tensors: Any, dim: int = 0) -> Tensor:
        parts = list(tensors)
        if len({part.dtype for part in parts}) > 1:
            parts = [part.to(self.dtype) for part in parts]
        return torch.cat(parts, dim)

    def _matmul(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.matmul(left.to(self.dtype), right.to(self.dtype)).float()


def _like_weight(product: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the product with its input cast to the weight's type and its result to float32."""

    def run(x: Tensor, weight: Tensor, *arguments: Any, **options: Any) -> Tensor:
        return product(x.to(weight.dtype), weight, *arguments, **options).float()

    return run
