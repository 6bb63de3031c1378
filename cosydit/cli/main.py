"""The `cosydit` command: dispatches to one module per subcommand."""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from collections.abc import Sequence
from typing import NoReturn

from cosydit.cli.client import with_default_door
from servicekit.extras import installed_version, missing_extra
from servicekit.logs import PlainError
from servicekit.process import run_and_leave

logger = logging.getLogger(__name__)

SUBCOMMANDS = (
    "cosydit.cli.say",
    "cosydit.cli.serve",
    "cosydit.cli.client",
    "cosydit.cli.text",
    "cosydit.bench.command",
    "cosydit.batch.command",
    "cosydit.cli.build_engines",
    "cosydit.cli.checkpoint",
    "cosydit.cli.convert_llm",
    "cosydit.cli.download",
    "cosydit.cli.export",
    "cosydit.cli.keys",
    "cosydit.certify.command",
    "cosydit.cli.doctor",
    "cosydit.cli.plan",
    "cosydit.cli.top",
)
"""Modules with `add_parser`, in the order of the help; it names the function that runs and returns the exit status.

Loading one imports no heavy package; running one may.
"""


def main(argv: Sequence[str] | None = None) -> int:
    try:
        return _run(argv)
    except KeyboardInterrupt:
        print("cosydit: interrupted", file=sys.stderr)
        return 130


def _run(argv: Sequence[str] | None) -> int:
    args = _parsed(sys.argv[1:] if argv is None else argv)
    level = logging.INFO if args.verbose else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        return int(args.run(args))
    except ModuleNotFoundError as error:
        hint = missing_extra(error)
        if hint is None and error.name is not None:
            raise
        print(f"cosydit {args.command}: {hint or error}", file=sys.stderr)
        return 1
    except (PlainError, OSError, ValueError) as error:
        # Also a full disk, a taken port, a read-only folder: a traceback would explain nothing.
        if args.verbose:
            logger.info("cosydit %s failed", args.command, exc_info=True)
        print(f"cosydit {args.command}: {error}", file=sys.stderr)
        return 1


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    parser = build_parser()
    args, unknown = parser.parse_known_args(with_default_door(words))
    if unknown:
        is_text = not any(word.startswith("-") for word in unknown)
        hint = "; put a text of several words in quotes" if is_text else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    return args


def command() -> NoReturn:
    """Run the command line and end this process; taking a large process down piece by piece takes seconds."""
    run_and_leave(main)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command."""
    parser = argparse.ArgumentParser(prog="cosydit", description=__doc__.partition(":")[0] if __doc__ else None)
    version = installed_version("cosydit") or "(a source tree that is not installed)"
    parser.add_argument("--version", action="version", version=f"cosydit {version}")
    parser.add_argument("--verbose", action="store_true", help="log at INFO level to standard error")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in SUBCOMMANDS:
        importlib.import_module(name).add_parser(subparsers)
    return parser


if __name__ == "__main__":
    command()
