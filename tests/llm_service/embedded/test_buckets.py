"""Counting values by size."""

from __future__ import annotations

from llm_service.embedded.types import BucketCounts


def test_counts_are_cumulative_and_a_bound_is_within_its_bucket() -> None:
    counts = BucketCounts((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        counts.add(value)
    counts.add(1.0, times=3)
    read = counts.read()
    assert read.bounds == (0.1, 1.0)
    assert read.counts == (2, 6, 7)
    assert read.total == 0.05 + 0.1 + 0.5 + 7.0 + 3.0
