"""Decides which streams run in the next step. No tensors, no model, no lock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from token2wav_service.engine.runner import Runner
from token2wav_service.engine.stream import Stream

CLASS_PENALTY_S = 0.5
"""Each priority class behind the first may be made to wait so much longer, and no longer: none starves."""
CROWDED_STEPS = 10.0
"""Where the ready chunks fill so many steps, a step may take chunks of several buckets. Below it new streams would wait
longer than they do beside steps of one bucket (simulated)."""
LEAST_SHARE = 0.5
"""Share of the most chunks of a bucket's step; a step of several buckets takes no fewer, and more than without them."""


def next_batch(
    streams: Iterable[Stream], programs: Runner, max_batch_size: int, crowded_steps: float = CROWDED_STEPS
) -> list[Stream]:
    """Return the streams of the next step, none when no stream has a chunk to run.

    Earliest deadline first: a new stream is due soon, a playing one when its listener runs dry. A step takes chunks of
    the most urgent stream's bucket only, so that it is short and that stream does not wait for longer chunks. Where
    many chunks wait, steps of few chunks would make all streams late: there the most urgent chunk runs in a larger
    bucket's program, together with the chunks of all buckets up to that one.

    Args:
        streams: all open streams.
        programs: what runs the batch; only asked for its buckets and sizes.
        max_batch_size: most chunks of a step.
        crowded_steps: see `CROWDED_STEPS`.
    """
    ready = sorted((stream for stream in streams if stream.is_ready), key=_due_s)
    if not ready:
        return []
    buckets = [programs.bucket(stream.waiting[0], stream.state) for stream in ready]
    counts, first = Counter(buckets), buckets[0]
    most = {bucket: programs.step_size(bucket, max_batch_size) for bucket in counts}

    def taken(bucket: int, fitting: list[Stream]) -> list[Stream]:
        return fitting[: programs.step_size(bucket, min(len(fitting), max_batch_size))]

    own = taken(first, [stream for stream, bucket in zip(ready, buckets, strict=True) if bucket == first])
    if sum(count / most[bucket] for bucket, count in counts.items()) < crowded_steps:
        return own
    for larger in sorted(bucket for bucket in counts if bucket > first):
        batch = taken(larger, [stream for stream, bucket in zip(ready, buckets, strict=True) if bucket <= larger])
        if len(batch) > len(own) and len(batch) >= LEAST_SHARE * most[larger]:
            return batch
    return own


def _due_s(stream: Stream) -> float:
    return stream.due_s + (stream.options.priority - 1) * CLASS_PENALTY_S
