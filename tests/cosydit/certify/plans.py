"""What the tests of certify share: plans and checks without services."""

from __future__ import annotations

from pathlib import Path

from cosydit.certify.check import CheckContext, Findings, Plan
from cosydit.certify.run import all_checks, run_here, selected


def plan_in(folder: Path, device: str = "cpu", checkpoint: Path | None = None) -> Plan:
    """Return a plan that writes below a folder."""
    return Plan(checkpoint or folder / "checkpoint", folder / "out", folder, device)


def context_in(folder: Path, device: str = "cpu", checkpoint: Path | None = None) -> CheckContext:
    return CheckContext(plan_in(folder, device, checkpoint))


def outcome_of(path: str, folder: Path, device: str = "cpu", checkpoint: Path | None = None) -> Findings:
    """Run one check of the table here."""
    with context_in(folder, device, checkpoint) as context:
        (check,) = selected(all_checks(context.plan), [path])
        return run_here(context, check)
