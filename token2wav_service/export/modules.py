"""The graphs as modules: the project's own models behind the flat inputs and outputs that `graphs` describes.

Arguments and results stand in the order of the descriptions. A module of precision None is the plain float32 model,
which the exported ones are compared with. `Models` loads a checkpoint's, `module_for` picks one.

In another precision, as a graph for a strongly typed runtime must say it node by node, linear layers, convolutions and
attention's two products take their operands in the graph's type and give float32 back. Everything between them is
float32: norms, softmax, activations, residual sums. The time embedding and its modulations, small and sensitive, are
float32 altogether. A cache and what is appended to it keep the graph's type.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from token2wav_service.checkpoint import loader
from token2wav_service.graphs import ROTARY_FRAMES, VOCODER, GraphSpec, Precision
from token2wav_service.models.causal import block_ends, valid_mask
from token2wav_service.models.flow.any_flow import AnyFlow
from token2wav_service.models.flow.cfm import EstimatorHistory
from token2wav_service.models.flow.rotary_dit import RotaryDiT, rotation_table
from token2wav_service.models.vocoder.causal_hift import CausalHiFT
from token2wav_service.models.vocoder.hift import HiFT, fold_weight_norm
from token2wav_service.runtime.tensorrt.planned import torch_dtype

M = TypeVar("M", bound=nn.Module)

FLOAT32_PARTS = ("t_embedder", "adaLN_modulation", "time_mlp", "mlp.1", "attn_norm", "norm_out")
"""Modules whose layers stay in float32, by a part of their name: the time's embedding in the DiT and in the other two,
and what is made of it in the DiT, in the U-Net's resnets and in the rotary DiT."""
_PRODUCTS = (nn.Linear, nn.Conv1d, nn.ConvTranspose1d)
BEYOND = 8
"""Columns of a table behind the last one that may be asked for: the tracer goes one token beyond."""


class EstimatorChunk(nn.Module):
    """The DiT over [prompt | window | own chunk]; inputs and outputs as `graphs` describes them."""

    def __init__(self, estimator: nn.Module, precision: Precision | None) -> None:
        super().__init__()
        self.estimator, self.precision = _converted(estimator, precision), precision

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return velocity, chunk_kv and new_tail."""
        x, mu, speaker, cond, time, lengths, *block = inputs[:-6]
        prompt_kv, prompt_valid, prompt_row, window_kv, window_valid, tail = inputs[-6:]
        before = torch.cat([prompt_valid.index_select(0, prompt_row), window_valid], 1)
        mask, where = self.mask(before, valid_mask(lengths, x.shape[2])), self.positions(x, *block)
        # The estimators only iterate over the layers: joined one by one, one layer's keys are alive at a time.
        history = EstimatorHistory(cast(Tensor, list(_joined(prompt_kv, prompt_row, window_kv))), tail)
        committed = block[0] if block else lengths
        with nullcontext() if self.precision is None else MixedPrecision(self.precision):
            velocity, own = self.estimator(x, mu, speaker, cond, time, mask, committed, history, **where)
        return velocity, own.kv.to(window_kv.dtype), own.tail.to(tail.dtype)

    def mask(self, before: Tensor, own: Tensor) -> Tensor:
        """Return [rows, 1, 1 or T, before + T]: all that was before, and the chunk."""
        return torch.cat([before, own], 1)[:, None, None, :]

    def positions(self, x: Tensor, *block: Tensor) -> dict[str, Tensor]:
        """Return what the estimator takes to know where the chunk stands."""
        return {}


class UNetChunk(EstimatorChunk):
    """CosyVoice2's U-Net under the block mask.

    The end of each column's block is in a table, because TensorRT divides no whole numbers.
    """

    def __init__(self, estimator: nn.Module, precision: Precision | None, block: int, longest_chunk: int) -> None:
        super().__init__(estimator, precision)
        self.register_buffer("ends", block_ends(longest_chunk + BEYOND, block), persistent=False)
        self.ends: Tensor

    def mask(self, before: Tensor, own: Tensor) -> Tensor:
        """See `EstimatorChunk.mask`; each column sees the chunk to its own block's end."""
        size = own.shape[1]
        in_block = torch.arange(size, device=own.device)[None, :] < self.ends[:size, None]
        seen = own[:, None, :] & in_block[None]
        return torch.cat([before[:, None, :].expand(-1, size, -1), seen], 2)[:, None]


class RotaryChunk(UNetChunk):
    """CosyVoice3's DiT under the block mask.

    A table holds every frame's rotation, because angles need float64 and TensorRT has none; the plain model makes them.
    """

    def __init__(self, estimator: RotaryDiT, precision: Precision | None, block: int, longest_chunk: int) -> None:
        super().__init__(estimator, precision, block, longest_chunk)
        table = rotation_table(None, ROTARY_FRAMES, estimator.config.head_dim, like=torch.zeros(1))[0]
        self.register_buffer("rotations", table, persistent=False)
        self.rotations: Tensor

    def positions(self, x: Tensor, *block: Tensor) -> dict[str, Tensor]:
        """See `EstimatorChunk.positions`."""
        first_frames = block[1]
        if self.precision is None:
            return {"first_frames": first_frames}
        frames = first_frames[:, None] + torch.arange(x.shape[2], device=x.device)
        taken = self.rotations.index_select(0, frames.flatten())
        return {"rotation": taken.view(*frames.shape, *taken.shape[1:])}


class VocoderStack(nn.Module):
    """A vocoder's convolutions, from the source's STFT to the inverse STFT's input."""

    def __init__(self, hift: HiFT | CausalHiFT, precision: Precision | None) -> None:
        super().__init__()
        self.hift, self.precision = _converted(hift, precision), precision

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return what `spectra` of the vocoder does."""
        with nullcontext() if self.precision is None else MixedPrecision(self.precision):
            return self.hift.spectra(*inputs)


class Models:
    """A checkpoint's models, float32 on the CPU, each loaded once and only when it is needed."""

    def __init__(self, model_dir: Path) -> None:
        self._model_dir = model_dir

    @cached_property
    def flow(self) -> AnyFlow:
        """The flow."""
        return loader.load_flow(self._model_dir)

    @cached_property
    def hift(self) -> HiFT | CausalHiFT:
        """The vocoder with its weight norms folded."""
        return fold_weight_norm(loader.load_vocoder(self._model_dir))


def module_for(spec: GraphSpec, models: Models, *, is_plain: bool = False) -> nn.Module:
    """Return the module of a graph, in eval mode.

    Args:
        is_plain: return the plain float32 model behind the same inputs instead, for comparing.
    """
    precision: Precision | None = None if is_plain else spec.precision
    if spec.name == VOCODER:
        return VocoderStack(models.hift, precision).eval()
    return estimator_module(models.flow, precision, spec.ranges["chunk_frames"].max).eval()


def estimator_module(flow: AnyFlow, precision: Precision | None, longest_chunk: int) -> nn.Module:
    """Return the chunk form of a flow's estimator, for chunks of so many mel frames at most."""
    estimator: nn.Module = flow.decoder.estimator
    if not flow.block_tokens:
        return EstimatorChunk(estimator, precision)
    block = flow.block_tokens * flow.stride
    if isinstance(estimator, RotaryDiT):
        return RotaryChunk(estimator, precision, block, longest_chunk)
    return UNetChunk(estimator, precision, block, longest_chunk)


def _converted(module: M, precision: Precision | None) -> M:
    return module if precision is None else in_precision(module, precision)


def _joined(prompt_kv: Tensor, prompt_row: Tensor, window_kv: Tensor) -> Iterator[Tensor]:
    """Yield each layer's [rows, h, prompt + window, 2d] history."""
    for prompt, window in zip(prompt_kv.unbind(0), window_kv.unbind(0), strict=True):
        yield torch.cat([prompt.index_select(0, prompt_row), window], 2)


def in_precision(module: M, precision: Precision) -> M:
    """Return a copy whose linear and convolution weights have the graph's type; to be run under `MixedPrecision`."""
    copied = copy.deepcopy(module)
    for name, layer in copied.named_modules():
        if isinstance(layer, _PRODUCTS) and not any(f".{part}." in f".{name}." for part in FLOAT32_PARTS):
            layer.to(torch_dtype(precision.value))
    return copied


class MixedPrecision(TorchFunctionMode):
    """While it is entered, products run in one type and everything else in float32."""

    def __init__(self, precision: Precision) -> None:
        super().__init__()
        self.dtype = torch_dtype(precision.value)
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
