"""The gateway's cost is taken over real sockets, from a gateway that speaks to services without models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import gateway_cost
from tests.workers import free_ports, is_whole


@pytest.mark.slow
@pytest.mark.skipif(not is_whole(), reason="starts the services of a benchmark; the nightly run has it")
def test_every_rate_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_cost, "free_ports", free_ports)
    out = tmp_path / "cost.json"
    assert gateway_cost.main(["--rates", "1", "2", "--seconds", "1", "--out", str(out)]) == 0
    document = json.loads(out.read_text("utf-8"))
    assert [(cost["requests_per_s"], cost["requests"]) for cost in document["costs"]] == [(1, 1), (2, 2)]
    assert all(cost["loop_s"] > 0 and cost["ttfa_p50_s"] > 0 for cost in document["costs"])
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.slow
@pytest.mark.skipif(not is_whole(), reason="starts the services of a benchmark thrice; the nightly run has it")
def test_an_earlier_commit_and_this_tree_are_measured_by_turns(tmp_path: Path) -> None:
    out = tmp_path / "cost.json"
    turns = ["--rounds", "1", "--against", "HEAD"]
    assert gateway_cost.main(["--rates", "4", "--seconds", "1", *turns, "--out", str(out)]) == 0
    document = json.loads(out.read_text("utf-8"))
    [before_s], [today_s] = (document["cpu_s_a_request"][name] for name in ("before", "today"))
    assert document["commit_before"] == "HEAD" and document["cpu_ratio"] == pytest.approx(today_s / before_s, abs=1e-4)
