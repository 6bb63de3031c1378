"""Admission of one GPU host, simulated: nobody is refused below its capacity, and it recovers from overload."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import simulate


@pytest.mark.slow
def test_who_is_refused_is_told_for_each_rate_and_nobody_is_when_overload_is_over(tmp_path: Path) -> None:
    out = tmp_path / "admission.json"

    assert simulate.main(["admission", "--rates", "20", "100", "--seconds", "6", "--out", str(out)]) == 0

    rates = json.loads(out.read_text("utf-8"))["rates"]
    usual, overload = rates["20.0"], rates["100.0"]
    assert usual["requests"] == 120 and overload["requests"] == 600
    assert not usual["refused"] and not usual["failed"] and not usual["ran_dry"]
    assert overload["refused"] and not overload["failed"]
    assert overload["recovered"] and not overload["refused_recovered"]
