"""The vocoders' convolutions in a TensorRT engine; all around them stays as without it."""

from __future__ import annotations

import torch
from torch import Tensor

from token2wav_service.models.vocoder.causal_hift import CausalHiFT
from token2wav_service.models.vocoder.hift import HiFT
from token2wav_service.runtime.slots.vocoder_network import VocoderNetwork
from token2wav_service.runtime.tensorrt.planned import PlannedEngine, VocoderSizes


class TensorRTNetwork(VocoderNetwork):
    """Computes `spectra` in the engine where it was planned for the size; the fused kernels compute other sizes."""

    def __init__(self, hift: HiFT, dtype: torch.dtype, engine: PlannedEngine[VocoderSizes]) -> None:
        """Pack the weights of what the engine does not hold.

        Args:
            hift: as for `VocoderNetwork`.
            dtype: of the fused kernels' products, and of the mel and spectrum that come in.
            engine: of the graph `vocoder`.
        """
        super().__init__(hift, dtype)
        self._engine = engine

    def spectra(self, mel: Tensor, spectrum: Tensor, lengths: Tensor) -> Tensor:
        """See `VocoderNetwork.spectra`."""
        sizes = VocoderSizes(mel.shape[0], mel.shape[1])
        if sizes not in self._engine.sizes:
            return super().spectra(mel, spectrum, lengths)
        bound = self._engine.bind(sizes)
        tensors = bound.tensors
        tensors["mel"].copy_(mel.transpose(1, 2))
        # The fused kernels' spectrum has padded channels.
        tensors["spectrum"].copy_(spectrum[:, :, : tensors["spectrum"].shape[1]].transpose(1, 2))
        tensors["lengths"].copy_(lengths)
        bound.run()
        return tensors["spectra"].transpose(1, 2).contiguous()


class TensorRTSpectra:
    """Stands where `CausalHiFT.spectra` stands; the model itself computes sizes that the engine is not planned for."""

    def __init__(self, hift: CausalHiFT, engine: PlannedEngine[VocoderSizes]) -> None:
        self._hift, self._engine = hift, engine

    def __call__(
        self, mel: Tensor, spectrum: Tensor, frames: Tensor, is_first: Tensor, context: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See `CausalHiFT.spectra`; what is returned is valid until the next call."""
        sizes = VocoderSizes(mel.shape[0], mel.shape[2])
        if sizes not in self._engine.sizes:
            return self._hift.spectra(mel, spectrum, frames, is_first, context)
        bound = self._engine.bind(sizes)
        inputs = {"mel": mel, "spectrum": spectrum, "lengths": frames, "is_first": is_first, "context": context}
        for name, value in inputs.items():
            bound.tensors[name].copy_(value)
        bound.run()
        return bound.tensors["spectra"], bound.tensors["new_context"]
