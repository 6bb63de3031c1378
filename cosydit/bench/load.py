"""Puts load on a speaker: N callers in a closed loop, or requests at random times. Knows nothing of protocols."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Generic, TypeVar

from cosydit.bench.types import AudioArrival, LoadResult, RequestRecord
from servicekit.clock import Clock

JobT = TypeVar("JobT")
Speak = Callable[[JobT, str], AsyncGenerator[float, None]]
"""Sends one job under a request's id and yields the seconds of every piece of audio as it comes; raises if it fails."""
Keep = Callable[[RequestRecord], None]


@dataclass(frozen=True)
class LoadPlan:
    """How much load, and when."""

    num_tasks: int = 1
    """Callers, each of which sends its next request when its last one has ended."""
    requests: int = 1
    """Requests measured; the jobs are repeated as often as it takes."""
    warm_up: int = 0
    """Requests that the same callers send before, not measured."""
    requests_per_s: float | None = None
    """Open loop: requests arrive at random (Poisson) at this rate, however many are under way."""
    seed: int = 0
    """Seed of the random arrivals."""


class LoadGenerator(Generic[JobT]):
    """Sends every request of a plan and records what became of it."""

    def __init__(
        self, speak: Speak[JobT], name_of: Callable[[JobT], str], clock: Clock, same_chunk_s: float = 0.0
    ) -> None:
        """Keep the parts; `name_of` gives a job's utterance name.

        A piece of audio that comes sooner than `same_chunk_s` after the one before belongs to its chunk.
        """
        self._same_chunk_s = same_chunk_s
        self._speak = speak
        self._name_of = name_of
        self._clock = clock
        self._began_s = 0.0

    async def run(self, jobs: Sequence[JobT], plan: LoadPlan, on_end: Keep) -> LoadResult:
        """Send the plan's requests; `on_end` hears of each as it ends. Never raises for a failed request."""
        chosen = list(islice(cycle(jobs), plan.requests))
        records: list[RequestRecord] = []

        def keep(record: RequestRecord) -> None:
            records.append(record)
            on_end(record)

        self._began_s = self._clock.now()
        if plan.requests_per_s is None:
            await self._closed_loop(chosen, plan.num_tasks, keep)
        else:
            await self._open_loop(chosen, plan.requests_per_s, plan.seed, keep)
        return LoadResult(records, [], self._clock.now() - self._began_s)

    async def _closed_loop(self, jobs: Sequence[JobT], num_tasks: int, keep: Keep) -> None:
        waiting = iter(jobs)

        async def call() -> None:
            for job in waiting:
                keep(await self._measure(job))

        await asyncio.gather(*(call() for _ in range(min(num_tasks, len(jobs)))))

    async def _open_loop(self, jobs: Sequence[JobT], requests_per_s: float, seed: int, keep: Keep) -> None:
        draw, calls, due_s = random.Random(seed), [], self._began_s

        async def call(job: JobT, due_s: float) -> None:
            keep(await self._measure(job, due_s))

        for job in jobs:
            # NOTE: no sleep where it is due already: each would let all that is under way run first, and make it later.
            if (early_s := due_s - self._clock.now()) > 0:
                await asyncio.sleep(early_s)
            calls.append(asyncio.create_task(call(job, due_s)))
            due_s += draw.expovariate(requests_per_s)
        await asyncio.gather(*calls)

    async def _measure(self, job: JobT, due_s: float | None = None) -> RequestRecord:
        # NOTE: a request of an open loop is timed from when it was due, so that a slow sender hides nothing.
        sent_s = self._clock.now() if due_s is None else due_s
        record = RequestRecord(str(uuid.uuid4()), self._name_of(job), sent_s - self._began_s)
        record.dispatch_s = 0.0 if due_s is None else self._clock.now() - due_s
        try:
            async with aclosing(self._speak(job, record.request_id)) as pieces:
                await self._hear(pieces, record, sent_s)
            if not record.arrivals:
                record.error = "the answer ended without any audio; see the server's log"
        except Exception as error:  # a failed request is a result, whatever made it fail
            record.error = f"{type(error).__name__}: {error}"
        record.total_s = self._clock.now() - sent_s
        return record

    async def _hear(self, pieces: AsyncGenerator[float, None], record: RequestRecord, sent_s: float) -> None:
        last_piece_s = float("-inf")
        async for audio_s in pieces:
            at_s = self._clock.now() - sent_s
            if audio_s <= 0:
                continue
            if at_s - last_piece_s < self._same_chunk_s:
                begun = record.arrivals.pop()
                record.arrivals.append(AudioArrival(begun.at_s, begun.audio_s + audio_s))
            else:
                record.arrivals.append(AudioArrival(at_s, audio_s))
            last_piece_s = at_s
