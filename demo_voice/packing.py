"""Weights in a quarter of their size: int8 with one scale for each row, for tensors that are large enough to matter.

Pure arrays; knows nothing of models or files.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
AnyArray = npt.NDArray[np.generic]

SMALLEST_PACKED = 4096
"""Values; smaller tensors stay in half precision, where every bit may count and none costs."""
_INT8_PEAK = 127.0
_ROWS, _SCALES = ".int8", ".scale"


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
