"""Weights in less than a quarter of their size: int8 with one scale for each row, for tensors that are large enough.

A file of them is a compressed safetensors file. Knows nothing of models.
"""

from __future__ import annotations

import lzma
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load, save

FloatArray = npt.NDArray[np.float32]
AnyArray = npt.NDArray[np.generic]

SMALLEST_PACKED = 4096
"""Values; smaller tensors stay in half precision, where every bit may count and none costs."""
_INT8_PEAK = 127.0
_ROWS, _SCALES = ".int8", ".scale"
_XZ_FILTERS = ({"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 0, "lp": 0, "pb": 0},)
"""What makes these files smallest: weights are no text, so that a byte tells nothing of the next."""


def quantised(value: FloatArray) -> tuple[npt.NDArray[np.int8], FloatArray]:
    """Return the nearest int8 of every value and the scale of each row of the first axis.

    Args:
        value: any shape with at least two axes.

    Returns:
        int8 of the same shape, and [rows] float32; rows times scales is within half a scale of `value`.
    """
    flat = value.reshape(len(value), -1).astype(np.float32)
    scales = np.maximum(np.abs(flat).max(axis=1), np.finfo(np.float32).tiny * _INT8_PEAK) / _INT8_PEAK
    rows = np.clip(np.rint(flat / scales[:, None]), -_INT8_PEAK, _INT8_PEAK).astype(np.int8)
    return rows.reshape(value.shape), scales.astype(np.float32)


def packed(weights: Mapping[str, FloatArray]) -> dict[str, AnyArray]:
    """Return `name.int8` and `name.scale` for large tensors, `name` in float16 for the others."""
    out: dict[str, AnyArray] = {}
    for name, value in weights.items():
        if value.ndim > 1 and value.size >= SMALLEST_PACKED:
            out[name + _ROWS], out[name + _SCALES] = quantised(value)
        else:
            out[name] = value.astype(np.float16)
    return out


def unpacked(weights: Mapping[str, AnyArray]) -> dict[str, FloatArray]:
    """Undo `packed`, to float32.

    Raises:
        ValueError: an int8 tensor without its scales.
    """
    out: dict[str, FloatArray] = {}
    for name, value in weights.items():
        if name.endswith(_ROWS):
            base = name.removesuffix(_ROWS)
            if base + _SCALES not in weights:
                raise ValueError(f"{name} has no {base + _SCALES}; the bundle is damaged, get it again")
            scales = weights[base + _SCALES].astype(np.float32)
            out[base] = value.astype(np.float32) * scales.reshape(-1, *[1] * (value.ndim - 1))
        elif not name.endswith(_SCALES):
            out[name] = value.astype(np.float32)
    return out


def write_packed(path: Path, weights: Mapping[str, AnyArray]) -> None:
    """Write what `packed` returned.

    Raises:
        OSError: the file can't be written.
    """
    path.write_bytes(lzma.compress(save(dict(weights)), filters=list(_XZ_FILTERS)))


def read_packed(path: Path) -> dict[str, FloatArray]:
    """Return the weights in a file of `write_packed`, as float32.

    Raises:
        OSError: the file can't be read.
        lzma.LZMAError: it is cut or damaged, or was never compressed.
        safetensors.SafetensorError: what was compressed is no safetensors file.
        ValueError: an int8 tensor without its scales.
    """
    return unpacked(load(lzma.decompress(path.read_bytes())))
