"""`cosydit certify --self-test`: every check in its short form, then every planted fault, each to be found by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from cosydit.certify.check import Check, Outcome, Plan, Result, all_checks
from cosydit.certify.faults import FAULTS, Fault
from cosydit.certify.run import run_checks, selected

FAULTS_FOLDER = "faults"


@dataclass(frozen=True)
class FaultReport:
    """Whether one planted fault was found."""

    fault: Fault
    outcome: Outcome

    @property
    def is_found(self) -> bool:
        """Tell whether its check failed, and said why."""
        return self.outcome.result is Result.FAIL and self.fault.said in self.outcome.reason


def wanted_faults(checks: Sequence[Check], only: Sequence[str]) -> Iterator[Fault]:
    """Yield the faults whose checks are wanted."""
    paths = {check.path for check in selected(checks, only)}
    yield from (fault for fault in FAULTS if fault.check in paths)


def find_faults(plan: Plan, faults: Sequence[Fault], on_report: Callable[[FaultReport], None]) -> None:
    """Plant each fault, run the check that must find it, and tell."""
    by_path = {check.path: check for check in all_checks(plan)}
    checks = [replace(by_path[fault.check], fault=fault.name) for fault in faults]
    waiting = list(faults)
    run_checks(
        replace(plan, out_dir=plan.out_dir / FAULTS_FOLDER),
        checks,
        lambda path: None,
        lambda outcome: on_report(FaultReport(waiting.pop(0), outcome)),
    )
