"""A fault campaign: what callers notice when processes die, wires break and clients misbehave, and what is left behind.

`python -m lab.faults --out faults.json` starts a gateway before stand-ins of both services, three of each and
then one, and at last before the product's own services. While callers speak, it does one thing after the other to them
at random moments. Every caller must hear every sample, all state must be freed, and the next caller must be served.
`--resume` goes on with a campaign that was broken off. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import astuple, fields
from pathlib import Path

from benchmarks import failover
from cosydit.bench.report import aligned_table, describe_environment, write_text
from cosydit.stack.checkpoint.checkpoints import resolve_checkpoint
from cosydit.stack.process import stopped_by_signals
from lab.faults.plan import Fault, Setting, draw
from lab.faults.run import FaultReport, Journal, figures, run_campaign
from lab.faults.world import RealWorld, StandInWorld, World

FAULTS, REAL_FAULTS = 400, 12
DEFAULT_JOURNAL = Path(".cosydit/faults.jsonl")
_INTERRUPTED = 130
_HEAD = (
    "setting: boundary: fault",
    "faults",
    "requests",
    "failovers",
    "refused",
    "lost",
    "crossed",
    "stuck",
    "worst free s",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; exit status 1 if anything was lost, crossed or stuck."""
    args = _parser().parse_args(argv)
    faults = draw(args.faults, args.seed, min(args.real, args.faults))
    plan = {"faults": args.faults, "real": args.real, "seed": args.seed}
    try:
        journal = Journal(args.journal, plan, args.resume)
    except ValueError as error:
        print(f"faults: {error}", file=sys.stderr)
        return 2
    try:
        with tempfile.TemporaryDirectory(prefix="faults-") as made, stopped_by_signals(lambda: None):
            asyncio.run(_run(faults, journal, args.checkpoint, args.work_dir or Path(made)))
    except KeyboardInterrupt:
        done = f"{len(journal.reports)} of {len(faults)} faults are done"
        print(f"faults: stopped; {done}, go on with: python -m lab.faults --resume ...", file=sys.stderr)
        return _INTERRUPTED
    print(aligned_table([_HEAD, *_rows(journal.reports)]), end="")
    found = figures(journal.reports)
    print(", ".join(f"{name} {value:g}" for name, value in found.items()))
    if args.out is not None:
        head = {"figures": found, "environment": describe_environment(vars(args)), "plan": plan}
        write_text(args.out, _document(head, journal.reports))
    return 0 if all(report.is_well for report in journal.reports) else 1


async def _run(faults: Sequence[Fault], journal: Journal, checkpoint: Path | None, work_dir: Path) -> None:
    done = {report.number for report in journal.reports}
    left = [fault for fault in faults if fault.number not in done]
    began_s, count = time.monotonic(), 0

    def tell(report: FaultReport) -> None:
        nonlocal count
        count += 1
        journal.add(report)
        left_s = (time.monotonic() - began_s) / count * (len(left) - count)
        print(_line(report, len(journal.reports), len(faults), left_s), flush=True)

    def make_world(setting: Setting) -> World:
        folder = work_dir / setting.value
        folder.mkdir(parents=True, exist_ok=True)
        if setting is Setting.REAL:
            return RealWorld(failover.stack_options(checkpoint, folder, 3), folder)
        layout = resolve_checkpoint(checkpoint, work_dir)
        return StandInWorld(3 if setting is Setting.THREE else 1, layout, folder, count)

    await run_campaign(left, make_world, tell)


def _document(head: Mapping[str, object], reports: Sequence[FaultReport]) -> str:
    """Return the result as JSON, each fault in one line: its values in the order of `columns`."""
    columns = json.dumps([each.name for each in fields(FaultReport)])
    rows = ",\n".join(f"    {json.dumps(astuple(report))}" for report in reports)
    return f'{json.dumps(head, indent=2)[:-2]},\n  "columns": {columns},\n  "faults": [\n{rows}\n  ]\n}}\n'


def _line(report: FaultReport, done: int, count: int, left_s: float) -> str:
    what = f"{report.setting}: {report.boundary}: {report.fault}"
    counts = f"lost {report.lost} crossed {report.crossed} refused {report.refused} of {report.requests}"
    heard = f"{report.failovers} failovers, {counts}"
    free = "never" if report.free_s is None else f"{report.free_s:.2f} s"
    mark = "ok  " if report.is_well else "FAIL"
    errors = "" if report.is_well else f"; {'; '.join(report.errors)}"
    return f"{mark} {done:3}/{count} {what:45} {heard}, free after {free}, {left_s / 60:.0f} min left{errors}"


def _rows(reports: Sequence[FaultReport]) -> list[tuple[str, ...]]:
    groups: dict[str, list[FaultReport]] = defaultdict(list)
    for report in reports:
        groups[f"{report.setting}: {report.boundary}: {report.fault}"].append(report)
    names = ("faults", "requests", "failovers", "refused", "lost", "crossed", "stuck", "worst_free_s")
    return [(name, *(f"{figures(group)[key]:g}" for key in names)) for name, group in sorted(groups.items())]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab.faults", description=__doc__, allow_abbrev=False)
    parser.add_argument("--faults", type=int, default=FAULTS, help="number of faults (default %(default)s)")
    parser.add_argument(
        "--real",
        type=int,
        default=REAL_FAULTS,
        help="number of them with the product's own services (default %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=1, help="equal seeds draw equal campaigns (default %(default)s)")
    parser.add_argument("--resume", action="store_true", help="continue the campaign in the journal")
    parser.add_argument(
        "--journal", type=Path, default=DEFAULT_JOURNAL, help="file of the reports so far (default %(default)s)"
    )
    parser.add_argument(
        "--checkpoint", type=Path, help="directory with token2wav/, llm/ and voices/ (default: the demo voice)"
    )
    parser.add_argument("--work-dir", type=Path, help="directory for logs and repositories (default: a temporary one)")
    parser.add_argument("--out", type=Path, help="JSON to write")
    return parser


if __name__ == "__main__":
    sys.exit(main())
