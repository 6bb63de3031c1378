"""Storms pass over a real gateway: who is let in is spoken to the end, others are told when to come."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.load import storms
from lab.load.storms import LOUD, Callers, Storm, figures
from servicekit.clock import SystemClock
from tests.workers import free_ports, is_whole, random_checkpoint

CAPACITY, TIMES = (20, 15) if is_whole() else (8, 5)


@pytest.mark.slow
def test_all_who_are_let_in_are_spoken_to_the_end(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(storms, "free_ports", free_ports)
    monkeypatch.setattr(storms, "WARM_UP_S", 0.0)
    out = tmp_path / "storms.json"
    options = ["--times", str(TIMES), "--seconds", "5" if is_whole() else "2", "--capacity", str(CAPACITY)]
    options += ["--doors", "http"]  # all doors take minutes; tests/gateway/lifecycle has the storms in virtual time
    options += ["--checkpoint", str(random_checkpoint(tmp_path_factory)), "--out", str(out)]
    options += [] if is_whole() else ["--no-flood"]
    assert storms.main(options) == 0
    document = json.loads(out.read_text("utf-8"))
    rows = document["storms"]
    assert list(rows) == [f"http {TIMES}", *(["flood 1", "flood 16"] if is_whole() else [])]
    assert all(row["callers"] == CAPACITY * TIMES for name, row in rows.items() if not name.startswith("flood"))
    assert [row["failures"] for row in rows.values() if row["failures"]] == []
    assert all(row["ended"] > 0 for row in rows.values())
    # Who comes before the first measurement is let in; the short storm may be over by then.
    assert not is_whole() or all(row["refused"] > 0 for name, row in rows.items() if name != "flood 1")
    assert document["figures"]["failed"] == 0
    assert (tmp_path / "storms.webp").stat().st_size
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(rows)
    before = out.read_bytes()
    assert storms.main([*options, "--resume"]) == 0
    assert out.read_bytes() == before


def test_the_figures_are_those_of_all_storms() -> None:
    def storm(goodput: float, kept: int, quiet_p95_s: float | None = None) -> Storm:
        return Storm("http", 1.0, 20, 5.0, goodput, 10, 0, 7, 4, kept, 1.0, quiet_p95_s)

    rows = {"http 1": storm(0.9, 4), "http 4": storm(0.85, 2)}
    rows |= {"flood 1": storm(0.1, 0, 2.0), "flood 16": storm(0.1, 0, 2.2)}
    assert figures(rows) == {
        "goodput_least": 0.85,
        "ended": 40,
        "failed": 0,
        "refused": 28,
        "returns": 8,
        "kept_share": 0.75,
        "quiet_p95_ratio": 1.1,
    }


async def test_a_request_that_breaks_off_counts_as_failed() -> None:
    async def broken(key: str, text: str, heard: object) -> None:
        assert key == LOUD
        raise ConnectionError("gone")

    callers = Callers(broken, LOUD, SystemClock().now() + 0.5)
    await callers.flood(3)
    assert len(callers.tally.failed) == 3 and not callers.tally.ended
