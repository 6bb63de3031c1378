"""Load generation: who is called when, and what is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from cosydit.bench.load import LoadGenerator, LoadPlan
from cosydit.bench.types import RequestRecord
from servicekit.clock import SystemClock


class ScriptedSpeaker:
    """Says two pieces, or fails for the job `bad`; counts who speaks at once."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.now_speaking = self.most_speaking = 0

    async def speak(self, job: str, request_id: str) -> AsyncGenerator[float, None]:
        self.ids.append(request_id)
        self.now_speaking += 1
        self.most_speaking = max(self.most_speaking, self.now_speaking)
        try:
            await asyncio.sleep(0.001)
            if job == "silent":
                return
            yield 0.5
            if job == "bad":
                raise RuntimeError("it broke")
            yield 0.0
            yield 0.25
        finally:
            self.now_speaking -= 1


class StepClock:
    """Moves on by a fixed step with every look."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._now_s = 0.0

    def now(self) -> float:
        self._now_s += self._step_s
        return self._now_s


async def _run(plan: LoadPlan, jobs: list[str]) -> tuple[ScriptedSpeaker, list[RequestRecord]]:
    speaker = ScriptedSpeaker()
    result = await LoadGenerator(speaker.speak, str, SystemClock()).run(jobs, plan, lambda record: None)
    return speaker, result.records


async def test_so_many_callers_speak_at_once_and_no_more() -> None:
    speaker, records = await _run(LoadPlan(num_tasks=3, requests=9), ["a", "b"])
    assert speaker.most_speaking == 3
    assert len(records) == 9
    assert {record.utt for record in records} == {"a", "b"}


async def test_request_ids_are_unique() -> None:
    speaker, records = await _run(LoadPlan(num_tasks=2, requests=8), ["a"])
    assert len(set(speaker.ids)) == 8
    assert {record.request_id for record in records} == set(speaker.ids)


@pytest.mark.parametrize(("job", "reason"), [("bad", "it broke"), ("silent", "without any audio")])
async def test_a_failed_request_is_recorded_and_the_others_go_on(job: str, reason: str) -> None:
    _, records = await _run(LoadPlan(num_tasks=1, requests=3), ["a", job, "b"])
    assert [record.is_ok for record in records] == [True, False, True]
    assert reason in str(records[1].error)


async def test_an_open_loop_does_not_wait_for_answers() -> None:
    speaker, records = await _run(LoadPlan(num_tasks=1, requests=6, requests_per_s=1e6), ["a"])
    assert len(records) == 6
    assert speaker.most_speaking > 1


async def test_empty_pieces_count_for_nothing() -> None:
    _, records = await _run(LoadPlan(), ["a"])
    assert [arrival.audio_s for arrival in records[0].arrivals] == [0.5, 0.25]


async def test_pieces_that_come_at_one_go_are_one_chunk_at_the_time_of_the_first() -> None:
    load = LoadGenerator(ScriptedSpeaker().speak, str, StepClock(1.0), same_chunk_s=2.5)
    result = await load.run(["a"], LoadPlan(), lambda record: None)
    assert [(arrival.at_s, arrival.audio_s) for arrival in result.records[0].arrivals] == [(1.0, 0.75)]
