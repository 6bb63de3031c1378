"""The key-value cache: a fixed number of slots, one request each, and who holds them.

    keys, values of a layer: [slots, key-value heads, positions, head size]; a forward works on a run of slots

The decoder calls `update` in every layer; `view` says beforehand which slots and positions the call is about. Knows
nothing of requests, sampling or tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class CacheShape:
    """Sizes of a cache."""

    layers: int
    slots: int
    heads: int
    positions: int  # a slot's capacity in tokens
    head_size: int

    def bytes(self, dtype: torch.dtype) -> int:
        """Return what keys and values of all slots take, in bytes."""
        return 2 * self.layers * self.slots * self.heads * self.positions * self.head_size * dtype.itemsize


class SlotCache:
    """Key-value tensors of all slots, allocated once."""

    def __init__(self, shape: CacheShape, device: torch.device, dtype: torch.dtype) -> None:
        self.shape = shape
        size = (shape.slots, shape.heads, shape.positions, shape.head_size)
        self._keys = [torch.zeros(size, device=device, dtype=dtype) for _ in range(shape.layers)]
        self._values = [torch.zeros(size, device=device, dtype=dtype) for _ in range(shape.layers)]
        self._slots = slice(0, 0)
        self._positions = torch.zeros(0, dtype=torch.long)
        self._length = 0

    def view(self, slots: slice, positions: torch.Tensor, length: int) -> None:
        """Aim the next forward: row b of it is slot `slots.start + b`.

        Args:
            slots: neighbouring slots.
            positions: [B, T] int64, where the new keys and values go.
            length: places that the longest row reads, from 0.
        """
        self._slots, self._positions, self._length = slots, positions, length

    def update(self, new_keys: torch.Tensor, new_values: torch.Tensor, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Write [B, heads, T, head size] keys and values in place; return those to attend to, as views."""
        keys, values = self._keys[layer][self._slots], self._values[layer][self._slots]
        rows = torch.arange(keys.shape[0], device=keys.device).unsqueeze(1)
        keys[rows, :, self._positions] = new_keys.transpose(1, 2)
        values[rows, :, self._positions] = new_values.transpose(1, 2)
        return keys[:, :, : self._length], values[:, :, : self._length]

    def clear(self, slot: int) -> None:
        """Zero one slot, after a failure that may have left values there that are not finite."""
        for tensor in (*self._keys, *self._values):
            tensor[slot] = 0


class SlotAllocator:
    """Hands out slots; the lowest free one first, so that few forwards cover them."""

    def __init__(self, slots: int) -> None:
        self._free = list(range(slots))
        self._slots = slots

    @property
    def free_count(self) -> int:
        """Slots nobody holds."""
        return len(self._free)

    def allocate(self) -> int:
        """Take the lowest free slot; the caller has looked at `free_count`."""
        slot = min(self._free)
        self._free.remove(slot)
        return slot

    def free(self, slot: int) -> None:
        """Give a slot back."""
        assert slot not in self._free and 0 <= slot < self._slots
        self._free.append(slot)
