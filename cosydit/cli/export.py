"""`cosydit export`: a checkpoint's models as ONNX files, compared with PyTorch."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from servicekit.extras import install_command

if TYPE_CHECKING:
    from token2wav_service.export.compare import Comparison, Sweep
    from token2wav_service.export.directory import ExportDirectory, ExportOptions, ExportTask

DEFAULT_CHECK_LIMIT = 3200
PRECISIONS = ("float32", "float16", "bfloat16")
VOCODER_PRECISIONS = ("float32", "float16")
_UNREPORTED = ("run", "out", "report")
"""Arguments left out of the report, as they do not influence its figures."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser("export", help="write a checkpoint's models as ONNX files and compare them")
    parser.add_argument("checkpoint", type=Path, help="directory with token2wav/, or a token2wav directory itself")
    parser.add_argument("--out", type=Path, required=True, help="directory to write; files there that fit are kept")
    parser.add_argument(
        "--precision",
        nargs="+",
        choices=PRECISIONS,
        default=["float32"],
        help="precisions of the flow's graphs (default float32)",
    )
    parser.add_argument(
        "--vocoder-precision",
        nargs="+",
        choices=VOCODER_PRECISIONS,
        default=["float32"],
        help="precisions of the vocoder's convolutions; its pitch predictor is always float32 (default float32)",
    )
    parser.add_argument("--only", nargs="+", metavar="GRAPH", help="graphs to write (default: all)")
    parser.add_argument(
        "--shapes", type=Path, metavar="YAML", help="file of sizes to export for, as profile: {axis: [min, opt, max]}"
    )
    parser.add_argument("--check", action="store_true", help="compare every graph with PyTorch over a sweep of sizes")
    parser.add_argument(
        "--report", type=Path, metavar="JSON", help="JSON to write, with the comparison and the environment"
    )
    parser.add_argument(
        "--check-limit",
        type=int,
        default=DEFAULT_CHECK_LIMIT,
        metavar="N",
        help="leave out comparisons of more than N frames in a batch (default %(default)s; full size on a CPU: 100)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Export, and compare if asked; return 0, or 1 if that failed or a graph is out of tolerance."""
    from token2wav_service.errors import CheckpointError, ExportError

    try:
        options = _options(args)
        directory = _open(args.checkpoint, args.out, options)
        tasks = directory.plan()
        _export(directory, tasks)
        return _check(args, directory, tasks) if args.check or args.report else 0
    except ModuleNotFoundError as err:
        return _complain(f"{err}; install the extra: {install_command('export')}")
    except (CheckpointError, ExportError, OSError) as err:
        return _complain(str(err))


def _options(args: argparse.Namespace) -> ExportOptions:
    from token2wav_service.export.directory import ExportOptions
    from token2wav_service.graphs.shapes import ShapeSettings, read_shapes
    from token2wav_service.graphs.spec import Precision

    shapes = read_shapes(args.shapes) if args.shapes else (ShapeSettings(),)
    flow, vocoder = (
        tuple(Precision(name) for name in dict.fromkeys(names)) for names in (args.precision, args.vocoder_precision)
    )
    return ExportOptions(flow, vocoder, tuple(args.only) if args.only else None, shapes)


def _open(checkpoint: Path, out: Path, options: ExportOptions) -> ExportDirectory:
    from token2wav_service.export.directory import ExportDirectory

    inner = checkpoint / "token2wav"
    return ExportDirectory(inner if inner.is_dir() else checkpoint, out, options)


def _export(directory: ExportDirectory, tasks: Sequence[ExportTask]) -> None:
    from tqdm import tqdm

    missing = [task for task in tasks if not task.is_done]
    with tqdm(missing, unit="file", disable=not missing) as bar:
        for task in bar:
            bar.set_description(task.path.name)
            directory.run(task)
    print(f"{directory.out_dir}: {len(missing)} files written, {len(tasks) - len(missing)} were there already")


def _check(args: argparse.Namespace, directory: ExportDirectory, tasks: Sequence[ExportTask]) -> int:
    from token2wav_service.export.compare import Sweep, markdown_table, verdicts

    sweep = Sweep(largest=args.check_limit)
    comparisons = _compare(directory, tasks, sweep)
    rows = verdicts(comparisons)
    print(markdown_table(rows), end="")
    if args.report:
        _write_report(args, sweep, comparisons)
    failed = [row for row in rows if not row.passed]
    print(f"{len(rows)} comparisons, {len(failed)} out of tolerance")
    return 1 if failed else 0


def _compare(directory: ExportDirectory, tasks: Sequence[ExportTask], sweep: Sweep) -> list[Comparison]:
    from tqdm import tqdm

    from token2wav_service.export.compare import compare_graph
    from token2wav_service.graphs.catalogue import GIVEN_GRAPHS

    comparisons: list[Comparison] = []
    exported = [task.spec for task in tasks if task.spec.name not in GIVEN_GRAPHS]
    with tqdm(exported, unit="graph") as bar:
        for spec in bar:
            bar.set_description(f"comparing {spec.file_name}")
            comparisons += compare_graph(directory.out_dir, spec, directory.models, sweep)
    return comparisons


def _write_report(args: argparse.Namespace, sweep: Sweep, comparisons: Sequence[Comparison]) -> None:
    from cosydit.bench.report import describe_environment, write_json
    from token2wav_service.export.compare import report_json
    from token2wav_service.export.manifest import versions

    environment = describe_environment({name: value for name, value in vars(args).items() if name not in _UNREPORTED})
    environment["packages"] |= versions()
    write_json(args.report, {**report_json(comparisons, sweep), "environment": environment})
    print(f"wrote {args.report}")


def _complain(message: str) -> int:
    print(f"cosydit export: {message}", file=sys.stderr)
    return 1
