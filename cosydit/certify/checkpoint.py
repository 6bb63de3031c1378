"""Checks of the host and of the checkpoint's files: sums and parts. Starts no service."""

from __future__ import annotations

from cosydit.certify.check import CheckContext, CheckFailedError, Findings, NotRunError
from cosydit.stack.checkpoint.verify_checkpoint import verify_checkpoint
from cosydit.stack.host_report import PROBES, Look, State
from servicekit.file_sums import WEIGHT_SUFFIXES, check_files, sums_path


def check_host(context: CheckContext, found: Findings, name: str) -> None:
    """One look at this host, as `cosydit doctor --gpu` takes it."""
    findings = list(PROBES[name](Look(context.plan.device, context.plan.checkpoint_dir)))
    told = [f"{finding.name}: {finding.value}" for finding in findings]
    if missing := [text for text, each in zip(told, findings, strict=True) if each.state is State.MISSING]:
        raise CheckFailedError("; ".join(missing))
    if not any(finding.state is State.OK for finding in findings):
        raise NotRunError("; ".join(told) or "nvidia-smi lists no GPU")
    found.notes += told


def check_sums(context: CheckContext, found: Findings) -> None:
    """Every weight file is the one that SHA256SUMS lists."""
    directory = context.plan.checkpoint_dir
    if sums_path(directory) is None:
        raise NotRunError(f"{directory} has no SHA256SUMS; `cosydit checkpoint seal {directory}` writes it")
    paths = sorted(path for path in directory.rglob("*") if path.suffix in WEIGHT_SUFFIXES and path.is_file())
    check_files(paths)
    found.tell("weight files", len(paths), least=1)


def check_parts(context: CheckContext, found: Findings) -> None:
    """Every part loads, and answers as it should: `cosydit checkpoint verify`."""
    reports = verify_checkpoint(context.plan.checkpoint_dir)
    found.tell("parts", len(reports))
    if problems := [f"{report.name}: {report.problem}" for report in reports if report.problem is not None]:
        raise CheckFailedError("; ".join(problems))
