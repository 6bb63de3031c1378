"""What a TensorRT-LLM checkpoint can be made of, and which combinations TensorRT-LLM can't build; no tensors here.

Source: the documentation and source of TensorRT-LLM 1.2.1, named at each rule; not run where this was written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from llm_service.errors import ConfigError
from llm_service.qwen2 import Qwen2Shape

DTYPES = ("float16", "bfloat16", "float32")
# Rows and columns of a weight-only product come in runs of this many (quantization/layers.py, WeightOnlyQuantLinear);
# TensorRT-LLM pads others while it converts, which a finished checkpoint can't express.
WEIGHT_ONLY_MULTIPLE = 64


class WeightOnly(str, Enum):
    """Integer weights, activations as they are."""

    INT8 = "int8"
    INT4 = "int4"

    @property
    def bits(self) -> int:
        """Bits of a weight."""
        return 8 if self is WeightOnly.INT8 else 4


@dataclass(frozen=True)
class SmoothQuant:
    """Integer weights and activations (W8A8), outliers moved from activations into weights.

    Source: https://arxiv.org/abs/2211.10438.
    """

    alpha: float = 0.5  # how much of the difficulty moves, 0..1
    per_channel: bool = False  # a scale for each output channel, else one for the matrix
    per_token: bool = False  # activations are scaled anew for each token, else by one measured scale


@dataclass(frozen=True)
class TrtllmOptions:
    """How a checkpoint is cut into ranks and quantised."""

    dtype: str = "bfloat16"
    tp_size: int = 1
    pp_size: int = 1
    cp_size: int = 1
    weight_only: WeightOnly | None = None
    smooth_quant: SmoothQuant | None = None

    @property
    def world_size(self) -> int:
        """GPUs that run it."""
        return self.tp_size * self.pp_size * self.cp_size

    @property
    def quant_algorithm(self) -> str | None:
        """TensorRT-LLM's name of the quantisation."""
        if self.weight_only is not None:
            return "W8A16" if self.weight_only is WeightOnly.INT8 else "W4A16"
        if self.smooth_quant is None:
            return None
        if not self.smooth_quant.per_token:
            return f"W8A8_SQ_{'PER_CHANNEL_PER_TENSOR' if self.smooth_quant.per_channel else 'PER_TENSOR'}_PLUGIN"
        return f"W8A8_SQ_{'PER_CHANNEL' if self.smooth_quant.per_channel else 'PER_TENSOR'}_PER_TOKEN_PLUGIN"


def check_options(options: TrtllmOptions, shape: Qwen2Shape) -> None:
    """Check that TensorRT-LLM can build what is asked for.

    Raises:
        ConfigError: it can't; the message lists every reason.
    """
    problems = [*_sizes(options, shape), *_quantisation(options), *_weight_only_sizes(options, shape)]
    if problems:
        raise ConfigError("TensorRT-LLM can't build this: " + "; ".join(problems))


def _sizes(options: TrtllmOptions, shape: Qwen2Shape) -> Iterator[str]:
    tp, pp, cp = options.tp_size, options.pp_size, options.cp_size
    if min(tp, pp, cp) < 1:
        yield f"tp_size {tp}, pp_size {pp} and cp_size {cp} must be 1 or more"
        return
    if options.dtype not in DTYPES:
        yield f"dtype is {options.dtype!r}, expected one of {', '.join(DTYPES)}"
    # mapping.py: without other settings the context is split by heads, so attention is cut tp x cp times.
    parts = tp * cp
    if shape.heads % parts:
        yield f"tp_size x cp_size is {parts}, which must divide {shape.heads} heads"
    if shape.key_value_heads % parts and parts % shape.key_value_heads:
        heads = shape.key_value_heads
        yield f"tp_size x cp_size is {parts}, which must divide {heads} key-value heads or be a multiple of them"
    if shape.feed_forward % tp:
        yield f"tp_size is {tp}, which must divide the feed-forward size {shape.feed_forward}"
    # mapping.py, pp_layers: any number of stages up to the number of layers.
    if pp > shape.layers:
        yield f"pp_size is {pp}, the model has {shape.layers} layers"


def _quantisation(options: TrtllmOptions) -> Iterator[str]:
    smooth = options.smooth_quant
    if options.weight_only is not None and smooth is not None:
        yield "weight-only and SmoothQuant exclude each other: a checkpoint has one quant_algo"
    # precision.md: weight-only activations are FP16 or BF16.
    if options.weight_only is not None and options.dtype == "float32":
        yield "weight-only needs dtype float16 or bfloat16"
    if smooth is None:
        return
    if not 0.0 <= smooth.alpha <= 1.0:
        yield f"the SmoothQuant alpha is {smooth.alpha}, expected 0..1"
    # The SmoothQuant attention layer takes no part of a context (quantization/layers.py, SmoothQuantAttention).
    if options.cp_size > 1:
        yield f"SmoothQuant needs cp_size 1, got {options.cp_size}"


def _weight_only_sizes(options: TrtllmOptions, shape: Qwen2Shape) -> Iterator[str]:
    if options.weight_only is None or any(_sizes(options, shape)):
        return
    tp = options.tp_size
    key_value = max(shape.key_value_heads // tp, 1) * shape.head_size
    sizes = {
        "hidden size": shape.hidden,
        "heads of a rank": shape.hidden // tp,
        "queries, keys and values of a rank": shape.hidden // tp + 2 * key_value,
        "feed-forward size of a rank": shape.feed_forward // tp,
    }
    for name, size in sizes.items():
        if size % WEIGHT_ONLY_MULTIPLE:
            yield f"weight-only needs multiples of {WEIGHT_ONLY_MULTIPLE}; {name}: {size} channels"
