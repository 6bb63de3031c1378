"""`cosydit certify`: prove this host and these weights, and write down what was seen."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cosydit.bench.report import describe_environment
from cosydit.bench.types import count, pair
from cosydit.certify.check import PAGE_FILE, CheckpointCertificate, Plan, Result
from cosydit.certify.run import all_checks, run_checks, selected
from cosydit.stack.checkpoint.checkpoints import resolve_checkpoint
from cosydit.stack.host import find_host
from cosydit.stack.process import stopped_by_signals
from cosydit.stack.stack import default_work_dir
from llm_service.speech_bounds import load_speech_bounds
from servicekit.checkpoint_file import CheckpointFileError, find_declaration
from servicekit.gpu_host import CPU, CUDA, DEVICES, default_device
from servicekit.logs import PlainError
from servicekit.settings import argument, number

PASSED, FAILED, USAGE, NOTHING_RAN = 0, 1, 2, 3


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("certify", help="check this host and a checkpoint whole, and write a certificate")
    add = parser.add_argument
    add("--checkpoint", type=Path, help="directory with token2wav/, llm/ and voices/ (default: demo)")
    add("--work-dir", type=Path, help="directory for what the checks make (default: ~/.cache/cosydit)")
    add("--out", type=Path, default=Path("certificate"), help="folder of the certificate (default %(default)s)")
    only = "run only these checks; may be repeated"
    add("--only", action="append", default=[], metavar="AREA[/NAME]", help=only)
    add("--list", action="store_true", help="list the checks and stop")
    device = "device of both services (default: a GPU, if any)"
    add("--device", choices=DEVICES, default=default_device(), help=device)
    set_help = "setting of token2wav's model repository, as for `cosydit serve`"
    add("--set", type=pair, action="append", default=[], metavar="NAME=VALUE", help=set_help)
    add("--load-s", type=argument(number(is_open=True)), default=300.0, help="seconds under load (default %(default)s)")
    add("--load-streams", type=count, default=4, help="number of listeners under load (default %(default)s)")
    add("--commit", help="commit of the code, where there is no git repository")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Certify; return 0 if all that could run passed, 1 if something failed, 3 if nothing could run, 2 for bad use."""
    try:
        plan = make_plan(args)
        checks = selected(all_checks(plan), args.only)
    except (PlainError, ValueError) as error:
        print(f"cosydit certify: {error}", file=sys.stderr)
        return USAGE
    if args.list:
        print("\n".join(f"{check.path:30} docs/{check.page}" for check in checks))
        return PASSED
    certificate = _begin(plan, args.commit)
    print(f"{certificate.gpu}, {certificate.weights}: {len(checks)} checks on {plan.device}", flush=True)
    with stopped_by_signals(lambda: None):
        for outcome in run_checks(plan, checks):
            certificate.add(outcome, plan.out_dir)
            print(outcome.describe(), flush=True)
            if outcome.result is Result.FAIL:
                print(f"see docs/{outcome.page}")
    print(f"{certificate.result.value}: {certificate.counts()}; see {plan.out_dir / PAGE_FILE}")
    return {Result.PASS: PASSED, Result.FAIL: FAILED, Result.NOT_RUN: NOTHING_RAN}[certificate.result]


def make_plan(args: argparse.Namespace) -> Plan:
    """Read the options.

    Raises:
        CheckpointMissingError, BundleError: the checkpoint is not there.
    """
    work_dir = args.work_dir or default_work_dir()
    checkpoint = resolve_checkpoint(args.checkpoint, work_dir)
    return Plan(
        checkpoint_dir=checkpoint.llm_dir.parent.resolve(),
        out_dir=args.out.resolve(),
        work_dir=work_dir.resolve(),
        device=CUDA if find_host(args.device).gpus else CPU,
        load_s=args.load_s,
        load_streams=args.load_streams,
        is_audible=load_speech_bounds(checkpoint.llm_dir).follows_text is not False,
        settings=dict(args.set),
    )


def _begin(plan: Plan, commit: str | None) -> CheckpointCertificate:
    environment = describe_environment({}, commit)
    del environment["arguments"]
    names = [line.partition(",")[0] for line in environment["gpus"]] if plan.is_gpu else []
    try:
        weights = find_declaration(plan.checkpoint_dir).name
    except CheckpointFileError:
        weights = None
    settings = {**plan.settings, "load_s": plan.load_s, "load_streams": plan.load_streams, "device": plan.device}
    gpu = ", ".join(dict.fromkeys(names)) or CPU
    return CheckpointCertificate(
        gpu, environment["git_commit"], weights or plan.checkpoint_dir.name, settings, environment
    )
