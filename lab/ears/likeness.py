"""Whether two recordings are of one speaker, by an encoder that no training of this project has seen.

The network and its weights are those of the package Resemblyzer (Apache-2.0), which learnt to tell thousands of real
speakers apart. Only its file of weights is read, so nothing that the package depends on is needed. The package's
detector of voice is such a dependency: here, pauses are cut by loudness instead. Source: Generalized end-to-end loss
for speaker verification (Wan et al., arXiv 1710.10467).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from token2wav_service.features.mel import periodic_hann, slaney_mel_filters

FloatArray = npt.NDArray[np.float32]

RATE_HZ = 16_000
SIZE = 256
"""Of an embedding, and of each of the LSTM's layers."""
MEL_BINS = 40
PARTIAL_FRAMES = 160
"""Frames that the network hears at once, 1.6 s."""
PARTIALS_A_SECOND = 1.3
LEAST_COVERED = 0.75
"""Share of the last partial that must lie within the audio; else the partial is left out."""
_LAYERS = 3
_WINDOW, _HOP = 400, 160
_LEAST_DB = -30.0
"""Quieter audio is raised to this level below full scale."""
_PAUSE_WINDOW = 480
_PAUSE_DB = 40.0
"""A window so far below the loudest one is a pause."""
_KEPT_WINDOWS = 3
"""Windows of a pause that are kept beside speech, on either side."""
_LEAST_POWER = 1e-12


class Likeness(Protocol):
    """Anything that tells speakers apart."""

    def embed(self, samples: FloatArray) -> FloatArray:
        """Turn [N] mono float32 in +-1 at 16 kHz into a vector of length 1; alike for one speaker's recordings."""
        ...


class VoiceEncoder:
    """Implements `Likeness`: an LSTM over mel frames, in float32 on the CPU."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        """Take the weights of `lstm` and `linear`, by PyTorch's names.

        Raises:
            RuntimeError: one is missing or of another shape.
        """
        self._lstm = nn.LSTM(MEL_BINS, SIZE, _LAYERS, batch_first=True)
        self._linear = nn.Linear(SIZE, SIZE)
        for name, layer in (("lstm.", self._lstm), ("linear.", self._linear)):
            own = {key.removeprefix(name): value for key, value in weights.items() if key.startswith(name)}
            layer.load_state_dict(own)

    @classmethod
    def load(cls, path: Path | None = None) -> VoiceEncoder:
        """Read the weights.

        Args:
            path: the package's `pretrained.pt`; None: that of the installed package.

        Raises:
            ImportError: there is no path, and the package is not installed.
            OSError: the file can't be read.
        """
        if path is None:
            found = find_spec("resemblyzer")
            if found is None or not found.submodule_search_locations:
                raise ImportError("Resemblyzer is not installed; pip install --no-deps Resemblyzer==0.1.4")
            path = Path(found.submodule_search_locations[0]) / "pretrained.pt"
        return cls(torch.load(path, map_location="cpu", weights_only=True)["model_state"])

    @torch.inference_mode()
    def embed(self, samples: FloatArray) -> FloatArray:
        """See `Likeness.embed`.

        Raises:
            ValueError: there are no samples, or nothing but silence.
        """
        audio = without_pauses(raised(samples))
        starts = partial_starts(len(audio))
        mel = power_mel(np.pad(audio, (0, max(0, (starts[-1] + PARTIAL_FRAMES) * _HOP - len(audio)))))
        partials = torch.from_numpy(np.stack([mel[start : start + PARTIAL_FRAMES] for start in starts]))
        _, (hidden, _) = self._lstm(partials)
        vectors = torch.relu(self._linear(hidden[-1]))
        mean: FloatArray = nn.functional.normalize(vectors, dim=1).mean(0).numpy()
        return mean / np.linalg.norm(mean)


def mean_embedding(embeddings: Sequence[FloatArray]) -> FloatArray:
    """Average embeddings of one speaker's recordings, to length 1.

    Raises:
        ValueError: there are none.
    """
    if not embeddings:
        raise ValueError("got no embeddings, expected at least one")
    mean: FloatArray = np.mean(embeddings, axis=0)
    return mean / np.linalg.norm(mean)


def raised(samples: FloatArray) -> FloatArray:
    """Return audio at no less than 30 dB below full scale; louder audio stays as it is.

    Raises:
        ValueError: there are no samples, or all are 0.
    """
    level = float(np.sqrt(np.mean(np.square(samples, dtype=np.float64)))) if len(samples) else 0.0
    if not level:
        raise ValueError(f"got {len(samples)} samples without any sound, expected speech")
    gain = max(1.0, 10 ** (_LEAST_DB / 20) / level)
    return np.asarray(samples * gain, np.float32)


def without_pauses(samples: FloatArray) -> FloatArray:
    """Cut pauses down to 90 ms on either side; audio shorter than 30 ms stays as it is.

    A pause is where 30 ms are 40 dB quieter than the loudest 30 ms.
    """
    windows = samples[: len(samples) // _PAUSE_WINDOW * _PAUSE_WINDOW].reshape(-1, _PAUSE_WINDOW)
    if not len(windows):
        return samples
    power = np.square(windows, dtype=np.float64).mean(1) + _LEAST_POWER
    is_speech = power > power.max() * 10 ** (-_PAUSE_DB / 10)
    near = np.convolve(is_speech, np.ones(2 * _KEPT_WINDOWS + 1))
    kept = near[_KEPT_WINDOWS : len(near) - _KEPT_WINDOWS] > 0
    return windows[kept].ravel()


def partial_starts(samples: int) -> list[int]:
    """Return the first frames of the partials of so many samples; at least one."""
    frames = math.ceil((samples + 1) / _HOP)
    step = round(RATE_HZ / PARTIALS_A_SECOND / _HOP)
    starts = list(range(0, max(1, frames - PARTIAL_FRAMES + step + 1), step))
    covered = (samples - starts[-1] * _HOP) / (PARTIAL_FRAMES * _HOP)
    return starts[:-1] if covered < LEAST_COVERED and len(starts) > 1 else starts


def power_mel(samples: FloatArray) -> FloatArray:
    """Turn [N] samples into [N // 160 + 1, 40] float32: power by mel bins, without a logarithm."""
    padded = np.pad(samples, _WINDOW // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW)[::_HOP]
    power = np.abs(np.fft.rfft(frames * periodic_hann(_WINDOW))) ** 2
    filters = slaney_mel_filters(sample_rate_hz=RATE_HZ, n_fft=_WINDOW, n_mels=MEL_BINS)
    return np.asarray(power @ filters.T, np.float32)
