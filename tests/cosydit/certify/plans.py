"""What the tests of certify share: plans and checks without services."""

from __future__ import annotations

from pathlib import Path

from cosydit.certify.check import Check, CheckFunction, Plan
from cosydit.certify.context import CheckContext


def plan_in(folder: Path, device: str = "cpu", checkpoint: Path | None = None) -> Plan:
    """Return a plan that writes below a folder."""
    return Plan(checkpoint or folder / "checkpoint", folder / "out", folder, device)


def context_in(folder: Path, device: str = "cpu", checkpoint: Path | None = None) -> CheckContext:
    return CheckContext(plan_in(folder, device, checkpoint))


def check_of(run: CheckFunction, area: str = "host", name: str = "one") -> Check:
    return Check(area, name, run, "certify.md")
