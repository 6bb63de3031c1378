"""Cuts samples that come in pieces of any length into blocks of one length."""

from __future__ import annotations

import numpy as np

from gateway.core import FloatArray


class BlockBuffer:
    """Keeps what does not fill a block yet."""

    def __init__(self, block_samples: int) -> None:
        """Start empty."""
        self._block_samples = block_samples
        self._kept = np.zeros(0, np.float32)

    def push(self, samples: FloatArray) -> list[FloatArray]:
        """Take [N] samples and return the blocks that are full, each [block_samples]."""
        joined = np.concatenate([self._kept, samples])
        full_samples = len(joined) // self._block_samples * self._block_samples
        self._kept = joined[full_samples:]
        return list(joined[:full_samples].reshape(-1, self._block_samples))

    def rest(self) -> FloatArray:
        """Return what is left, fewer samples than a block, and forget it."""
        rest, self._kept = self._kept, np.zeros(0, np.float32)
        return rest
