"""The LLM as it is trained, and its stage: the next speech token.

Transformers' Qwen2 decoder, with the tables and the head that the served form has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from lab.train.models.llm_data import CONTROL, IGNORED, SPEECH, LLMBatch, UtteranceBank
from lab.train.models.tokenizer import CodeTable
from lab.train.replay import Inputs
from lab.train.sizes import LLMSizes
from lab.train.trainer import WARM_UP_STEPS, OneModel, autocast, mean_of
from llm_service.qwen2 import ROPE_THETA
from llm_service.vocab import COSYVOICE2

_HIDDEN_OF_CODES = 512


class TrainableLLM(nn.Module):
    """Embeddings of the three kinds of input, the decoder, the speech head with its bias."""

    def __init__(self, sizes: LLMSizes, dropout: float = 0.0) -> None:
        """Build it; `dropout` is the share of the inputs' and the blocks' values dropped in training mode."""
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
        self.head = nn.Linear(sizes.hidden, COSYVOICE2.head_rows)
        self._dropout = dropout
        if dropout:
            layers: Any = self.decoder.layers
            for layer in layers:
                layer.mlp.register_forward_hook(_dropping(dropout))
        self._check_positions()

    def forward(self, batch: LLMBatch) -> Tensor:
        """Return hidden states [B, T, hidden]; rows are causal, so padding on the right changes nothing."""
        # The layers one by one: the decoder's own forward looks into the positions on the host, to choose a mask.
        hidden = self.embed(batch)
        positions = torch.arange(hidden.shape[1], device=hidden.device)[None]
        turned = self.decoder.rotary_emb(hidden, positions)
        for layer in self.decoder.layers:
            hidden = layer(hidden, attention_mask=None, position_ids=positions, position_embeddings=turned)
        return torch.as_tensor(self.decoder.norm(hidden))

    def embed(self, batch: LLMBatch) -> Tensor:
        """Return the input rows [B, T, hidden]."""
        rows = functional.embedding(self.table_rows(batch.kinds, batch.rows), self.input_table())
        return functional.dropout(rows, self._dropout, self.training)

    def input_table(self) -> Tensor:
        """Return the rows of all kinds of input, one below the other, [rows, hidden]."""
        return torch.cat([self.text_embedding.weight, self.control_embedding.weight, self.codes()])

    def table_rows(self, kinds: Tensor, rows: Tensor) -> Tensor:
        """Return where rows of kinds, both [B, T], are in `input_table`."""
        before_control = self.text_embedding.num_embeddings
        before_speech = before_control + self.control_embedding.num_embeddings
        return rows + (kinds == CONTROL) * before_control + (kinds == SPEECH) * before_speech

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


def _dropping(share: float) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
    return lambda module, _inputs, output: functional.dropout(output, share, module.training)


RATE = 1e-3
_VALIDATION_BATCHES = 4
_DRAWERS = 6
"""Processes that put batches together: one would hold the GPU up."""
_AHEAD = 8


class LLMStage(OneModel[TrainableLLM]):
    """The LLM alone; the tokens were made before."""

    name = "llm"

    def __init__(
        self,
        sizes: LLMSizes,
        bank: UtteranceBank,
        device: torch.device,
        batch: int,
        dropout: float = 0.0,
        rate: float = RATE,
        warm_up: int = WARM_UP_STEPS,
    ) -> None:
        """Build on the device; the learning rate reaches `rate` after `warm_up` steps."""
        self._bank, self._device, self._batch = bank, device, batch
        workers = _DRAWERS if device.type == "cuda" else 0
        ahead = _AHEAD if workers else None
        drawn = DataLoader(
            _Drawn(bank, batch), None, num_workers=workers, prefetch_factor=ahead, pin_memory=workers > 0
        )
        self._drawn = iter(drawn)
        super().__init__(TrainableLLM(sizes, dropout).to(device), rate, warm_up)

    def step(self, progress: float) -> Mapping[str, Tensor]:
        """Train on one batch of sequences."""
        return self._replayed(self.name, next(self._drawn), progress, self._training_losses)

    @torch.no_grad()
    def validate(self) -> Mapping[str, float]:
        """Measure loss and the share of tokens guessed right, after right ones."""
        model = self._average.eval()
        batches = [self._bank.batch(self._batch, self._device, is_validation=True) for _ in range(_VALIDATION_BATCHES)]
        return mean_of(self._losses(model, batch) for batch in batches)

    def _training_losses(self, inputs: Inputs) -> dict[str, Tensor]:
        return self._losses(self._model, LLMBatch(**inputs))

    def _losses(self, model: TrainableLLM, batch: LLMBatch) -> dict[str, Tensor]:
        targets = batch.targets.flatten()[batch.asked]
        # The last places repeat one where nothing is asked.
        is_asked = targets != IGNORED
        with autocast(self._device):
            # Only where speech comes next: the head is most of the arithmetic.
            logits = model.head(model(batch).flatten(0, 1)[batch.asked])
        loss = functional.cross_entropy(logits.float(), targets, ignore_index=IGNORED)
        return {"loss": loss, "right": (logits.argmax(-1) == targets).sum() / is_asked.sum()}


class _Drawn(IterableDataset[dict[str, Tensor]]):
    """Batches without end, on the CPU; each process draws its own."""

    def __init__(self, bank: UtteranceBank, batch: int) -> None:
        self._bank, self._batch = bank, batch

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        worker = get_worker_info()
        if worker is not None:
            self._bank.split(worker.id)
        while True:
            yield vars(self._bank.batch(self._batch, torch.device("cpu")))
