"""The LLM as it is trained: Transformers' Qwen2 decoder, with the tables and the head that the served form has."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from demo_voice.train.codes import CodeTable
from demo_voice.train.llm.data import CONTROL, SPEECH, TEXT, LLMBatch
from demo_voice.train.sizes import LLMSizes
from llm_service.qwen2 import ROPE_THETA
from llm_service.vocab import SPEECH_HEAD_ROWS

_HIDDEN_OF_CODES = 512


class TrainableLLM(nn.Module):
    """Embeddings of the three kinds of input, the decoder, the speech head with its bias."""

    def __init__(self, sizes: LLMSizes) -> None:
        super().__init__()
        from transformers import Qwen2Config, Qwen2Model

        # A mapping, as config.json is: its names are what all versions of Transformers read.
        config = Qwen2Config.from_dict(
            {
                "vocab_size": 1,  # the decoder's own table is not used
                "hidden_size": sizes.hidden,
                "intermediate_size": sizes.feed_forward,
                "num_hidden_layers": sizes.layers,
                "num_attention_heads": sizes.heads,
                "num_key_value_heads": sizes.key_value_heads,
                "max_position_embeddings": sizes.max_positions,
                "rope_theta": ROPE_THETA,
            }
        )
        config._attn_implementation = "sdpa"
        self.text_embedding = nn.Embedding(sizes.text_tokens, sizes.hidden)
        self.control_embedding = nn.Embedding(2, sizes.hidden)
        self.codes = CodeTable(sizes.hidden, _HIDDEN_OF_CODES)
        self.decoder: Any = Qwen2Model(config)
        self.head = nn.Linear(sizes.hidden, SPEECH_HEAD_ROWS)
        self._check_positions()

    def forward(self, batch: LLMBatch) -> Tensor:
        """Return hidden states [B, T, hidden]; rows are causal, so padding on the right changes nothing."""
        hidden: Tensor = self.decoder(inputs_embeds=self.embed(batch), use_cache=False).last_hidden_state
        return hidden

    def embed(self, batch: LLMBatch) -> Tensor:
        """Return the input rows [B, T, hidden]."""
        tables = {TEXT: self.text_embedding.weight, CONTROL: self.control_embedding.weight, SPEECH: self.codes()}
        joined = torch.cat([tables[kind] for kind in sorted(tables)])
        starts = torch.tensor([0, *(len(tables[kind]) for kind in (TEXT, CONTROL))], device=joined.device).cumsum(0)
        return functional.embedding(starts[batch.kinds] + batch.rows, joined)

    def _check_positions(self) -> None:
        """Transformers has renamed the setting once: a silent default would serve other positions than were trained."""
        frequencies: Tensor = self.decoder.rotary_emb.inv_freq
        size = self.decoder.config.hidden_size // self.decoder.config.num_attention_heads
        expected = ROPE_THETA ** (-2 / size)
        if not torch.isclose(frequencies[1], torch.tensor(expected), rtol=1e-4):
            raise RuntimeError(
                f"this Transformers gives rotary frequency {float(frequencies[1]):.4g}, expected {expected:.4g}; "
                "it reads rope_theta otherwise: use 4.57 or newer"
            )
