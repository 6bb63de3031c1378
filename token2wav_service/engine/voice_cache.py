"""Remembers voices by content hash under a byte budget; the least recently used goes first.

It knows nothing of what a voice is: values are opaque, and whoever puts one says how many bytes it holds.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

from token2wav_service.errors import CapacityError, VoiceNotCachedError

V = TypeVar("V")


@dataclass(frozen=True)
class VoiceCacheStats:
    """A moment's counters."""

    voices: int
    used_bytes: int
    pinned_voices: int
    hits: int
    """Lookups answered without computing, waits for a computation that was under way included."""
    misses: int
    """Lookups that computed, or found nothing."""
    evictions: int


@dataclass
class _Entry(Generic[V]):
    value: V
    size_bytes: int
    pins: int = 0


class VoiceCache(Generic[V]):
    """A thread-safe LRU map from voice id to value.

    A voice in use is pinned by `acquire` and is not evicted before as many `release` calls.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry[V]] = OrderedDict()
        self._under_way: dict[str, Future[V]] = {}
        self._used_bytes = self._hits = self._misses = self._evictions = 0

    def get_or_compute(self, voice_id: str, compute: Callable[[], V], size_of: Callable[[V], int]) -> V:
        """Return the voice, computing it once however many threads ask for it at the same time.

        Args:
            compute: called without the lock held; its exception reaches every waiting caller, and nothing is kept.
            size_of: bytes the value holds.

        Raises:
            CapacityError: see `put`.
        """
        with self._lock:
            entry = self._touch(voice_id)
            if entry is not None:
                self._hits += 1
                return entry.value
            shared = self._under_way.get(voice_id)
            if shared is None:
                self._misses += 1
                own: Future[V] = Future()
                self._under_way[voice_id] = own
            else:
                self._hits += 1
        if shared is not None:
            return shared.result()
        return self._compute(voice_id, own, compute, size_of)

    def under_way(self, voice_id: str) -> Future[V] | None:
        """Return the computation of a voice that is under way; the voice is kept by the time it has a result."""
        with self._lock:
            return self._under_way.get(voice_id)

    def put(self, voice_id: str, value: V, size_bytes: int) -> None:
        """Keep a voice, evicting others for its room; a voice that is already there is left as it is.

        Raises:
            CapacityError: the budget can't hold it beside the voices in use.
        """
        with self._lock:
            if self._touch(voice_id) is None:
                self._make_room(size_bytes)
                self._entries[voice_id] = _Entry(value, size_bytes)
                self._used_bytes += size_bytes

    def acquire(self, voice_id: str) -> V:
        """Pin a voice and return it; pair with `release`.

        Raises:
            VoiceNotCachedError: it was never put, or has been evicted.
        """
        with self._lock:
            entry = self._touch(voice_id)
            if entry is None:
                self._misses += 1
                raise VoiceNotCachedError(f"voice {voice_id!r} is not cached; register its prompt again")
            self._hits += 1
            entry.pins += 1
            return entry.value

    def release(self, voice_id: str) -> None:
        """Undo one `acquire`."""
        with self._lock:
            entry = self._entries.get(voice_id)
            assert entry is not None and entry.pins > 0, "release without acquire"
            entry.pins -= 1

    def stats(self) -> VoiceCacheStats:
        """Return the counters as they are now."""
        with self._lock:
            pinned = sum(entry.pins > 0 for entry in self._entries.values())
            return VoiceCacheStats(
                len(self._entries), self._used_bytes, pinned, self._hits, self._misses, self._evictions
            )

    def check_integrity(self) -> None:
        """Raise AssertionError if the counts of entries and bytes disagree; for tests and idle moments."""
        with self._lock:
            assert self._used_bytes == sum(entry.size_bytes for entry in self._entries.values())
            assert self._used_bytes <= self._budget_bytes
            assert all(entry.pins >= 0 for entry in self._entries.values())

    def _compute(self, voice_id: str, own: Future[V], compute: Callable[[], V], size_of: Callable[[V], int]) -> V:
        try:
            value = compute()
            self.put(voice_id, value, size_of(value))
        except BaseException as err:
            own.set_exception(err)
            raise
        else:
            own.set_result(value)
            return value
        finally:
            with self._lock:
                del self._under_way[voice_id]

    def _touch(self, voice_id: str) -> _Entry[V] | None:
        entry = self._entries.get(voice_id)
        if entry is not None:
            self._entries.move_to_end(voice_id)
        return entry

    def _make_room(self, size_bytes: int) -> None:
        """Evict the oldest unpinned voices; nothing is evicted when that can't be enough."""
        pinned_bytes = sum(entry.size_bytes for entry in self._entries.values() if entry.pins)
        if pinned_bytes + size_bytes > self._budget_bytes:
            raise CapacityError(
                f"a voice of {size_bytes} bytes does not fit: voices in use hold {pinned_bytes} of the "
                f"{self._budget_bytes} bytes; retry when streams have ended, or raise voice_cache_bytes"
            )
        for voice_id in [key for key, entry in self._entries.items() if not entry.pins]:
            if self._used_bytes + size_bytes <= self._budget_bytes:
                return
            self._used_bytes -= self._entries.pop(voice_id).size_bytes
            self._evictions += 1
