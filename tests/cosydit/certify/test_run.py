"""A check passes by its figures, fails by its errors, and takes nothing else down with it."""

from __future__ import annotations

import itertools
import math
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from cosydit.certify import run as certify_run
from cosydit.certify.check import Check, CheckContext, CheckFailedError, Findings, NotRunError, Result
from cosydit.certify.run import all_checks, run_checks, run_here, selected
from tests.cosydit.certify.plans import context_in, plan_in

ROOT = Path(__file__).parents[3]


def check_of(run: Callable[[CheckContext, Findings], None]) -> Check:
    return Check("host/one", run, "certify.md")


def outcome_of(folder: Path, *, raises: Exception | None = None, value: float = 1.0) -> Findings:
    def run(context: CheckContext, found: Findings) -> None:
        found.tell("errors", value, most=1)
        found.notes.append("looked at")
        if raises is not None:
            raise raises

    return run_here(context_in(folder), check_of(run))


def test_a_check_passes_within_its_bounds(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path)
    assert (outcome.result, outcome.reason, outcome.notes) == (Result.PASS, "", ["looked at"])
    assert "errors 1 (at most 1)" in outcome.describe()


@pytest.mark.parametrize("value", [2.0, math.nan])
def test_a_figure_beyond_its_bound_fails_the_check_and_is_told(tmp_path: Path, value: float) -> None:
    outcome = outcome_of(tmp_path, value=value)
    assert outcome.result is Result.FAIL and outcome.reason == f"errors {value:.4g} (at most 1)"


@pytest.mark.parametrize(
    ("error", "result", "said"),
    [
        (CheckFailedError("the bias was dropped"), Result.FAIL, "the bias was dropped"),
        (ZeroDivisionError("by zero"), Result.FAIL, "ZeroDivisionError: by zero"),
        (NotRunError("no GPU"), Result.NOT_RUN, "no GPU"),
        (ModuleNotFoundError("none", name="pocketsphinx"), Result.NOT_RUN, "[ears]"),
        (ModuleNotFoundError("none", name="of_nobody"), Result.FAIL, "ModuleNotFoundError"),
    ],
)
def test_an_error_is_the_outcome(tmp_path: Path, error: Exception, result: Result, said: str) -> None:
    outcome = outcome_of(tmp_path, raises=error)
    assert outcome.result is result and said in outcome.reason


def test_what_is_shared_is_opened_once_and_not_again_after_a_failure(tmp_path: Path) -> None:
    context, opened = context_in(tmp_path), []

    def fail() -> AbstractContextManager[str]:
        opened.append("one")
        raise OSError("no port")

    with pytest.raises(OSError, match="no port"):
        context.shared("server", fail)
    with pytest.raises(NotRunError, match="server could not be started"):
        context.shared("server", fail)
    one, again = (context.shared("other", lambda: nullcontext(["other"])) for _ in range(2))
    assert one is again and opened == ["one"]


@pytest.mark.slow
def test_a_process_that_dies_fails_its_check_and_the_rest_goes_on(tmp_path: Path) -> None:
    """Takes two processes, which is what it is about."""
    (known,) = selected(all_checks(plan_in(tmp_path)), ["host/shared-memory"])
    unknown = replace(known, path="host/no-such-check")
    outcomes = list(run_checks(plan_in(tmp_path), [unknown, known]))
    assert [outcome.check for outcome in outcomes] == ["host/no-such-check", "host/shared-memory"]
    assert [outcome.result for outcome in outcomes] == [Result.FAIL, Result.PASS]
    assert "ended with status" in outcomes[0].reason and "KeyError" in outcomes[0].log_tail


@pytest.mark.slow
def test_a_check_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certify_run, "TIMEOUT_S", 0.0)
    (outcome,) = run_checks(plan_in(tmp_path), selected(all_checks(plan_in(tmp_path)), ["host/shared-memory"]))
    assert outcome.result is Result.FAIL and "took longer than 0 s" in outcome.reason


def test_only_chooses_areas_and_checks(tmp_path: Path) -> None:
    checks = all_checks(plan_in(tmp_path))
    assert selected(checks, []) == checks
    assert [check.path for check in selected(checks, ["token2wav"])] == [
        "token2wav/golden",
        "token2wav/reference",
        "token2wav/speech-tokens",
    ]
    with pytest.raises(ValueError, match="got --only llm/emb, expected AREA"):
        selected(checks, ["llm/emb"])


def test_every_check_has_a_page_and_a_function_and_no_function_is_left_out(tmp_path: Path) -> None:
    checks = all_checks(plan_in(tmp_path, device="cuda"))
    assert len({check.path for check in checks}) == len(checks) > 25
    assert [check.path for check in checks if not (ROOT / "docs" / check.page).is_file()] == []
    named = {check.run.args[0] for check in checks if isinstance(check.run, partial)}
    paths = (ROOT / "cosydit" / "certify").glob("*.py")
    found = ((path.stem, re.findall(r"^def (check_\w+)", path.read_text("utf-8"), re.M)) for path in paths)
    assert named == {f"{module}.{name}" for module, names in found for name in names}


def test_a_module_that_cannot_be_imported_fails_its_own_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (check,) = selected(all_checks(plan_in(tmp_path)), ["end-to-end/load"])
    monkeypatch.setitem(sys.modules, "cosydit.certify.end_to_end", None)
    outcome = run_here(context_in(tmp_path), check)
    assert outcome.result is Result.FAIL and "end_to_end" in outcome.reason


def test_checks_that_share_services_stand_together(tmp_path: Path) -> None:
    groups = [check.group for check in all_checks(plan_in(tmp_path, device="cuda"))]
    assert len(set(groups)) == len([key for key, _ in itertools.groupby(groups)])
