"""The soak: what grows is seen, every process counts with its service, and two minutes of it leave nothing behind."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.failover import stack_options
from cosydit.stack.stack import Ports
from lab.faults.clients import Doors
from lab.load import soak
from lab.load.churn import Churn
from lab.load.process_usage import MOST_GROWTH_MIB, MOST_MORE_THREADS, Usage, third_medians, usages
from lab.load.soak import Watched, figures, is_well
from tests.workers import is_whole, random_checkpoint

STEADY = Usage(500.0, 10, 20)


def _watched(*series: Usage, left: float = 0.0) -> Watched:
    return Watched(
        moments_s=[0.0], samples=[{"llm": STEADY}], quiet_s=[1.0], quiet=[{"llm": each} for each in series], left=[left]
    )


@pytest.fixture
def churn(tmp_path_factory: pytest.TempPathFactory) -> Churn:
    voice = next((random_checkpoint(tmp_path_factory) / "voices").glob("*.wav"))
    return Churn(Doors(1, 2, 3), voice, random.Random(1))


def test_a_soak_takes_no_port_that_another_stack_has_by_default(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    options = stack_options(random_checkpoint(tmp_path_factory), tmp_path, 2)

    ports = [*asdict(options.ports).values(), *(port for each in options.replicas for port in asdict(each).values())]

    assert len(ports) == len(set(ports)) == 10
    assert not set(ports) & set(asdict(Ports()).values())


def test_what_is_the_same_at_the_end_as_in_the_middle_is_flat(churn: Churn) -> None:
    warming_up = [Usage(100.0, 3, 3), Usage(400.0, 9, 9)]
    found = figures(_watched(*warming_up, *[STEADY] * 4), churn)
    assert found["not_flat"] == found["memory_mib_growth_most"] == 0
    assert is_well(found)


@pytest.mark.parametrize(
    "late",
    [
        pytest.param(Usage(500.0 + MOST_GROWTH_MIB + 1, 10, 20), id="memory"),
        pytest.param(Usage(500.0, 11 + MOST_MORE_THREADS, 20), id="threads"),
        pytest.param(Usage(500.0, 10, 40), id="descriptors"),
    ],
)
def test_what_grows_is_not_well(churn: Churn, late: Usage) -> None:
    found = figures(_watched(*[STEADY] * 4, late, late), churn)
    assert found["not_flat"] == 1
    assert not is_well(found)


def test_what_stays_and_what_fails_is_not_well(churn: Churn) -> None:
    assert not is_well(figures(_watched(*[STEADY] * 3, left=1.0), churn))
    churn.tally.failed = 1
    assert not is_well(figures(_watched(*[STEADY] * 3), churn))


def test_a_large_process_may_vary_by_a_share_of_its_memory() -> None:
    assert Usage(10_400.0, 10, 20).is_flat_since(Usage(10_000.0, 10, 20))
    assert third_medians([STEADY, Usage(9.0, 1, 1), Usage(5.0, 1, 1)]) == (Usage(9.0, 1, 1), Usage(5.0, 1, 1))


@pytest.mark.slow
def test_what_a_service_started_counts_with_it() -> None:
    waits = "import sys; sys.stdin.read()"
    starts = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {waits!r}], start_new_session=True)"
    says_so = f"print(flush=True); {waits}"
    with subprocess.Popen([sys.executable, "-c", says_so], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as alone:
        assert alone.stdout is not None and alone.stdout.readline() == b"\n"
        own = usages({alone.pid: "alone", os.getpid(): "we"})
        assert own["alone"].memory_mib > 1 and own["alone"].threads == 1 and own["alone"].descriptors >= 3
        assert alone.stdin is not None
        alone.stdin.close()
    with subprocess.Popen([sys.executable, "-c", starts], stdin=subprocess.PIPE) as parent:
        while usages({parent.pid: "both"}).get("both", Usage()).threads < 2:
            assert parent.poll() is None
        assert parent.stdin is not None
        parent.stdin.close()


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.skipif(not is_whole(), reason="takes three minutes: every night, with COSYDIT_CAMPAIGNS=all")
def test_two_minutes_leave_nothing_behind(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "soak.json"
    options = ["--minutes", "2", "--rounds", "9", "--out", str(out)]
    assert soak.main([*options, "--checkpoint", str(random_checkpoint(tmp_path_factory))]) == 0, capsys.readouterr()
    document = json.loads(out.read_text("utf-8"))
    assert document["figures"]["ended"] > 0
    assert {"gateway", "llm_service", "token2wav_dit"} <= document["after_each_round"].keys()
    assert out.with_suffix(".webp").stat().st_size
