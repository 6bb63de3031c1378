"""Training stage of the speaker encoder: which of the corpus's speakers a window is from."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from demo_voice.train.data import SpeechStreams
from demo_voice.train.precision import autocast
from demo_voice.train.sizes import SpeakerSizes
from demo_voice.train.speaker.model import MarginClassifier, SpeakerNet
from demo_voice.train.trainer import OneModel, mean_of
from demo_voice.train.voices import SPEAKERS

FEATURES = ("fbank",)
SHORTEST_TOKENS, LONGEST_TOKENS = 38, 100
"""1.5 to 4 s."""
RATE = 1e-3
_NOISE_SPREAD = 0.3
_VALIDATION_BATCHES = 8


class SpeakerStage(OneModel[nn.ModuleDict]):
    """Encoder and classifier."""

    name = "speaker"

    def __init__(self, sizes: SpeakerSizes, streams: SpeechStreams, batch: int) -> None:
        """Build on the streams' device."""
        self._streams, self._batch = streams, batch
        self._draw = torch.Generator().manual_seed(streams.seed)
        model = {"net": SpeakerNet(sizes), "classifier": MarginClassifier(len(SPEAKERS))}
        super().__init__(nn.ModuleDict(model).to(streams.device), RATE)

    def step(self, progress: float) -> Mapping[str, Tensor]:
        """Train on one batch of windows of one length."""
        self._model.train()
        losses = self._losses(self._model, is_validation=False)
        return self._updated(losses, progress)

    @torch.no_grad()
    def validate(self) -> Mapping[str, float]:
        """Measure loss and the share of right speakers on unseen audio."""
        model = self._average.eval()
        return mean_of(self._losses(model, is_validation=True) for _ in range(_VALIDATION_BATCHES))

    def _losses(self, model: nn.Module, is_validation: bool) -> dict[str, Tensor]:
        tokens = int(torch.randint(SHORTEST_TOKENS, LONGEST_TOKENS + 1, (), generator=self._draw))
        tokens = SHORTEST_TOKENS if is_validation else tokens
        windows = self._streams.draw(self._batch, tokens, is_validation, is_even=True)
        energies = self._streams.window("fbank", windows.starts, tokens).float()
        energies = energies - energies.mean(1, keepdim=True)
        if not is_validation:
            energies = energies + _NOISE_SPREAD * torch.randn_like(energies)
        own = windows.speakers.to(energies.device)
        with autocast(energies.device):
            embedding = model.get_submodule("net")(energies)
        loss, cosine = model.get_submodule("classifier")(embedding.float(), own)
        return {"loss": loss, "right": (cosine.argmax(1) == own).float().mean()}
