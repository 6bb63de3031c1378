"""Teaches TensorRT-LLM's PyTorch backend the speech-token LLM: Qwen2 with a small biased head.

`trtllm-serve --custom_module_dirs` imports this folder. Written to the documented interface of TensorRT-LLM 1.2.1 and
not run where it was written. Imports nothing of the project it comes from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensorrt_llm._torch.models.modeling_qwen import Qwen2ForCausalLM
from tensorrt_llm._torch.models.modeling_utils import register_auto_model
from torch.nn import functional

# Far below any logit, and finite, so that probabilities asked for can be written as JSON. It fits half precision.
IMPOSSIBLE_LOGIT = -30000.0


class SpeechHead(torch.nn.Module):
    """A linear layer whose outputs are a run of the vocabulary. Every rank has all of it: it is small."""

    def __init__(self, config: Any) -> None:
        """Make the head that a config describes."""
        super().__init__()
        self.ids_before = config.speech_head_first_id
        self.ids_after = config.vocab_size - config.speech_head_first_id - config.speech_head_rows
        self.vocab_size_padded = config.vocab_size  # the sampler's buffers are this wide
        shape = (config.speech_head_rows, config.hidden_size)
        self.weight = torch.nn.Parameter(torch.empty(shape, dtype=config.torch_dtype), requires_grad=False)
        self.bias = torch.nn.Parameter(torch.empty(shape[:1], dtype=config.torch_dtype), requires_grad=False)

    def forward(self, hidden: torch.Tensor, **_: Any) -> torch.Tensor:
        """Return logits [N, vocabulary] float32."""
        speech = functional.linear(hidden, self.weight, self.bias).float()
        return functional.pad(speech, (self.ids_before, self.ids_after), value=IMPOSSIBLE_LOGIT)

    def skip_forward(self, hidden: torch.Tensor, **_: Any) -> torch.Tensor:
        """Stand in for `forward` on ranks of a pipeline that have no head."""
        return hidden.new_empty((*hidden.shape[:-1], self.vocab_size_padded), dtype=torch.float32)

    def load_weights(self, weights: Sequence[Mapping[str, Any]], **_: Any) -> None:
        """Take weight and bias of `lm_head` from the checkpoint."""
        self.weight.data.copy_(weights[0]["weight"][:])
        self.bias.data.copy_(weights[0]["bias"][:])


@register_auto_model("SpeechQwen2ForCausalLM")
class SpeechQwen2ForCausalLM(Qwen2ForCausalLM):  # type: ignore[misc]  # not there where types are checked
    """Qwen2 that can say nothing but speech tokens."""

    def __init__(self, model_config: Any) -> None:
        """Make the model; the parent's whole-vocabulary head is dropped before it takes memory."""
        super().__init__(model_config)
        self.lm_head = SpeechHead(model_config.pretrained_config)
        self.epilogue = [self.lm_head]
