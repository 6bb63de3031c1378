"""`cosydit batch`: offline batch synthesis; `benchmarks.offline_batch` with the same options."""

from __future__ import annotations

import argparse

from cosydit.batch import command as offline_batch
from cosydit.batch.options import add_options


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser("batch", help="speak a whole list of texts into files; resumes where it stopped")
    add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the batch; return 0, 1 if any row failed, 2 if it could not run."""
    return offline_batch.run(args)
