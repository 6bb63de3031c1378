"""Planted faults: each is found, none stays behind, and one real self-test with real services finds its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cosydit.certify import checkpoint
from cosydit.certify.check import Result, all_checks
from cosydit.certify.faults import FAULTS, WRONG_FILE, WRONG_WEIGHT, wrong_weight
from cosydit.certify.run import run_here
from cosydit.cli.main import main
from tests.cosydit.certify.plans import context_in, plan_in
from tests.workers import random_checkpoint
from token2wav_service import build

SUMS = next(check for check in checkpoint.checks() if check.name == "sums")


def test_every_fault_has_a_check_that_is_there(tmp_path: Path) -> None:
    assert {fault.check for fault in FAULTS} <= {check.path for check in all_checks(plan_in(tmp_path))}
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_a_changed_byte_is_found_and_the_checkpoint_is_left_alone(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    weights = random_checkpoint(tmp_path_factory)
    context = context_in(tmp_path, checkpoint=weights)
    found = run_here(context, replace(SUMS, fault=WRONG_FILE))
    context.end_group()
    assert found.result is Result.FAIL and "hift.pt has SHA-256" in found.reason
    assert run_here(context, SUMS).result is Result.PASS


@pytest.mark.slow
def test_a_wrong_weight_is_in_what_is_loaded_then_and_not_later(tmp_path_factory: pytest.TempPathFactory) -> None:
    model_dir = random_checkpoint(tmp_path_factory) / "token2wav"
    good = build.load_models(model_dir).flow.state_dict()  # type: ignore[attr-defined]
    with wrong_weight(WRONG_WEIGHT):
        spoiled = build.load_models(model_dir).flow.state_dict()  # type: ignore[attr-defined]
    later = build.load_models(model_dir).flow.state_dict()  # type: ignore[attr-defined]
    assert sum(not torch.equal(good[name], spoiled[name]) for name in good) == 1
    assert all(torch.equal(good[name], later[name]) for name in good)


@pytest.mark.slow
@pytest.mark.servers
def test_the_self_test_finds_what_it_plants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Starts an LLM service twice: with the demo voice, and with ids that are off by one."""
    only = ("host/driver", "host/mps", "llm/embedded/token-offset")
    arguments = [word for path in only for word in ("--only", path)]
    status = main(["certify", "--self-test", "--out", str(tmp_path / "out"), "--work-dir", str(tmp_path), *arguments])
    told = capsys.readouterr().out
    assert status == 0, told
    assert "3 of 3 planted faults found" in told and "MISSED" not in told
