"""The speech-token LLM as TensorRT-LLM builds it into an engine: Qwen2 with a small biased head.

`trtllm-build --model_cls_file ... --model_cls_name SpeechQwen2ForCausalLM` loads this file. Written to the documented
interface of TensorRT-LLM 1.2.1 (later releases build no engines) and not run where it was written. Imports nothing of
the project it comes from, nor of the folder it lies in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensorrt_llm.functional import cast, pad
from tensorrt_llm.layers import ColumnLinear
from tensorrt_llm.models import QWenForCausalLM
from tensorrt_llm.quantization.functional import preprocess_weights_for_mixed_gemm

# Far below any logit, and finite, so that probabilities asked for can be written as JSON. It fits half precision.
IMPOSSIBLE_LOGIT = -30000.0
# How the engine's mixed-precision products read weights, by the checkpoint's quantization.
WEIGHT_ONLY_TYPES = {"W8A16": torch.int8, "W4A16": torch.quint4x2}

Weights = dict[str, torch.Tensor]


class SpeechHead(ColumnLinear):  # type: ignore[misc]  # not there where types are checked
    """A linear layer whose outputs are a run of the vocabulary."""

    def __init__(self, config: Any) -> None:
        """Make the head that a checkpoint's config describes."""
        super().__init__(
            config.hidden_size,
            config.speech_head_rows,
            bias=True,
            dtype=config.dtype,
            tp_group=config.mapping.tp_group,
            tp_size=config.mapping.tp_size,
            gather_output=True,
        )
        self.ids_before = config.speech_head_first_id
        self.ids_after = config.vocab_size - config.speech_head_first_id - config.speech_head_rows

    def forward(self, x: Any, *arguments: Any, **options: Any) -> Any:
        """Return logits [B, vocabulary] float32."""
        speech = cast(super().forward(x, *arguments, **options), "float32")
        return pad(speech, [self.ids_before, self.ids_after], value=IMPOSSIBLE_LOGIT)


class SpeechQwen2ForCausalLM(QWenForCausalLM):  # type: ignore[misc]  # not there where types are checked
    """Qwen2 that can say nothing but speech tokens."""

    def __init__(self, config: Any) -> None:
        """Make the model; the head lives on the last rank of a pipeline."""
        super().__init__(config)
        if config.mapping.is_last_pp_rank():
            self.lm_head = SpeechHead(config)

    @classmethod
    def from_checkpoint(
        cls,
        ckpt_dir: str,
        rank: int | None = None,
        config: Any = None,
        *,
        preprocess_weights_hook: Callable[[Weights], Weights] | None = None,
    ) -> Any:
        """Load a rank; integer weights are put into the order that this GPU's kernels read."""
        algorithm = str(config.quantization.quant_algo) if config is not None else ""

        def prepare(weights: Weights) -> Weights:
            if preprocess_weights_hook is not None:
                weights = preprocess_weights_hook(weights)
            return in_kernel_order(weights, WEIGHT_ONLY_TYPES.get(algorithm))

        return super().from_checkpoint(ckpt_dir, rank, config, preprocess_weights_hook=prepare)


def in_kernel_order(weights: Weights, weight_type: torch.dtype | None) -> Weights:
    """Turn integer weights as they lie in the checkpoint into what the engine's kernels read.

    Args:
        weights: a rank's tensors; int8 ones are [out, in], or [out / 2, in] with two 4-bit values a byte.
        weight_type: torch.int8 or torch.quint4x2; None leaves everything as it is.

    Returns:
        The tensors; integer ones as [in, out] or [in, out / 2], in the order of the GPU that builds.
    """
    if weight_type is None:
        return weights
    return {
        name: preprocess_weights_for_mixed_gemm(tensor.T.contiguous(), weight_type, torch.float16)
        if tensor.dtype == torch.int8
        else tensor
        for name, tensor in weights.items()
    }
