"""Simulations at the same time: each takes a core for seconds and knows nothing of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

MapLike = Callable[..., Iterator[Any]]
"""Called as `map` is; results come in order."""


@contextmanager
def mapping(processes: int) -> Iterator[MapLike]:
    """Give something that maps in so many processes; one is this process, where nothing has to be pickled."""
    if processes == 1:
        yield map
        return
    with ProcessPoolExecutor(processes) as pool:
        yield pool.map
