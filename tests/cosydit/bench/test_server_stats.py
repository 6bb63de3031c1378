"""Differences of the servers' own counters."""

from __future__ import annotations

import pytest

from cosydit.bench import scrape
from cosydit.bench.scrape import EMPTY, Scrape, difference, read_settled

PAGE = """\
# HELP cosydit_token2wav_steps_total Batched steps run
# TYPE cosydit_token2wav_steps_total counter
cosydit_token2wav_steps_total 17
# TYPE cosydit_token2wav_open_streams gauge
cosydit_token2wav_open_streams 2
# TYPE cosydit_token2wav_step_batch_size histogram
cosydit_token2wav_step_batch_size_bucket{le="+Inf"} 17
# TYPE nv_inference_count counter
nv_inference_count{model="token2wav_dit"} 5
"""


def test_counters_of_ours_and_of_triton_become_differences_and_gauges_stay() -> None:
    before = Scrape.parse(PAGE.replace(" 17", " 4").replace(" 2\n", " 9\n"), 0.0)
    after = Scrape.parse(PAGE + "# TYPE process_cpu_seconds counter\nprocess_cpu_seconds 1\n", 1.0)
    told = difference(before, after)["metrics"]
    assert told["gauges_after"] == {"cosydit_token2wav_open_streams": 2.0}
    assert told["difference"] == {
        "cosydit_token2wav_steps_total": 13.0,
        'cosydit_token2wav_step_batch_size_bucket{le="+Inf"}': 13.0,
        'nv_inference_count_total{model="token2wav_dit"}': 0.0,
    }
    assert difference(EMPTY, after)["metrics"]["difference"]["cosydit_token2wav_steps_total"] == 17.0


def test_a_server_that_does_not_answer_is_noted_and_harms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "SETTLE_S", 0.0)
    told = difference(EMPTY, read_settled("http://127.0.0.1:9/metrics"))
    assert told["metrics"] == {"difference": {}, "gauges_after": {}} and "no metrics from" in told["notes"][0]
