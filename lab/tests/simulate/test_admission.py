"""Admission of one GPU host, simulated: nobody is refused below its capacity, and it recovers from overload."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.simulate import __main__ as simulate


@pytest.mark.slow
def test_who_is_refused_is_told_for_each_rate_and_nobody_is_when_overload_is_over(tmp_path: Path) -> None:
    out = tmp_path / "admission.json"

    assert simulate.main(["admission", "--rates", "20", "200", "--seconds", "6", "--out", str(out)]) == 0

    rates = json.loads(out.read_text("utf-8"))["rates"]
    usual, overload = rates["20.0"], rates["200.0"]
    assert usual["requests"] == 120 and overload["requests"] == 1200
    assert not usual["refused"] and not usual["failed"] and not usual["ran_dry"]
    assert overload["refused"] and not overload["failed"]
    assert overload["short_s"] < 0.25 * overload["requests"], "seconds of all gaps"
    assert overload["recovered"] and not overload["refused_recovered"]
