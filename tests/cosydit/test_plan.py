"""`cosydit plan`: what is counted, what is refused, and that its file is the one that was made."""

from __future__ import annotations

from pathlib import Path

import pytest

from cosydit.cli import plan as capacity
from cosydit.cli.main import main
from cosydit.cli.plan import (
    Arrangement,
    CapacityPoint,
    Curves,
    Demand,
    PlanError,
    known_gpus,
    most_listeners,
    points_file,
    propose,
    read_curves,
)

POINTS = (CapacityPoint(100, 80, 0.0), CapacityPoint(200, 120, 0.0), CapacityPoint(300, 220, 0.0))
SHARED = Arrangement(0, 1, {"kind": "measured", "text": "a run"}, POINTS)
APART = Arrangement(1, 2, {}, tuple(CapacityPoint(4 * p.listeners, p.ttfa_p95_ms, 0) for p in POINTS))
CURVES = Curves("none", "many", (SHARED, APART), 100)


@pytest.mark.parametrize(
    ("p95_ms", "expected"),
    [
        pytest.param(79, (0.0, False), id="below the lightest load"),
        pytest.param(80, (100.0, False), id="at a point"),
        pytest.param(170, (250.0, False), id="between two points"),
        pytest.param(500, (300.0, True), id="beyond the last point nothing is claimed"),
    ],
)
def test_the_most_listeners_under_a_bound(p95_ms: float, expected: tuple[float, bool]) -> None:
    assert most_listeners(POINTS, p95_ms) == expected


def test_a_load_whose_listeners_hear_gaps_is_not_held() -> None:
    points = (*POINTS[:2], CapacityPoint(300, 130, 0.2))
    assert most_listeners(points, 500) == (200, False)


@pytest.mark.parametrize("p95_ms", [130, 500])
def test_a_load_that_is_not_held_ends_the_curve_whatever_its_waiting_time(p95_ms: float) -> None:
    points = (*POINTS[:2], CapacityPoint(300, 130, 0.0, is_held=False), CapacityPoint(400, 125, 0.0))
    assert most_listeners(points, p95_ms) == (200, False)


@pytest.mark.parametrize(
    ("listeners", "units"),
    [pytest.param(245, 1, id="350 * (1 - 0.3) rounds to less than 245"), (246, 2), (490, 2), (491, 3)],
)
def test_exactly_what_is_free_needs_no_more(listeners: int, units: int) -> None:
    held = Curves("none", "many", (Arrangement(1, 1, {}, (CapacityPoint(350, 100, 0.0),)),), 350)
    (proposal,) = propose(held, Demand(listeners, 100))
    assert (proposal.units, Demand(listeners, 100).units(held.listeners_a_gateway)) == (units, units)


def test_gpus_are_counted_with_headroom_and_the_fewest_come_first() -> None:
    shared, apart = propose(CURVES, Demand(1000, 170, headroom=0.2))
    assert (shared.arrangement, shared.units) == (SHARED, 5)  # 250 * 0.8 listeners each
    assert (apart.arrangement, apart.units) == (APART, 2)  # 1000 * 0.8


def test_what_no_load_meets_is_refused_with_what_would() -> None:
    with pytest.raises(PlanError, match="at its lightest load one none took 80 ms"):
        propose(CURVES, Demand(10, 50))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--listeners", "0"),
        ("--p95-ms", "0"),
        ("--p95-ms", "nan"),
        ("--p95-ms", "inf"),
        ("--headroom", "1"),
        ("--headroom", "nan"),
    ],
)
def test_demands_without_sense_are_refused(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "--listeners", "1", "--p95-ms", "100", option, value])
    assert f"{option}: got '{value}', expected" in capsys.readouterr().err


def test_an_h100_with_both_services_is_planned_by_its_own_loads(capsys: pytest.CaptureFixture[str]) -> None:
    (shared,) = read_curves("h100").arrangements
    assert [point.listeners for point in shared.points] == [80, 160, 256, 512]
    assert main(["plan", "--listeners", "500", "--p95-ms", "250", "--gpu", "h100"]) == 0
    assert "3 H100, each with both services" in capsys.readouterr().out


def test_a_family_that_was_not_measured_gets_no_other_s_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(capacity, "_FILES", tmp_path)
    points = Path(capacity.__file__).with_name("capacity_h200.json").read_text("utf-8")
    (tmp_path / points_file("h200")).write_text(points, encoding="utf-8")
    asked = ["plan", "--listeners", "500", "--p95-ms", "250", "--family", "cosyvoice3"]
    assert main(asked) == 1
    assert "got family cosyvoice3, whose listeners were measured on no GPU" in capsys.readouterr().err
    (tmp_path / points_file("h200", "cosyvoice3")).write_text(points, encoding="utf-8")
    assert main(asked) == 0
    assert known_gpus() == known_gpus("cosyvoice3") == ["h200"]


def test_the_command_tells_gpus_headroom_and_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--listeners", "500", "--p95-ms", "250"]) == 0
    printed = capsys.readouterr().out
    for said in ("500 listeners", "H200", "1 + 1 GPUs", "measured", "headroom: 30 %", "gateway: 3 processes"):
        assert said in printed


def test_the_command_fails_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--listeners", "500", "--p95-ms", "250", "--gpu", "abacus"]) == 1
    assert "expected one of h100, h200" in capsys.readouterr().err
