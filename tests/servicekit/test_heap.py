"""Objects of the start are out of collections for good; freed memory goes back to the kernel."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

from servicekit.heap import exempt_startup_objects, return_freed_memory


class Node:
    """Holds itself, so that only a collection frees it."""

    def __init__(self) -> None:
        self.itself = self


def test_only_what_comes_later_is_looked_at() -> None:
    kept = [Node()]
    try:
        exempt_startup_objects()
        assert not any(each is kept for each in gc.get_objects())
        later = weakref.ref(Node())
        gc.collect()
        assert later() is None
    finally:
        gc.unfreeze()
    assert any(each is kept for each in gc.get_objects())


def test_what_the_c_library_keeps_goes_back_to_the_kernel() -> None:
    blocks = [bytes([number % 256]) * 100_000 for number in range(1000)]  # below what malloc maps apart
    kept = blocks[::100]  # the last of the heap is in use: free() alone gives nothing back
    del blocks
    before = _resident_pages()
    return_freed_memory()
    assert _resident_pages() < before - 10_000
    assert len(kept) == 10


def _resident_pages() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])
