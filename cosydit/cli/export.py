"""`cosydit export`: a checkpoint's estimator and vocoder as ONNX files, compared with PyTorch.

`cosydit replay`: golden vectors against the models.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from token2wav_service.graphs import GRAPHS, Precision

if TYPE_CHECKING:
    from token2wav_service.export.directory import ExportDirectory, ExportOptions, ExportTask
    from token2wav_service.replay.vectors import Row

PRECISIONS = ("float32", "float16")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("export", help="write a checkpoint's models as ONNX files and compare them")
    add_graph_options(parser, "float32")
    parser.add_argument("--out", type=Path, required=True, help="directory to write; files there that fit are kept")
    parser.add_argument("--check", action="store_true", help="compare every graph with PyTorch at two sizes")
    parser.set_defaults(run=run)
    parser = subparsers.add_parser("replay", help="replay golden vectors and report every output's error")
    parser.add_argument("directory", type=Path, help="folder with the golden set's layout (a_dit, b_encoder, ...)")
    parser.add_argument("--failed-only", action="store_true", help="print only outputs out of tolerance")
    parser.set_defaults(run=_replay)


def add_graph_options(parser: argparse.ArgumentParser, estimator: str) -> None:
    """Add the checkpoint and what `export_options` reads; `estimator` is the default of the estimator's precision."""
    add = parser.add_argument
    add("checkpoint", type=Path, help="directory with token2wav/, or a token2wav directory itself")
    flow = f"precisions of the estimator; an engine's must equal the service's dtype (default {estimator})"
    add("--precision", nargs="+", choices=PRECISIONS, default=[estimator], help=flow)
    vocoder = "precisions of the vocoder's convolutions; an engine's float32 products are TF32 (default float32)"
    add("--vocoder-precision", nargs="+", choices=PRECISIONS, default=["float32"], help=vocoder)
    add("--only", nargs="+", metavar="GRAPH", help="graphs to make (default: estimator_chunk vocoder)")


def run(args: argparse.Namespace) -> int:
    """Export, and compare if asked; return 0, or 1 if a graph is out of tolerance."""
    from token2wav_service.export.directory import ExportDirectory

    directory = ExportDirectory(token2wav_dir(args.checkpoint), args.out, export_options(args))
    tasks = directory.plan()
    _export(directory, tasks)
    return _check(directory, tasks) if args.check else 0


def token2wav_dir(checkpoint: Path) -> Path:
    """Return the folder of a checkpoint that holds token2wav's models."""
    inner = checkpoint / "token2wav"
    return inner if inner.is_dir() else checkpoint


def export_options(args: argparse.Namespace) -> ExportOptions:
    """Return what `--precision`, `--vocoder-precision` and `--only` ask for."""
    from token2wav_service.export.directory import ExportOptions

    flow, vocoder = (
        tuple(Precision(name) for name in dict.fromkeys(names)) for names in (args.precision, args.vocoder_precision)
    )
    return ExportOptions(flow, vocoder, tuple(args.only or GRAPHS))


def _export(directory: ExportDirectory, tasks: Sequence[ExportTask]) -> None:
    missing = [task for task in tasks if not task.is_done]
    with tqdm(missing, unit="file", disable=not missing) as bar:
        for task in bar:
            bar.set_description(task.path.name)
            directory.run(task)
    print(f"{directory.out_dir}: {len(missing)} files written, {len(tasks) - len(missing)} were there already")


def _check(directory: ExportDirectory, tasks: Sequence[ExportTask]) -> int:
    from token2wav_service.export.compare import compare_graph

    failed = 0
    with tqdm(tasks, unit="graph") as bar:
        for task in bar:
            bar.set_description(f"comparing {task.spec.file_name}")
            made = compare_graph(directory.out_dir, task.spec, directory.models)
            failures = made.failures()
            failed += bool(failures)
            told = "; ".join(failures[:2]) or f"{made.worst_db:.1f} dB from float32 at worst"
            bar.write(f"{task.spec.file_name}, {len(made.cases)} cases: {told}", file=sys.stdout)
    print(f"{len(tasks)} comparisons, {failed} out of tolerance")
    return 1 if failed else 0


def _replay(args: argparse.Namespace) -> int:
    """Print every output's error; return 0, or 1 if one is out of tolerance."""
    from token2wav_service.replay.run import replay_directory

    rows = replay_directory(args.directory)
    _replay_schedules(args.directory / "schedules.json", rows)
    failed = [row for row in rows if not row.passed]
    _print_rows(failed if args.failed_only else rows)
    for folder, members in itertools.groupby(rows, lambda row: row.output.partition("/")[0]):
        passed = [row.passed for row in members]
        print(f"{folder}: {sum(passed)} of {len(passed)} within tolerance")
    print(f"{len(rows)} outputs, {len(failed)} out of tolerance")
    return 1 if failed else 0


def _print_rows(rows: Sequence[Row]) -> None:
    width = max((len(row.output) for row in rows), default=6)
    print(f"{'output':{width}}  {'measure':12}{'error':>12}{'tolerance':>12}")
    for row in rows:
        verdict = "" if row.passed else "  FAILED"
        print(f"{row.output:{width}}  {row.measure:12}{row.error:12.3g}{row.tolerance:12.3g}{verdict}")


def _replay_schedules(path: Path, rows: list[Row]) -> None:
    """Check the chunks that the gateway's chunk policies cut against recorded ones, where there are any."""
    from gateway.chunking.chunker import Chunker
    from gateway.chunking.policies import ExponentialChunks, FixedChunks
    from token2wav_service.replay.vectors import GoldenCase

    if not path.is_file():
        return
    case = GoldenCase({}, "schedules/tables", rows)
    for name, expected in json.loads(path.read_text("utf-8"))["tables"].items():
        strategy, _, total = name.partition(":")
        chunker = Chunker(FixedChunks() if strategy == "equal" else ExponentialChunks(max_hop_tokens=None))
        chunks = [chunk for token in range(int(total)) for chunk in chunker.push([token])]
        chunks.append(chunker.flush())
        got = [[chunk.start, chunk.end, chunk.is_last] for chunk in chunks]
        case.equal(name, got, expected)
