"""Percentiles, underruns and summaries."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosydit.bench.metrics import distribution, percentile, playback_underrun, summarize
from cosydit.bench.types import AudioArrival, LoadResult, RequestRecord


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
