"""The table of what dialects add to the time to first byte."""

from __future__ import annotations

import pytest

from lab.load.dialect_overhead import PIPELINE, measure, overhead_table
from lab.load.dialects import DIALECTS
from lab.load.dialects_streaming import STREAMING_DIALECTS

pytestmark = pytest.mark.slow

pytest.importorskip("av", reason="the audio extra is not installed")


async def test_every_dialect_is_asked_as_often_as_the_pipeline() -> None:
    samples_s = await measure(requests=2, warm_up=1)

    assert list(samples_s) == [PIPELINE, *(dialect.name for dialect in (*DIALECTS, *STREAMING_DIALECTS))]
    assert all(len(values) == 2 and min(values) > 0 for values in samples_s.values())


def test_the_table_shows_medians_over_the_pipelines() -> None:
    table = overhead_table({PIPELINE: [0.001, 0.002, 0.003], "one": [0.012, 0.014, 0.5]})

    assert [row.split()[-1] for row in table.splitlines()[1:]] == ["0.00", "12.00"]
