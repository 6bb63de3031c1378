"""Objects of the start are out of collections for good; what comes later is collected as ever."""

from __future__ import annotations

import gc
import weakref

from servicekit.heap import exempt_startup_objects


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
