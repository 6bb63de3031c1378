"""Load generation: who is called when, what is recorded, and the percentiles, underruns and summaries of that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosydit.bench.load import LoadGenerator, LoadPlan
from cosydit.bench.metrics import distribution, percentile, playback_underrun, summarize
from cosydit.bench.types import AudioArrival, LoadResult, RequestRecord
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


def _record(*arrivals: tuple[float, float], total_s: float = 2.0, error: str | None = None) -> RequestRecord:
    return RequestRecord("id", "utt", 0.0, [AudioArrival(*pair) for pair in arrivals], total_s, error)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.floats(0, 100))
def test_percentile_agrees_with_numpy(values: list[float], percent: float) -> None:
    assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)), abs=1e-6)


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1.0], -1), ([1.0], 101)])
def test_percentile_refuses_what_it_can_not_answer(values: list[float], percent: float) -> None:
    with pytest.raises(ValueError, match="expected at least one value"):
        percentile(values, percent)


def test_distribution_leaves_out_what_is_not_there() -> None:
    values = distribution([1.0, None, 3.0])
    assert values is not None
    assert (values.count, values.mean, values.maximum, values.percentiles[50]) == (2, 2.0, 3.0, 2.0)
    assert distribution([None]) is None


@pytest.mark.parametrize(
    ("buffer_s", "gaps", "short_s"),
    [
        pytest.param(0.0, 2, 0.4, id="both late pieces are heard"),
        pytest.param(0.05, 2, 0.35, id="the buffer shortens the first gap only"),
        pytest.param(0.2, 1, 0.2, id="the buffer covers the first gap"),
        pytest.param(1.0, 0, 0.0, id="the buffer covers all"),
    ],
)
def test_a_late_piece_leaves_a_gap_and_playback_goes_on_from_it(buffer_s: float, gaps: int, short_s: float) -> None:
    # Pieces of 0.5 s: due 1.0, 1.5, 2.0; the second comes 0.1 s late, the third 0.3 s after the second's new end.
    arrivals = [AudioArrival(1.0, 0.5), AudioArrival(1.6, 0.5), AudioArrival(2.4, 0.5)]
    underrun = playback_underrun(arrivals, buffer_s)
    assert underrun.gaps == gaps
    assert underrun.short_s == pytest.approx(short_s)


def test_a_piece_that_comes_just_in_time_leaves_no_gap() -> None:
    assert playback_underrun([AudioArrival(1.0, 0.1), AudioArrival(1.1, 0.1)], 0.0).gaps == 0
    assert playback_underrun([], 0.0).gaps == 0


def test_failed_requests_are_counted_and_enter_no_distribution() -> None:
    good = _record((0.5, 1.0), (1.0, 1.0))
    result = LoadResult([good, _record((9.0, 1.0), error="broke"), _record()], [], 4.0)
    summary = summarize(result)
    assert (summary.requests, summary.failures, summary.audio_s) == (3, 2, 2.0)
    assert summary.ttfa_s is not None and summary.ttfa_s.maximum == 0.5
    assert summary.second_chunk_s is not None and summary.second_chunk_s.maximum == 1.0
    assert summary.rtf is not None and summary.rtf.mean == 1.0
    assert summary.throughput == 0.5
    assert [each.of_requests for each in summary.underruns] == [1, 1, 1]
