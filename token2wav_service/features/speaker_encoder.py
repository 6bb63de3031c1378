"""CAM++ speaker embedding through ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from token2wav_service.errors import CheckpointError
from token2wav_service.features.mel import speaker_fbank
from token2wav_service.features.onnx_session import open_session
from token2wav_service.types import FloatArray

FILE_NAME = "campplus.onnx"
EMBEDDING_SIZE = 192


class SpeakerEncoder:
    """Loads campplus.onnx once; safe to call from several threads."""

    def __init__(self, path: Path, threads: int = 1) -> None:
        self._path = path
        self._session = open_session(path, threads)
        self._input = self._session.get_inputs()[0].name

    def embed(self, samples: FloatArray) -> FloatArray:
        """Map [N] samples at 16 kHz (at least 400) to the raw [192] embedding."""
        return self.embed_fbank(speaker_fbank(samples))

    def embed_fbank(self, fbank: FloatArray) -> FloatArray:
        """Map [T, 80] mean-subtracted log energies to the raw [192] embedding.

        Raises:
            CheckpointError: the model answers with another size.
        """
        (embedding,) = self._session.run(None, {self._input: fbank[None]})
        flat: FloatArray = np.asarray(embedding, np.float32).reshape(-1)
        if flat.shape != (EMBEDDING_SIZE,):
            raise CheckpointError(f"{self._path} gave {np.shape(embedding)}, expected [1, {EMBEDDING_SIZE}]: not CAM++")
        return flat
