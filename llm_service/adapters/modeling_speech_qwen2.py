"""Qwen2 for Transformers with a head of speech and end tokens only, its bias kept.

Lies in the model's directory; `AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=True)` loads it.
Imports nothing of the project it comes from.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from transformers import Qwen2ForCausalLM


class SpeechHead(torch.nn.Linear):
    """A linear layer whose outputs are a run of the vocabulary; all other ids are impossible."""

    def __init__(self, config: Any) -> None:
        """Make the head that a config describes."""
        super().__init__(config.hidden_size, config.speech_head_rows, bias=True)
        self.ids_before = config.speech_head_first_id
        self.ids_after = config.vocab_size - config.speech_head_first_id - config.speech_head_rows

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return logits [..., vocabulary]; minus infinity but for the head's own ids."""
        return functional.pad(super().forward(input), (self.ids_before, self.ids_after), value=float("-inf"))


class SpeechQwen2ForCausalLM(Qwen2ForCausalLM):  # type: ignore[no-untyped-call]
    """Qwen2 that can say nothing but speech tokens."""

    def __init__(self, config: Any) -> None:
        """Make the model; its weights come from `from_pretrained`."""
        untyped: Any = super()
        untyped.__init__(config)
        self.lm_head = SpeechHead(config)
        self.post_init()  # type: ignore[no-untyped-call]
