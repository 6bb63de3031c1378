"""`cosydit checkpoint`: makes a random checkpoint, unpacks the demo voice, and checks one."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `checkpoint make-random`, `unpack-demo` and `verify`."""
    parser = subparsers.add_parser("checkpoint", help="make a random checkpoint, unpack the demo voice, or verify one")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    make = actions.add_parser("make-random", help="write a complete random checkpoint; it speaks noise")
    make.add_argument("directory", type=Path, help="where to write token2wav/, llm/ and voices/")
    make.add_argument("--seed", type=_seed, default=0, help="equal seeds give equal files (default %(default)s)")
    make.add_argument(
        "--size",
        choices=("small", "official"),
        default="small",
        help="official: the real sizes, about 2 GB, to measure speed; its speech always runs to the longest length",
    )
    _add_family(make, "step_audio2", "of the models (default %(default)s)")
    make.add_argument("--numbered-voices", type=_seed, default=0, metavar="N", help="more voices, voice-000 and on")
    make.add_argument("--voice-seconds", type=float, default=5.0, help="length of those (default %(default)s)")
    make.add_argument("--force", action="store_true", help="write over a directory that is not empty")
    make.set_defaults(run=_make_random)
    demo = actions.add_parser("unpack-demo", help="unpack the bundled demo voice; does nothing if it lies there")
    demo.add_argument("directory", type=Path, help="made if missing")
    demo.set_defaults(run=_unpack_demo)
    verify = actions.add_parser("verify", help="load every part of a checkpoint and say what is wrong with it")
    verify.add_argument("directory", type=Path, help="what make-random wrote, or a token2wav directory alone")
    _add_family(verify, None, "what it must be of; left out, its description file says it")
    verify.set_defaults(run=_verify)


def _add_family(parser: argparse.ArgumentParser, default: str | None, meaning: str) -> None:
    families = ("step_audio2", "cosyvoice2", "cosyvoice3")
    parser.add_argument("--family", choices=families, default=default, help=meaning)


def run(args: argparse.Namespace) -> int:
    """Run the chosen action; returns the exit status."""
    return int(args.run(args))


def _make_random(args: argparse.Namespace) -> int:
    from cosydit.stack.checkpoint.make_checkpoint import CheckpointSize, NumberedVoices, make_random_checkpoint
    from token2wav_service.checkpoint.family import Family

    voices, size, family = NumberedVoices(args.numbered_voices, args.voice_seconds), args.size, Family(args.family)
    try:
        make_random_checkpoint(args.directory, args.seed, args.force, CheckpointSize(size), voices, family)
    except OSError as err:
        print(f"cosydit checkpoint: {err}", file=sys.stderr)
        return 1
    print(f"wrote {args.directory} ({args.family}, random weights, seed {args.seed}: it speaks noise)")
    return 0


def _unpack_demo(args: argparse.Namespace) -> int:
    from cosydit.stack.checkpoint.checkpoints import CheckpointMissingError, provide_demo_voice

    try:
        provide_demo_voice(args.directory)
    except (CheckpointMissingError, OSError) as err:
        print(f"cosydit checkpoint: {err}", file=sys.stderr)
        return 1
    print(f"the demo voice lies in {args.directory}")
    return 0


def _verify(args: argparse.Namespace) -> int:
    if not args.directory.is_dir():
        print(f"cosydit checkpoint: {args.directory} is no directory", file=sys.stderr)
        return 2
    from cosydit.stack.checkpoint.verify_checkpoint import unused_files, verify_checkpoint
    from token2wav_service.checkpoint.family import Family

    reports = verify_checkpoint(args.directory, Family(args.family) if args.family else None)
    for report in reports:
        print(f"{'ok':4}  {report.name}" if report.problem is None else f"FAIL  {report.name}: {report.problem}")
    for name in unused_files(args.directory):
        print(f"note  {name} is not used: flow.pt runs itself")
    failed = sum(report.problem is not None for report in reports)
    print(f"{len(reports)} parts, {failed} with problems")
    return 1 if failed else 0


def _seed(text: str) -> int:
    seed = int(text)
    if seed < 0:
        raise argparse.ArgumentTypeError(f"got {seed}, expected 0 or more")
    return seed
