"""Packs weights as `demo_voice.unpack` reads them: large tensors in int8 with a scale for each row, compressed."""

from __future__ import annotations

import lzma
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from demo_voice.unpack import ROWS, SCALES, AnyArray, FloatArray

SMALLEST_PACKED = 4096
"""Values; smaller tensors stay in half precision, where every bit may count and none costs."""
_INT8_PEAK = 127.0
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
            out[name + ROWS], out[name + SCALES] = quantised(value)
        else:
            out[name] = value.astype(np.float16)
    return out


def write_packed(path: Path, weights: Mapping[str, AnyArray]) -> None:
    """Write what `packed` returned.

    Raises:
        OSError: the file can't be written.
    """
    path.write_bytes(lzma.compress(save(dict(weights)), filters=list(_XZ_FILTERS)))
