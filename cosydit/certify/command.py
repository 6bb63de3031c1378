"""`cosydit certify`: prove this host and these weights, and write down what was seen."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servicekit.gpu_host import CPU, CUDA, DEVICES, default_device

if TYPE_CHECKING:
    from cosydit.certify.certificate import Certificate
    from cosydit.certify.check import Check, Outcome, Plan

PASSED, FAILED, USAGE, NOTHING_RAN = 0, 1, 2, 3
DEFAULT_OUT = Path("certificate")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser("certify", help="check this host and a checkpoint whole, and write a certificate")
    parser.add_argument("--checkpoint", type=Path, help="directory with token2wav/, llm/ and voices/ (default: demo)")
    parser.add_argument("--work-dir", type=Path, help="directory for what the checks make (default: ~/.cache/cosydit)")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="folder of the certificate (default %(default)s)")
    parser.add_argument(
        "--only", action="append", default=[], metavar="AREA[/NAME]", help="run only these checks; may be repeated"
    )
    parser.add_argument("--list", action="store_true", help="list the checks and stop")
    parser.add_argument(
        "--resume", action="store_true", help="keep the checks that passed in an earlier run into --out"
    )
    parser.add_argument(
        "--device", choices=DEVICES, default=default_device(), help="device of both services (default: a GPU, if any)"
    )
    set_help = "setting of token2wav's model repository, as for `cosydit serve`"
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=set_help)
    parser.add_argument(
        "--golden", type=Path, metavar="DIR", help="directory of golden vectors (default: the repository's)"
    )
    manifest = "file of sentences to listen to, lines of utt|prompt_text|prompt_wav|text (default: the demo voice's)"
    parser.add_argument("--manifest", type=Path, metavar="FILE", help=manifest)
    parser.add_argument("--load-s", type=float, default=300.0, help="seconds under load (default %(default)s)")
    parser.add_argument(
        "--load-streams", type=int, default=4, help="number of listeners under load (default %(default)s)"
    )
    parser.add_argument("--commit", help="commit of the code, where there is no git repository")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Certify; return 0 if all that could run passed, 1 if something failed, 3 if nothing could run, 2 for bad use."""
    from cosydit.certify.checks import all_checks, selected
    from cosydit.stack.checkpoint.checkpoints import CheckpointMissingError

    try:
        plan = make_plan(args)
        every = all_checks(plan)
        checks = selected(every, args.only)
        if args.list:
            print("\n".join(f"{check.path:30} docs/{check.page}" for check in checks))
            return PASSED
        certificate, left = _begin(plan, checks, args)
    except (CheckpointMissingError, ValueError) as error:
        print(f"cosydit certify: {error}", file=sys.stderr)
        return USAGE
    with _ended_by_signals():
        _run(plan, every, left, certificate)
        return _finish(plan, certificate)


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
    device = CUDA if find_host(args.device).gpus else CPU
    work_dir = args.work_dir or default_work_dir()
    checkpoint = resolve_checkpoint(args.checkpoint, work_dir)
    return Plan(
        checkpoint_dir=checkpoint.llm_dir.parent.resolve(),
        out_dir=args.out.resolve(),
        work_dir=work_dir.resolve(),
        device=device,
        golden_dir=args.golden,
        manifest=args.manifest,
        load_s=args.load_s,
        load_streams=args.load_streams,
        is_audible=load_speech_bounds(checkpoint.llm_dir).follows_text is not False,
        settings=dict(text.partition("=")[::2] for text in args.set),
    )


def _begin(plan: Plan, checks: Sequence[Check], args: argparse.Namespace) -> tuple[Certificate, list[Check]]:
    from cosydit.certify.certificate import begin, resume

    settings: dict[str, Any] = {**plan.settings, "load_s": plan.load_s, "load_streams": plan.load_streams}
    settings["manifest"] = args.manifest.name if args.manifest else "none"
    certificate = begin(plan, args.commit, settings)
    passed = resume(certificate, plan.out_dir) if args.resume else []
    left = [check for check in checks if check.path not in passed]
    before = f", {len(passed)} passed before" if passed else ""
    print(f"{certificate.gpu}, {certificate.weights}: {len(left)} checks on {plan.device}{before}", flush=True)
    return certificate, left


def _ended_by_signals() -> AbstractContextManager[None]:
    """Have the signals that end a command stop the services too, where this is the command: its main thread."""
    from cosydit.stack.process import stopped_by_signals

    if threading.current_thread() is not threading.main_thread():
        return nullcontext()
    return stopped_by_signals(lambda: None)


def _run(plan: Plan, every: Sequence[Check], left: Sequence[Check], certificate: Certificate) -> None:
    """Run what is left, a line for each check, the certificate written behind each."""
    from tqdm import tqdm

    from cosydit.certify.run import run_checks

    paths = [check.path for check in every]
    with tqdm(total=len(left), disable=not sys.stderr.isatty(), leave=False, bar_format="{n}/{total} {desc}") as bar:

        def keep(outcome: Outcome) -> None:
            certificate.add(outcome, paths)
            certificate.write(plan.out_dir)
            bar.update()
            tqdm.write(outcome.describe(), file=sys.stdout)
            sys.stdout.flush()

        run_checks(plan, left, bar.set_description, keep)


def _finish(plan: Plan, certificate: Certificate) -> int:
    from cosydit.certify.certificate import CERTIFICATE_FILE
    from cosydit.certify.check import Result
    from cosydit.certify.page import write_page

    certificate.write(plan.out_dir)
    page = write_page(certificate, plan.out_dir)
    print(f"{certificate.result.value}: {certificate.counts()}; {plan.out_dir / CERTIFICATE_FILE}, {page}")
    for outcome in certificate.outcomes.values():
        if outcome.result is Result.FAIL:
            print(f"{outcome.check}: see docs/{outcome.page}")
    return {Result.PASS: PASSED, Result.FAIL: FAILED, Result.NOT_RUN: NOTHING_RAN}[certificate.result]
