"""`cosydit certify`: prove this host and these weights, and write down what was seen."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from servicekit.gpu_host import CPU, CUDA, DEVICES, default_device

if TYPE_CHECKING:
    from cosydit.certify.check import Check, CheckOutcome, CheckpointCertificate, Plan

PASSED, FAILED, USAGE, NOTHING_RAN = 0, 1, 2, 3
NO_GPU = "cpu"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser("certify", help="check this host and a checkpoint whole, and write a certificate")
    add = parser.add_argument
    add("--checkpoint", type=Path, help="directory with token2wav/, llm/ and voices/ (default: demo)")
    add("--work-dir", type=Path, help="directory for what the checks make (default: ~/.cache/cosydit)")
    add("--out", type=Path, default=Path("certificate"), help="folder of the certificate (default %(default)s)")
    only = "run only these checks; may be repeated"
    add("--only", action="append", default=[], metavar="AREA[/NAME]", help=only)
    add("--list", action="store_true", help="list the checks and stop")
    add("--resume", action="store_true", help="keep the checks that passed in an earlier run into --out")
    device = "device of both services (default: a GPU, if any)"
    add("--device", choices=DEVICES, default=default_device(), help=device)
    set_help = "setting of token2wav's model repository, as for `cosydit serve`"
    add("--set", action="append", default=[], metavar="NAME=VALUE", help=set_help)
    add("--golden", type=Path, metavar="DIR", help="directory of golden vectors (default: the repository's)")
    manifest = "file of sentences to listen to, lines of utt|prompt_text|prompt_wav|text (default: the demo voice's)"
    add("--manifest", type=Path, metavar="FILE", help=manifest)
    add("--load-s", type=float, default=300.0, help="seconds under load (default %(default)s)")
    add("--load-streams", type=int, default=4, help="number of listeners under load (default %(default)s)")
    add("--commit", help="commit of the code, where there is no git repository")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Certify; return 0 if all that could run passed, 1 if something failed, 3 if nothing could run, 2 for bad use."""
    from cosydit.certify.check import Result, write_page
    from cosydit.certify.table import all_checks, selected
    from cosydit.stack.checkpoint.checkpoints import CheckpointMissingError
    from cosydit.stack.process import stopped_by_signals

    try:
        plan = make_plan(args)
        checks = selected(all_checks(plan), args.only)
        if args.list:
            print("\n".join(f"{check.path:30} docs/{check.page}" for check in checks))
            return PASSED
        certificate = _begin(plan, args)
        passed = certificate.resume(plan.out_dir) if args.resume else []
    except (CheckpointMissingError, ValueError) as error:
        print(f"cosydit certify: {error}", file=sys.stderr)
        return USAGE
    left = [check for check in checks if check.path not in passed]
    print(f"{certificate.gpu}, {certificate.weights}: {len(left)} checks on {plan.device}", flush=True)
    is_command = threading.current_thread() is threading.main_thread()
    with stopped_by_signals(lambda: None) if is_command else nullcontext():
        _run(plan, left, certificate)
    page = write_page(certificate, plan.out_dir)
    print(f"{certificate.result.value}: {certificate.counts()}; see {page}")
    for outcome in certificate.outcomes.values():
        if outcome.result is Result.FAIL:
            print(f"{outcome.check}: see docs/{outcome.page}")
    return {Result.PASS: PASSED, Result.FAIL: FAILED, Result.NOT_RUN: NOTHING_RAN}[certificate.result]


def make_plan(args: argparse.Namespace) -> Plan:
    """Read the options.

    Raises:
        CheckpointMissingError: the checkpoint is not there.
        ValueError: an option that can't be used.
    """
    from cosydit.certify.check import Plan
    from cosydit.stack.checkpoint.checkpoints import resolve_checkpoint
    from cosydit.stack.host import find_host
    from cosydit.stack.stack import default_work_dir
    from llm_service.speech_bounds import load_speech_bounds

    if args.load_s <= 0 or args.load_streams < 1:
        raise ValueError(f"got --load-s {args.load_s} and --load-streams {args.load_streams}, expected more than 0")
    if wrong := [text for text in args.set if not all(text.partition("="))]:
        raise ValueError(f"got --set {wrong[0]!r}, expected NAME=VALUE")
    work_dir = args.work_dir or default_work_dir()
    checkpoint = resolve_checkpoint(args.checkpoint, work_dir)
    return Plan(
        checkpoint_dir=checkpoint.llm_dir.parent.resolve(),
        out_dir=args.out.resolve(),
        work_dir=work_dir.resolve(),
        device=CUDA if find_host(args.device).gpus else CPU,
        golden_dir=args.golden,
        manifest=args.manifest,
        load_s=args.load_s,
        load_streams=args.load_streams,
        is_audible=load_speech_bounds(checkpoint.llm_dir).follows_text is not False,
        settings=dict(text.partition("=")[::2] for text in args.set),
    )


def _begin(plan: Plan, args: argparse.Namespace) -> CheckpointCertificate:
    """Describe the machine, the weights and the plan."""
    from cosydit.bench.report import describe_environment
    from cosydit.certify.check import CheckpointCertificate
    from servicekit.checkpoint_file import CheckpointFileError, find_declaration

    environment = describe_environment({}, args.commit)
    del environment["arguments"]
    names = [line.partition(",")[0] for line in environment["gpus"]] if plan.is_gpu else []
    try:
        weights = find_declaration(plan.checkpoint_dir).name
    except CheckpointFileError:
        weights = None
    settings = {**plan.settings, "load_s": plan.load_s, "load_streams": plan.load_streams, "device": plan.device}
    settings["manifest"] = args.manifest.name if args.manifest else "none"
    gpu = ", ".join(dict.fromkeys(names)) or NO_GPU
    return CheckpointCertificate(
        gpu, environment["git_commit"], weights or plan.checkpoint_dir.name, settings, environment
    )


def _run(plan: Plan, left: Sequence[Check], certificate: CheckpointCertificate) -> None:
    """Run what is left, a line for each check, the certificate written behind each."""
    from cosydit.certify.run import run_checks
    from cosydit.certify.table import all_checks

    paths = [check.path for check in all_checks(plan)]

    def keep(outcome: CheckOutcome) -> None:
        certificate.add(outcome, paths, plan.out_dir)
        print(outcome.describe(), flush=True)

    run_checks(plan, left, keep)
