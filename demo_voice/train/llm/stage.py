"""Training stage of the LLM: the next speech token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from demo_voice.train.llm.data import IGNORED, LLMBatch, UtteranceBank
from demo_voice.train.llm.model import TrainableLLM
from demo_voice.train.precision import autocast
from demo_voice.train.sizes import LLMSizes
from demo_voice.train.trainer import OneModel, mean_of

RATE = 1e-3
_VALIDATION_BATCHES = 4
_DRAWERS = 6
"""Processes that put batches together: one would hold the GPU up."""
_AHEAD = 8
_Parts = tuple[Tensor, Tensor, Tensor]


class LLMStage(OneModel[TrainableLLM]):
    """The LLM alone; the tokens were made before."""

    name = "llm"

    def __init__(self, sizes: LLMSizes, bank: UtteranceBank, device: torch.device, batch: int) -> None:
        """Build on the device."""
        self._bank, self._device, self._batch = bank, device, batch
        workers = _DRAWERS if device.type == "cuda" else 0
        ahead = _AHEAD if workers else None
        drawn = DataLoader(
            _Drawn(bank, batch), None, num_workers=workers, prefetch_factor=ahead, pin_memory=workers > 0
        )
        self._drawn = iter(drawn)
        super().__init__(TrainableLLM(sizes).to(device), RATE)

    def step(self, progress: float) -> Mapping[str, Tensor]:
        """Train on one batch of sequences."""
        parts = [part.to(self._device, non_blocking=True) for part in next(self._drawn)]
        losses = self._losses(self._model, LLMBatch(*parts))
        return self._updated(losses, progress)

    @torch.no_grad()
    def validate(self) -> Mapping[str, float]:
        """Measure loss and the share of tokens guessed right, after right ones."""
        model = self._average.eval()
        batches = [self._bank.batch(self._batch, self._device, is_validation=True) for _ in range(_VALIDATION_BATCHES)]
        return mean_of(self._losses(model, batch) for batch in batches)

    def _losses(self, model: TrainableLLM, batch: LLMBatch) -> dict[str, Tensor]:
        is_asked = batch.targets != IGNORED
        targets = batch.targets[is_asked]
        with autocast(self._device):
            # Only where speech comes next: the head is most of the arithmetic.
            logits = model.head(model(batch)[is_asked])
        loss = functional.cross_entropy(logits.float(), targets)
        return {"loss": loss, "right": (logits.argmax(-1) == targets).float().mean()}


class _Drawn(IterableDataset[_Parts]):
    """Batches without end, on the CPU; each process draws its own."""

    def __init__(self, bank: UtteranceBank, batch: int) -> None:
        self._bank, self._batch = bank, batch

    def __iter__(self) -> Iterator[_Parts]:
        worker = get_worker_info()
        if worker is not None:
            self._bank.split(worker.id)
        while True:
            batch = self._bank.batch(self._batch, torch.device("cpu"))
            yield batch.kinds, batch.rows, batch.targets
