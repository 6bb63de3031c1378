"""Exported files under the ONNX project's own evaluator, which knows every element type; for tiny sizes only.

It is how a bfloat16 file is checked where no runtime computes bfloat16.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import torch
from onnx.reference import ReferenceEvaluator
from torch import Tensor


class OnnxReference:
    """One exported file; tensors in and out by name."""

    def __init__(self, path: Path) -> None:
        self._evaluator = ReferenceEvaluator(str(path))

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the outputs by name; floating ones as float32."""
        made = self._evaluator.run(None, {name: _to_numpy(tensor) for name, tensor in inputs.items()})
        arrays = (np.asarray(array) for array in made)
        floats = (array if array.dtype.kind in "ib" else array.astype(np.float32) for array in arrays)
        return {name: torch.from_numpy(value) for name, value in zip(self._evaluator.output_names, floats, strict=True)}


def _to_numpy(tensor: Tensor) -> np.ndarray:  # type: ignore[type-arg]
    # torch and numpy share no bfloat16; through float32 nothing is lost.
    if tensor.dtype is torch.bfloat16:
        return tensor.float().numpy().astype(ml_dtypes.bfloat16)
    return np.asarray(tensor.numpy())
