"""Differences of the servers' own counters."""

from __future__ import annotations

from cosydit.bench.server_stats import (
    ServerProbe,
    ServerSnapshot,
    difference,
    index_models,
    parse_metrics,
)

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


def test_our_metrics_are_read_and_others_left() -> None:
    totals, gauges = parse_metrics(PAGE)
    assert gauges == {"cosydit_token2wav_open_streams": 2.0}
    assert totals == {
        "cosydit_token2wav_steps_total": 17.0,
        'cosydit_token2wav_step_batch_size_bucket{le="+Inf"}': 17.0,
    }


def _statistics(count: str, batches: list[dict[str, object]]) -> dict[str, object]:
    stats = {"success": {"count": count, "ns": "100"}, "fail": {}}
    return {"model_stats": [{"name": "m", "inference_count": count, "inference_stats": stats, "batch_stats": batches}]}


def test_triton_statistics_are_subtracted_by_model_and_batch_size() -> None:
    before = index_models(_statistics("2", []))
    after = index_models(_statistics("5", [{"batch_size": "4", "compute_infer": {"count": "1", "ns": "7"}}]))
    report = difference(ServerSnapshot(before, None, {}, ("a",)), ServerSnapshot(after, None, {}, ("a", "b")))
    model = report["triton_statistics"]["m"]
    assert model["inference_count"] == 3
    assert model["inference_stats"]["success"] == {"count": 3, "ns": 0}
    assert model["batch_stats"] == {"4": {"compute_infer": {"count": 1, "ns": 7}}}
    assert report["notes"] == ["a", "b"]
    assert "metrics" not in report


def test_counters_become_differences_and_gauges_stay() -> None:
    before = ServerSnapshot(None, {"x": 2.0}, {"g": 9.0}, ())
    after = ServerSnapshot(None, {"x": 5.0, "new": 1.0}, {"g": 1.0}, ())
    assert difference(before, after)["metrics"] == {"difference": {"x": 3.0, "new": 1.0}, "gauges_after": {"g": 1.0}}


async def test_servers_that_do_not_answer_are_noted_and_harm_nothing() -> None:
    snapshot = await ServerProbe("127.0.0.1:9", "http://127.0.0.1:9/metrics").snapshot()
    assert (snapshot.triton, snapshot.totals) == (None, None)
    assert len(snapshot.notes) == 2
