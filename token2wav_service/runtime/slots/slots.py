"""Hands out the places of a fixed pool. No tensors."""

from __future__ import annotations

import threading

from token2wav_service.errors import CapacityError

SCRATCH_SLOT = 0
"""Padding rows of a batch work here; it is never handed out."""


class SlotAllocator:
    """Slots 1..count, each held by one stream at most; thread-safe."""

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._count = count
        self._free = list(range(count, 0, -1))
        self._held: set[int] = set()

    @property
    def num_free(self) -> int:
        """Slots that can be handed out now."""
        with self._lock:
            return len(self._free)

    def allocate(self) -> int:
        """Take a slot.

        Raises:
            CapacityError: all are held.
        """
        with self._lock:
            if not self._free:
                raise CapacityError(f"all {self._count} stream slots are in use; retry when a stream has ended")
            slot = self._free.pop()
            self._held.add(slot)
            return slot

    def free(self, slot: int) -> None:
        """Give a slot back."""
        with self._lock:
            assert slot in self._held, "free without allocate"
            self._held.remove(slot)
            self._free.append(slot)

    def check_integrity(self) -> None:
        """Raise AssertionError if slots were lost or doubled; for tests and idle moments."""
        with self._lock:
            assert sorted([*self._free, *self._held]) == list(range(1, self._count + 1))
