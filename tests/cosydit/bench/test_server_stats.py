"""Differences of the servers' own counters."""

from __future__ import annotations

import pytest

from cosydit.bench import server_stats
from cosydit.bench.server_stats import ServerSnapshot, difference, parse_metrics, read_metrics

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


def test_our_metrics_and_tritons_inferences_are_read_and_others_left() -> None:
    found = parse_metrics(PAGE + "# TYPE process_cpu_seconds counter\nprocess_cpu_seconds 1\n")
    assert found.gauges == {"cosydit_token2wav_open_streams": 2.0}
    assert found.totals == {
        "cosydit_token2wav_steps_total": 17.0,
        'cosydit_token2wav_step_batch_size_bucket{le="+Inf"}': 17.0,
        'nv_inference_count_total{model="token2wav_dit"}': 5.0,
    }


def test_counters_become_differences_and_gauges_stay() -> None:
    before, after = ServerSnapshot({"x": 2.0}, {"g": 9.0}, "a"), ServerSnapshot({"x": 5.0, "new": 1.0}, {"g": 1.0})
    told = {"difference": {"x": 3.0, "new": 1.0}, "gauges_after": {"g": 1.0}}
    assert difference(before, after) == {"notes": ["a"], "metrics": told}


def test_a_server_that_does_not_answer_is_noted_and_harms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_stats, "SETTLE_S", 0.0)
    found = read_metrics("http://127.0.0.1:9/metrics")
    assert found.totals == {} and "no metrics from" in found.note
