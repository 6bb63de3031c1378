"""The voice cache: budget, pins, single flight."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from token2wav_service.engine.voice_cache import VoiceCache
from token2wav_service.errors import CapacityError, InvalidPromptError, VoiceNotCachedError

DEADLINE_S = 10.0


def cache_of(**sizes: int) -> VoiceCache[str]:
    cache: VoiceCache[str] = VoiceCache(budget_bytes=100)
    for voice_id, size in sizes.items():
        cache.put(voice_id, voice_id.upper(), size)
    return cache


def test_least_recently_used_voice_is_evicted_when_the_budget_is_spent() -> None:
    cache = cache_of(a=40, b=40)
    cache.acquire("a")
    cache.release("a")

    cache.put("c", "C", 40)

    assert cache.stats().used_bytes == 80
    assert cache.stats().evictions == 1
    with pytest.raises(VoiceNotCachedError, match="register"):
        cache.acquire("b")
    cache.check_integrity()


def test_pinned_voice_is_not_evicted() -> None:
    cache = cache_of(a=40, b=40)

    assert cache.acquire("a") == "A"
    cache.put("c", "C", 40)
    cache.release("a")

    assert cache.acquire("a") == "A"
    with pytest.raises(VoiceNotCachedError):
        cache.acquire("b")


def test_every_acquire_needs_its_own_release() -> None:
    cache = cache_of(a=60)
    cache.acquire("a")
    cache.acquire("a")
    cache.release("a")

    with pytest.raises(CapacityError, match="60 of the 100 bytes"):
        cache.put("b", "B", 60)

    cache.release("a")
    cache.put("b", "B", 60)
    assert cache.stats().pinned_voices == 0


def test_refused_voice_evicts_nothing() -> None:
    cache = cache_of(a=40, b=40)

    with pytest.raises(CapacityError):
        cache.put("c", "C", 101)

    assert cache.stats().voices == 2
    cache.check_integrity()


def test_putting_a_known_voice_again_changes_no_accounts() -> None:
    cache = cache_of(a=40)

    cache.put("a", "other", 50)

    assert cache.stats().used_bytes == 40
    assert cache.acquire("a") == "A"


def test_voice_asked_for_by_many_is_computed_once() -> None:
    cache: VoiceCache[str] = VoiceCache(budget_bytes=100)
    started, go, computed = threading.Event(), threading.Event(), []

    def compute() -> str:
        computed.append(1)
        started.set()
        assert go.wait(DEADLINE_S)
        return "A"

    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(cache.get_or_compute, "a", compute, len)
        assert started.wait(DEADLINE_S)
        others = [pool.submit(cache.get_or_compute, "a", compute, len) for _ in range(7)]
        go.set()
        assert [f.result(DEADLINE_S) for f in (first, *others)] == ["A"] * 8

    assert len(computed) == 1
    assert (cache.stats().hits, cache.stats().misses) == (7, 1)


def test_failed_computation_reaches_the_caller_and_is_not_kept() -> None:
    cache: VoiceCache[str] = VoiceCache(budget_bytes=100)

    def fail() -> str:
        raise InvalidPromptError("silent")

    with pytest.raises(InvalidPromptError):
        cache.get_or_compute("a", fail, len)

    assert cache.get_or_compute("a", lambda: "A", len) == "A"
