"""Weights in less than a quarter of their size: int8 with one scale for each row, for tensors that are large enough.

A file of them is a compressed safetensors file. Knows nothing of models.
"""

from __future__ import annotations

import lzma
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load

FloatArray = npt.NDArray[np.float32]
AnyArray = npt.NDArray[np.generic]

ROWS, SCALES = ".int8", ".scale"


def unpacked(weights: Mapping[str, AnyArray]) -> dict[str, FloatArray]:
    """Return packed weights as float32.

    Raises:
        ValueError: an int8 tensor without its scales.
    """
    out: dict[str, FloatArray] = {}
    for name, value in weights.items():
        if name.endswith(ROWS):
            base = name.removesuffix(ROWS)
            if base + SCALES not in weights:
                raise ValueError(f"{name} has no {base + SCALES}; the bundle is damaged, get it again")
            scales = weights[base + SCALES].astype(np.float32)
            out[base] = value.astype(np.float32) * scales.reshape(-1, *[1] * (value.ndim - 1))
        elif not name.endswith(SCALES):
            out[name] = value.astype(np.float32)
    return out


def read_packed(path: Path) -> dict[str, FloatArray]:
    """Return the weights in a file of packed weights, as float32.

    Raises:
        OSError: the file can't be read.
        lzma.LZMAError: it is cut or damaged, or was never compressed.
        safetensors.SafetensorError: what was compressed is no safetensors file.
        ValueError: an int8 tensor without its scales.
    """
    return unpacked(load(lzma.decompress(path.read_bytes())))
