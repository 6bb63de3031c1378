"""A short attack campaign over all doors: it ends, nobody honest is refused, and its figures are those of its doors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.attack import __main__ as campaign
from lab.attack.inputs import DOORS, TABLE
from tests.workers import free_ports, is_whole, random_checkpoint

INPUTS = 20 if is_whole() else 5
MOST_GROWTH_MB = 250.0


@pytest.mark.slow
def test_whatever_comes_to_any_door_the_honest_caller_is_spoken_to(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "free_ports", free_ports)
    monkeypatch.setattr(campaign, "BASELINE", 5)
    out = tmp_path / "attack.json"
    options = ["--inputs", str(INPUTS), "--checkpoint", str(random_checkpoint(tmp_path_factory)), "--out", str(out)]
    assert campaign.main(options) == 0
    document = json.loads(out.read_text("utf-8"))
    rows, figures = document["doors"], document["figures"]
    assert [row["door"] for row in rows] == list(DOORS) == list(dict.fromkeys(door for door, _, _ in TABLE))
    assert [row["failures"] for row in rows if row["failures"]] == []
    assert (figures["inputs"], figures["refused_wrongly"]) == (INPUTS * len(DOORS), 0)
    assert all(row["asked"] > 0 for row in rows)
    assert figures["loop_stall_max_ms"] == max(row["loop_stall_max_ms"] for row in rows) > 0
    assert figures["memory_growth_max_mb"] == max(row["memory_growth_max_mb"] for row in rows) < MOST_GROWTH_MB
