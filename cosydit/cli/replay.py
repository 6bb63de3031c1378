"""`cosydit replay`: golden vectors against the models."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from token2wav_service.replay.vectors import Report


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("replay", help="replay golden vectors and report every output's error")
    parser.add_argument("directory", type=Path, help="folder with the golden set's layout (a_dit, b_encoder, ...)")
    parser.add_argument("--failed-only", action="store_true", help="print only outputs out of tolerance")
    parser.set_defaults(run=run)


def _replay_schedules(path: Path, report: Report) -> None:
    """Check the chunks that the gateway's chunk policies cut against recorded ones, where there are any."""
    from gateway.chunking.chunker import Chunker
    from gateway.chunking.policies import ExponentialChunks, FixedChunks
    from token2wav_service.replay.vectors import GoldenCase

    if not path.is_file():
        return
    case = GoldenCase({}, "schedules/tables", report)
    for name, expected in json.loads(path.read_text("utf-8"))["tables"].items():
        strategy, _, total = name.partition(":")
        chunker = Chunker(FixedChunks() if strategy == "equal" else ExponentialChunks(max_hop_tokens=None))
        chunks = [chunk for token in range(int(total)) for chunk in chunker.push([token])]
        chunks.append(chunker.flush())
        got = [[chunk.start, chunk.end, chunk.is_last] for chunk in chunks]
        case.equal(name, got, expected)


def run(args: argparse.Namespace) -> int:
    from token2wav_service.errors import CheckpointError
    from token2wav_service.replay.run import replay_directory
    from token2wav_service.replay.vectors import format_rows

    try:
        report = replay_directory(args.directory)
        _replay_schedules(args.directory / "schedules.json", report)
    except CheckpointError as err:
        print(f"cosydit replay: {err}", file=sys.stderr)
        return 2
    rows = [row for row in report.rows if not (args.failed_only and row.passed)]
    print(format_rows(rows))
    print(report.by_folder())
    failed = sum(not row.passed for row in report.rows)
    print(f"{len(report.rows)} outputs, {failed} out of tolerance")
    return 0 if report.passed else 1
