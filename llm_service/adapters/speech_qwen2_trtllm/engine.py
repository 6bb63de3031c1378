"""The speech-token LLM as TensorRT-LLM builds it into an engine: Qwen2 with a small biased head.

`trtllm-build --model_cls_file ... --model_cls_name SpeechQwen2ForCausalLM` loads this file. Written to the documented
interface of TensorRT-LLM 1.2.1 (later releases build no engines) and not run where it was written. Imports nothing of
the project it comes from, nor of the folder it lies in.
"""

from __future__ import annotations

from typing import Any

from tensorrt_llm.functional import cast, pad
from tensorrt_llm.layers import ColumnLinear
from tensorrt_llm.models import QWenForCausalLM

# Far below any logit, and finite, so that probabilities asked for can be written as JSON. It fits half precision.
IMPOSSIBLE_LOGIT = -30000.0


class SpeechHead(ColumnLinear):  # type: ignore[misc]  # not there where types are checked
    """A linear layer whose outputs are a run of the vocabulary."""

    def __init__(self, config: Any) -> None:
        """Make the head that a checkpoint's config describes."""
        super().__init__(config.hidden_size, config.speech_head_rows, bias=True, dtype=config.dtype)
        self.ids_before = config.speech_head_first_id
        self.ids_after = config.vocab_size - config.speech_head_first_id - config.speech_head_rows

    def forward(self, x: Any, *arguments: Any, **options: Any) -> Any:
        """Return logits [B, vocabulary] float32."""
        speech = cast(super().forward(x, *arguments, **options), "float32")
        return pad(speech, [self.ids_before, self.ids_after], value=IMPOSSIBLE_LOGIT)


class SpeechQwen2ForCausalLM(QWenForCausalLM):  # type: ignore[misc]  # not there where types are checked
    """Qwen2 that can say nothing but speech tokens."""

    def __init__(self, config: Any) -> None:
        """Make the model."""
        super().__init__(config)
        self.lm_head = SpeechHead(config)
