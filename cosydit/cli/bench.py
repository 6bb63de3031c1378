"""`cosydit bench`: the streaming benchmark of running services; `benchmarks.streaming_grpc` with the same options."""

from __future__ import annotations

import argparse

from cosydit.bench import command as streaming_grpc


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser("bench", help="benchmark running services: first audio, RTF, underruns")
    streaming_grpc.add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the benchmark; return 0, 1 if any request failed, 2 if it could not run."""
    return streaming_grpc.run(args)
