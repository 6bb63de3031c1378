"""The model class behind the plugin, written to vLLM 0.20.2; only the head differs from its Qwen2."""

from __future__ import annotations

from typing import Any

import torch
from vllm.distributed import get_pp_group
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM


class SpeechQwen2ForCausalLM(Qwen2ForCausalLM):  # type: ignore[misc]  # vLLM is not there where types are checked
    """Qwen2 that can say nothing but speech tokens."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        """Make the model; the head has as many rows as config.json says, and a bias."""
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        if not get_pp_group().is_last_rank:
            return  # the head lives on the last rank of a pipeline
        rows = self.config.speech_head_rows
        self.lm_head = ParallelLMHead(
            rows,
            self.config.hidden_size,
            bias=True,
            quant_config=self.quant_config,
            prefix=f"{prefix}.lm_head" if prefix else "lm_head",
        )
        self.logits_processor = LogitsProcessor(rows)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Return logits [N, vocabulary], minus infinity but for the head's ids; None where another rank gathers them.

        vLLM's sampler wants the vocabulary's whole width, so the few logits are put into a row of minus infinity: that
        writes 0.3 MB a sequence, where the whole head would read 284 MB a step.
        """
        speech: torch.Tensor | None = self.logits_processor(self.lm_head, hidden_states, self.lm_head.bias)
        if speech is None:
            return None
        first = self.config.speech_head_first_id
        logits = speech.new_full((*speech.shape[:-1], self.config.vocab_size), float("-inf"))
        logits[..., first : first + speech.shape[-1]] = speech
        return logits
