"""Builds an engine of every graph that a runner serves, with TensorRT for RTX, from random weights.

`python -m tests.token2wav_service.export.builds --out FILE` writes sizes and times; it needs no GPU and runs no engine.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from cosydit.bench.report import describe_environment, write_json
from tests.token2wav_service.export.checkpoints import TINY_SIZES
from token2wav_service.checkpoint.family import Family
from token2wav_service.checkpoint.make_random import OFFICIAL_SIZES, make_random_token2wav
from token2wav_service.errors import Token2WavError
from token2wav_service.export.compare import compare_graph
from token2wav_service.export.directory import ExportDirectory, ExportOptions, ExportTask
from token2wav_service.export.engines import Target, ensure_engine
from token2wav_service.graphs import Precision
from token2wav_service.runtime.tensorrt.api import load_tensorrt
from token2wav_service.runtime.tensorrt.manifest import TENSORRT_RTX, probe_host

ARCHITECTURE = "sm89"
SIZES = {"small": TINY_SIZES, "official": OFFICIAL_SIZES}


@dataclass
class Build:
    """One graph in one precision."""

    family: str
    sizes: str
    graph: str
    precision: str
    export_s: float | None = None
    onnx_mb: float | None = None
    onnx_snr_db: float | None = None
    """Worst output of the exported file in ONNX Runtime against float32; None for official sizes."""
    build_s: float | None = None
    engine_mb: float | None = None
    failure: str = ""


def build_all(folder: Path, families: Sequence[Family], sizes: str, precisions: Sequence[Precision]) -> Iterator[Build]:
    """Yield every build, as it is done."""
    for family in families:
        checkpoint = folder / family.value
        checkpoint.mkdir()
        make_random_token2wav(checkpoint, 0, *SIZES[sizes][family])
        options = ExportOptions(tuple(precisions), tuple(precisions))
        exports = ExportDirectory(checkpoint, checkpoint / "onnx", options)
        for task in exports.plan():
            build = Build(family.value, sizes, task.spec.name, task.spec.precision.value)
            try:
                _build(build, exports, task)
            except Token2WavError as err:
                build.failure = str(err)
            yield build


def _build(build: Build, exports: ExportDirectory, task: ExportTask) -> None:
    started_s = time.monotonic()
    exports.run(task)
    build.export_s = round(time.monotonic() - started_s, 1)
    build.onnx_mb = round(task.path.stat().st_size / 1e6, 2)
    if build.sizes == "small":
        compared = compare_graph(exports.out_dir, task.spec, exports.models)
        build.onnx_snr_db = round(compared.worst_db, 1)
        if compared.failures():
            build.failure = compared.failures()[0]
    target = Target(ARCHITECTURE, probe_host().library(ARCHITECTURE, TENSORRT_RTX), None)
    started_s = time.monotonic()
    manifest, _ = ensure_engine(
        task,
        exports,
        target,
        exports.model_dir / "engines",
        lambda: load_tensorrt(target.library),
        lambda _: (_ for _ in ()).throw(AssertionError("nothing is measured without a GPU")),
    )
    build.build_s = round(time.monotonic() - started_s, 1)
    build.engine_mb = round(manifest.engine_bytes / 1e6, 2)


def main(argv: Sequence[str] | None = None) -> int:
    """Build, print a line each, and write the file; return 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--families", nargs="+", type=Family, default=list(Family), metavar="FAMILY")
    parser.add_argument("--precisions", nargs="+", type=Precision, default=list(Precision), metavar="PRECISION")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["small"])
    parser.add_argument("--out", type=Path, help="JSON to write")
    args = parser.parse_args(argv)
    builds: list[Build] = []
    for sizes in args.sizes:
        with TemporaryDirectory() as folder:
            for build in build_all(Path(folder), args.families, sizes, args.precisions):
                builds.append(build)
                times = f"exported in {build.export_s} s, built in {build.build_s} s, {build.engine_mb} MB"
                said = build.failure or times
                sys.stdout.write(f"{build.family} {sizes} {build.graph} {build.precision}: {said}\n")
                sys.stdout.flush()
                if args.out:
                    _write(args, builds)
    sys.stdout.write(f"{_figures(builds)}\n")
    return int(any(build.failure for build in builds))


def _write(args: argparse.Namespace, builds: Sequence[Build]) -> None:
    """Write what is built so far, so that a run that is cut short leaves what it did."""
    arguments = {"sizes": args.sizes, "families": [f.value for f in args.families], "out": args.out.name}
    rows = [vars(build) for build in builds]
    environment = describe_environment(arguments)
    write_json(args.out, {"figures": _figures(builds), "engines": rows, "environment": environment})


def _figures(builds: Sequence[Build]) -> dict[str, object]:
    failed = sum(bool(build.failure) for build in builds)
    figures: dict[str, object] = {
        "engines_built_real": len(builds) - failed,
        "engine_build_failures": failed,
        "built_by": probe_host().library(ARCHITECTURE, TENSORRT_RTX),
        "built_for": ARCHITECTURE,
        "engines_run": 0,
    }
    for precision in Precision:
        measured = [b.onnx_snr_db for b in builds if b.precision == precision.value and b.onnx_snr_db is not None]
        figures |= {f"onnx_snr_db_{precision.value}": min(measured)} if measured else {}
    return figures


if __name__ == "__main__":
    raise SystemExit(main())
