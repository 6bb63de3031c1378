"""Threads that make voices, with a queue of limited length."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from token2wav_service.errors import CapacityError

T = TypeVar("T")


class BoundedPool:
    """A thread pool that refuses a call when too many run or wait; thread-safe."""

    def __init__(self, threads: int, max_pending: int, name: str) -> None:
        """Make the pool.

        Args:
            max_pending: calls that run or wait, at most.
            name: of the threads.
        """
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._max_pending = max_pending
        self._pending = 0
        self._lock = threading.Lock()

    def submit(self, call: Callable[..., T], *args: Any) -> Future[T]:
        """Queue a call.

        Raises:
            CapacityError: as many as allowed run or wait.
        """
        with self._lock:
            if self._pending >= self._max_pending:
                raise CapacityError(f"{self._pending} voices are in the making, the most allowed; retry later")
            self._pending += 1
        try:
            future = self._pool.submit(call, *args)
        except BaseException:
            self._leave()
            raise
        future.add_done_callback(self._leave)
        return future

    def shutdown(self) -> None:
        """Cancel what waits and join the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _leave(self, _: Future[Any] | None = None) -> None:
        with self._lock:
            self._pending -= 1
