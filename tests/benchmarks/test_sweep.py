"""The end-to-end sweep: its inputs, its files, and the figures computed from them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from benchmarks import end_to_end
from benchmarks.end_to_end import table
from benchmarks.figures import APART, FAMILY_RUNS, TOGETHER, end_to_end_figures, figures_without_mps, main, plan_points
from benchmarks.lib.points import measured_json, measured_points
from benchmarks.lib.sweep import (
    FinishedRun,
    RunPlan,
    Sweep,
    SweepLoad,
    audible_run,
    closed_run,
    jobs_of,
    open_run,
    read_run,
    unique_sentences,
    unseen_run,
    without_first,
    write_run,
)
from cosydit.bench.load import LoadGenerator, LoadPlan
from cosydit.bench.report import write_json
from cosydit.bench.types import AudioArrival, BenchmarkError, LoadResult, RequestRecord
from cosydit.cli import plan as capacity
from cosydit.cli.plan import points_file, read_curves
from tests.cosydit.bench.test_load import ScriptedSpeaker


class SlowSender:
    """A clock that is late: whoever sleeps until a time wakes a second after it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        self.seconds += 1.0
        return self.seconds


def finished(name: str, ttfa_s: list[float], late_s: float = 0.0) -> FinishedRun:
    records = [
        RequestRecord("", f"{name}-{i}", float(i), arrivals=[AudioArrival(at, 1.0), AudioArrival(at + 1 + late_s, 1.0)])
        for i, at in enumerate(ttfa_s)
    ]
    return FinishedRun(name, {"num_tasks": 1}, False, LoadResult(records, [], 10.0))


def test_no_text_comes_twice_and_all_are_about_as_long() -> None:
    texts = [each.text for name in ("a", "b") for each in islice(unique_sentences(name), 500)]
    assert len(set(texts)) == 1000
    assert {60 <= len(text) <= 70 for text in texts} == {True}
    assert texts[:2] == [each.text for each in islice(unique_sentences("a"), 2)], "equal names give equal texts"


def test_plans_are_named_for_their_load() -> None:
    plans = [closed_run(16, 50, ["a"]), open_run(32, 10.0, ["a"]), unseen_run(["x", "y"])]
    assert [plan.name for plan in plans] == ["closed-016", "poisson-032", "unseen-voice"]
    assert [plan.load.requests for plan in plans] == [50, 320, 2]


def test_an_open_loop_of_a_sweep_has_enough_requests_for_a_percentile() -> None:
    plans = SweepLoad((), (1, 2, 10), 20.0, audible_per_s=(1, 10)).plans(["a"])
    assert [plan.load.requests for plan in plans] == [50, 50, 200, 50, 200]


def test_what_is_timed_to_the_first_sound_comes_after_a_warm_up_of_the_same_load() -> None:
    plan = audible_run(6, 20.0, ["a"])
    assert (plan.name, plan.load.requests, plan.load.warm_up, len(jobs_of(plan))) == ("audible-006", 120, 60, 180)


async def test_a_sweep_keeps_only_what_comes_behind_the_warm_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(sweep: Sweep, jobs: list[object], load: LoadPlan, name: str, is_audible: bool) -> LoadResult:
        assert (len(jobs), load.requests, is_audible) == (12, 12, True)
        return finished(name, [0.1] * len(jobs)).result

    monkeypatch.setattr(Sweep, "_run", run)
    done = await Sweep("http://127.0.0.1", tmp_path, 1.0).run(audible_run(1, 2.0, ["a"]))
    assert [each.utt for each in done.result.records] == ["audible-001-10", "audible-001-11"]
    assert len(read_run(tmp_path / "audible-001.json.xz").result.records) == 2


def test_voices_never_seen_are_not_seen_by_the_warm_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warmed = set[str]()

    async def voices(url: str) -> list[str]:
        return ["a", "b", "c"]

    async def warm_up(sweep: Sweep, bursts: list[int], names: list[str]) -> list[str]:
        warmed.update(names)
        return []

    async def run(sweep: Sweep, plan: RunPlan) -> FinishedRun:
        return finished(plan.name, [0.1])

    monkeypatch.setattr(end_to_end, "_voices", voices)
    monkeypatch.setattr(Sweep, "warm_up", warm_up)
    monkeypatch.setattr(Sweep, "run", run)
    options = ["--closed", "--open", "--voices", "2", "--unseen", "1", "--commit", "0" * 40]
    assert end_to_end.main(["--out", str(tmp_path), *options]) == 0
    assert warmed == {"a", "b"}


@pytest.mark.parametrize(("later_s", "is_held"), [(0.15, True), (0.25, False)])
def test_a_load_whose_requests_wait_longer_and_longer_is_not_held(later_s: float, is_held: bool) -> None:
    run = finished("poisson-016", [0.1] * 10 + [later_s] * 10)
    run.load["requests_per_s"] = 16.0
    (point,) = measured_points([run])
    assert point.is_held is is_held


def test_a_warm_up_is_left_out_and_time_begins_behind_it() -> None:
    result = finished("audible-001", [0.4, 0.3, 0.2, 0.1]).result
    result.records.reverse()
    left = without_first(result, 2)
    assert [(each.utt, each.sent_s) for each in left.records] == [("audible-001-3", 1.0), ("audible-001-2", 0.0)]
    assert left.wall_s == 8.0
    assert without_first(result, 0) is result


async def test_an_open_loop_is_timed_from_when_a_request_was_due() -> None:
    load = LoadGenerator(ScriptedSpeaker().speak, str, SlowSender())
    result = await load.run(["a"], LoadPlan(requests=3, requests_per_s=1e9), lambda record: None)
    ttfas = [record.ttfa_s or 0.0 for record in sorted(result.records, key=lambda record: record.sent_s)]
    assert [record.sent_s for record in result.records] == pytest.approx([0.0] * 3, abs=1e-6)
    assert ttfas[0] < ttfas[1] < ttfas[2], "the sender's own delay counts"
    await asyncio.sleep(0)


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    run = finished("closed-001", [0.1, 0.2])
    run.result.records[1].error = "it broke"
    write_run(tmp_path / "run.json.xz", run)
    again = read_run(tmp_path / "run.json.xz")
    assert again.summary == run.summary
    assert again.result.records[1].error == "it broke"
    assert [path.name for path in tmp_path.iterdir()] == ["run.json.xz"]


def test_figures_come_from_the_samples() -> None:
    runs = {
        "closed-001": finished("closed-001", [0.1, 0.2, 0.3]),
        "poisson-010": finished("poisson-010", [0.1] * 100),
        "poisson-032": finished("poisson-032", [0.2] * 4, late_s=0.01),
    }
    runs["poisson-032"].result.records[0].error = "lost"
    runs["unseen-voice"] = replace(finished("unseen-voice", [0.21, 0.22, 0.23]), is_unseen=True)
    figures = end_to_end_figures(runs)
    assert figures["ttfa_1_p50_ms"] == pytest.approx(200)
    assert figures["unseen_minus_known_ms"] == pytest.approx(20)
    assert figures["ttfa_poisson10_p95_ms"] == pytest.approx(100)
    assert (figures["underrun_ratio_poisson10"], figures["underrun_ratio_poisson32"]) == (0.0, 1.0)
    assert figures["failed_ratio_poisson32"] == 0.25


def test_loads_without_mps_are_named_so_and_a_single_caller_of_them_is_left_out() -> None:
    runs = {"closed-001": finished("closed-001", [0.1]), "poisson-032": finished("poisson-032", [0.2] * 4)}
    runs["poisson-032"].result.records[0].error = "lost"
    assert figures_without_mps(runs) == {
        "ttfa_poisson32_no_mps_p95_ms": pytest.approx(200),
        "underrun_ratio_poisson32_no_mps": 0.0,
        "failed_ratio_poisson32_no_mps": 0.25,
    }


def test_a_run_that_listened_is_timed_from_dispatch_to_the_first_sound() -> None:
    runs = {name: finished(name, [0.1] * 3) for name in ("closed-001", "poisson-032", "audible-006")}
    for record in runs["audible-006"].result.records:
        record.dispatch_s, record.silence_s = 0.02, 0.05
    figures = end_to_end_figures(runs)
    assert figures["audible_poisson6_p95_ms"] == pytest.approx(130)
    assert figures["audible_poisson6_silence_p50_ms"] == pytest.approx(50)


def test_a_run_whose_sender_was_late_is_named() -> None:
    runs = [finished("poisson-032", [0.1] * 200), finished("poisson-064", [0.1] * 200)]
    for record in runs[1].result.records[-4:]:
        record.dispatch_s = 0.08
    found = table(runs, voices=64)
    assert "poisson-064: this process sent 1 % of the requests more than 80 ms late" in found
    assert "poisson-032:" not in found


def test_a_missing_run_is_named() -> None:
    with pytest.raises(BenchmarkError, match="poisson-032"):
        end_to_end_figures({"closed-001": finished("closed-001", [0.1])})


def test_a_family_s_figures_join_those_that_are_there(tmp_path: Path) -> None:
    offline, out = tmp_path / "offline.json", tmp_path / "families.json"
    write_json(offline, {"figures": {"rtf": 0.007}, "setting": {}, "environment": {"git_commit": "abc"}, "raw": {}})
    before = {"figures": {"cosyvoice2_offline_rtf": 0.003, "cosyvoice3_first_chunk_1_ms": 14.0}, "sources": {}}
    write_json(out, before)
    assert main(["--family", "cosyvoice3", "--offline", str(offline), "--out", str(out)]) == 0
    document = json.loads(out.read_text("utf-8"))
    assert document["figures"] == {**before["figures"], "cosyvoice3_offline_rtf": 0.007}
    assert document["sources"]["cosyvoice3"]["offline"]["environment"] == {"git_commit": "abc"}


def test_a_family_s_end_to_end_figures_are_named_as_its_engine_s(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match="poisson-016"):
        end_to_end_figures({"closed-001": finished("closed-001", [0.1])}, FAMILY_RUNS)


def test_a_family_s_open_loops_become_points_of_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    run = finished("poisson-016", [0.1, 0.2])
    run.load["requests_per_s"] = 16.0
    for each in (finished("closed-001", [0.1]), run):
        each.load.setdefault("requests_per_s", None)
        write_run(runs / f"{each.name}.json.xz", each)
    write_json(runs / "environment.json", {"setting": {}, "environment": {"git_commit": "abc"}})
    out, points = tmp_path / "families.json", tmp_path / points_file("h200", "cosyvoice2")
    asked = ["--family", "cosyvoice2", "--end-to-end", str(runs), "--points", str(points), "--out", str(out)]
    assert main(asked) == 0
    assert json.loads(out.read_text("utf-8"))["figures"]["cosyvoice2_ttfa_1_p50_ms"] == pytest.approx(100)
    monkeypatch.setattr(capacity, "_FILES", tmp_path)
    (arrangement,) = read_curves("h200", "cosyvoice2").arrangements
    assert [point.listeners for point in arrangement.points] == [pytest.approx(16.0 * 2.0)]


def test_a_pair_s_open_loops_are_another_arrangement(tmp_path: Path) -> None:
    run = finished("poisson-016", [0.1, 0.2])
    run.load["requests_per_s"] = 16.0
    sweep = {run.name: run, "closed-001": finished("closed-001", [0.1])}
    measured = [measured_json(TOGETHER, "one", sweep), measured_json(APART, "pair", sweep)]
    both = plan_points(tmp_path / points_file("h200"), measured, 100.0, {})["arrangements"]
    assert [(each["llm_gpus"], each["token2wav_gpus"], each["source"]["text"]) for each in both] == [
        (0, 1, "open loops, one"),
        (1, 1, "open loops, pair"),
    ]
