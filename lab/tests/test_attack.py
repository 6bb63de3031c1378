"""A short attack campaign over all doors: it ends, nobody honest is refused, and its figures are those of its kinds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.attack import __main__ as campaign
from lab.attack import target
from lab.attack.__main__ import Row
from lab.attack.table import DOORS, FULL_KINDS, KINDS, counts
from lab.attack.target import Target
from tests.workers import free_ports, is_whole, random_checkpoint

INPUTS = 20 if is_whole() else 5
SLOW_DOORS = () if is_whole() else ("full services", "processes", "telemetry")
MOST_GROWTH_MB = 250.0


@pytest.mark.slow
def test_whatever_comes_to_any_door_the_honest_caller_is_spoken_to(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "free_ports", free_ports)
    monkeypatch.setattr(campaign, "QUIET_REQUESTS", 1)
    out, doors = tmp_path / "attack.json", [door for door in DOORS if door not in SLOW_DOORS]
    options = ["--inputs", str(INPUTS), "--checkpoint", str(random_checkpoint(tmp_path_factory)), "--out", str(out)]
    assert campaign.main([*options, "--doors", *doors]) == 0
    document = json.loads(out.read_text("utf-8"))
    rows, figures = document["kinds"], document["figures"]
    assert [row["failures"] for row in rows if row["failures"]] == []
    assert list(dict.fromkeys(row["door"] for row in rows)) == doors
    # While one process of two stands still, the honest caller speaks only afterwards.
    during = {(kind.door, kind.harm): int(kind.is_heard) for kind in (*KINDS, *FULL_KINDS)}
    assert all(row["asked"] >= 1 + during[row["door"], row["harm"]] for row in rows)
    assert figures["loop_stall_max_ms"] == max(row["loop_stall_max_ms"] for row in rows) > 0
    assert figures["memory_growth_max_mb"] == max(row["memory_growth_max_mb"] for row in rows) < MOST_GROWTH_MB
    zero = ("refused_wrongly", "foreign_addresses", "files_in_home", "tracebacks")
    assert {name: figures[name] for name in zero} == dict.fromkeys(zero, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("wrong", "log"), [(1, ""), (0, "Traceback (most recent call last):")])
def test_a_campaign_that_harmed_somebody_ends_with_a_failure(
    wrong: int,
    log: str,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @contextmanager
    def started(folder: Path, *_: object, **__: object) -> Iterator[Target]:
        folder.mkdir()
        (folder / "gateway.log").write_text(log)
        yield Target(target.Ports(0, 0, 0, 0), folder)

    async def measure(*_: object) -> list[Row]:
        return [Row("HTTP", "a flood", 1, refused_wrongly=wrong)]

    monkeypatch.setattr(campaign, "started", started)
    monkeypatch.setattr(campaign, "_measure", measure)
    options = ["--checkpoint", str(random_checkpoint(tmp_path_factory)), "--out", str(tmp_path / "attack.json")]
    assert campaign.main(options) == 1


def test_every_input_of_a_door_is_dealt_to_one_of_its_kinds() -> None:
    for door in dict.fromkeys(kind.door for kind in KINDS):
        assert sum(counts(KINDS, door, 500).values()) == 500
