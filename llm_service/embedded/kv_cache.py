"""The key-value cache: a fixed number of slots for one request each, and the slots' owners.

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
        self._lengths: list[int] = []

    def view(self, slots: slice, lengths: list[int]) -> None:
        """Aim the next forward: row b of it is slot `slots.start + b`.

        Args:
            slots: neighbouring slots.
            lengths: places of its slot that row b reads, from 0, the new ones at their end; 0: it takes no part.
        """
        self._slots, self._lengths = slots, lengths

    def update(self, new_keys: torch.Tensor, new_values: torch.Tensor, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Write [B, heads, T, head size] keys and values in place; return those to attend to, as views."""
        keys, values = self._keys[layer][self._slots], self._values[layer][self._slots]
        new = new_keys.shape[2]
        for row, length in enumerate(self._lengths):
            if length:
                keys[row, :, length - new : length] = new_keys[row]
                values[row, :, length - new : length] = new_values[row]
        return keys, values

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
        """Free slots."""
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
