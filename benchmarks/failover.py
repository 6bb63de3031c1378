"""Replicas killed and restarted under load, all on this machine: who loses what.

`python -m benchmarks.failover --checkpoint DIR --out failover.json` starts one LLM, several token2wav servers and a
gateway, lets callers speak, and kills a token2wav server, then the LLM, then restarts all token2wav servers in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.lib.failover import Callers, Processes, Scenario, StepReport
from cosydit.bench.report import aligned_table, describe_environment, write_json
from cosydit.stack.checkpoint.checkpoints import resolve_checkpoint
from cosydit.stack.stack import PORT_COUNT, LocalStack, Ports, StackOptions, TritonPorts
from token2wav_service.serving.process.server import free_ports

BOUND_DB = 45.0
"""Least ratio of every waveform, end to end."""
TEXTS = (
    "The first caller asks for the time of the next train to the coast.",
    "A second voice reads the weather, and it will rain in the afternoon.",
    "Somebody counts the boats that come back before it is dark.",
)
HEAD = ("step", "requests", "lost", "different", "worst dB", "longest pause s", "slowest s", "failovers")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; exit status 1 if anything was lost or, where it must be equal, differs."""
    args = _parser().parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="failover-") as made:
        work_dir = args.work_dir or Path(made)
        with LocalStack(stack_options(args.checkpoint, work_dir, args.servers), with_gateway=True) as stack:
            reports = asyncio.run(run_all(stack, args.callers))
    rows = [HEAD, *(tuple(str(getattr(report, name)) for name in _COLUMNS) for report in reports)]
    print(aligned_table(rows), end="")
    for report in reports:
        for error in report.errors:
            print(f"{report.name}: {error}", file=sys.stderr)
    if args.out is not None:
        steps = [report.as_dict() for report in reports]
        write_json(args.out, {"environment": describe_environment(vars(args)), "bound_db": BOUND_DB, "steps": steps})
    return int(any(report.lost or (report.different and not is_other_speech(report)) for report in reports))


def is_other_speech(report: StepReport) -> bool:
    """Whether the step may change what is said: an LLM that goes on draws other tokens."""
    return report.name.endswith("LLM")


async def run_all(stack: LocalStack, callers: int) -> list[StepReport]:
    """Take every step."""
    scenario = Scenario(Processes(stack), Callers(stack.options.gateway_url, list(TEXTS)), callers, BOUND_DB)
    steps = (scenario.unbroken, scenario.kill_token2wav, scenario.kill_llm, scenario.rolling_restart)
    return [await step() for step in steps]


def stack_options(checkpoint: Path | None, work_dir: Path, servers: int) -> StackOptions:
    """Describe a stack on free ports whose callers wait rather than being refused."""
    ports = free_ports(PORT_COUNT + 3 * (servers - 1))
    more = [TritonPorts(*ports[at : at + 3]) for at in range(PORT_COUNT, len(ports), 3)]
    return StackOptions(
        checkpoint=resolve_checkpoint(checkpoint, work_dir),
        work_dir=work_dir,
        ports=Ports(*ports[:PORT_COUNT]),
        settings={"BLS_INSTANCE_NUM": "1", "num_threads": "1"},
        replicas=tuple(more),
        # Chunks of the same cuts in every run, whatever the load: their waveforms are compared.
        gateway={"admission_wait_s": "60", "dynamic_chunk_strategy": "exponential"},
    )


_COLUMNS = ("name", "requests", "lost", "different", "worst_snr_db", "longest_pause_s", "slowest_s", "failovers")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.failover", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--checkpoint", type=Path, help="directory with token2wav/, llm/ and voices/ (default: a small random one)"
    )
    parser.add_argument(
        "--callers", type=int, default=24, help="number of callers at the same time (default %(default)s)"
    )
    parser.add_argument("--servers", type=int, default=3, help="number of token2wav servers (default %(default)s)")
    parser.add_argument("--work-dir", type=Path, help="directory for logs and repositories (default: a temporary one)")
    parser.add_argument("--out", type=Path, help="JSON to write")
    return parser


if __name__ == "__main__":
    sys.exit(main())
