"""`cosydit build-engines`: TensorRT engines of a checkpoint's two graphs, for this GPU or ahead for another.

On a GPU, every engine is compared with float32, and a chunk is timed with all engines and without. Builds ran with
TensorRT for RTX on a CPU; nothing of this was ever run on a GPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cosydit.cli.export import add_graph_options, export_options, token2wav_dir
from cosydit.stack.engines import time_chunks
from token2wav_service.errors import EngineBuildError
from token2wav_service.graphs import ESTIMATOR_CHUNK, VOCODER
from token2wav_service.runtime.tensorrt.api import TensorRT, load_tensorrt
from token2wav_service.runtime.tensorrt.manifest import (
    ENGINES_FOLDER,
    TENSORRT_RTX,
    EngineManifest,
    GpuHost,
    Speed,
    probe_host,
)

if TYPE_CHECKING:
    from token2wav_service.export.directory import ExportDirectory, ExportTask
    from token2wav_service.export.engines import Certify, Target

ONNX_FOLDER = "onnx"


@dataclass(frozen=True)
class Tools:
    """What building uses of this machine."""

    host: GpuHost
    load: Callable[[str], TensorRT]
    """Imports the library of a name and version."""
    certify_of: Callable[[ExportDirectory, ExportTask], Certify]
    """Returns what measures a graph's engine."""
    time_chunks: Callable[[Path, Path, str, str], Speed]
    """Times a checkpoint's chunks with its engines and without; of the estimator's and the vocoder's precision."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "build-engines",
        help="build TensorRT engines of a checkpoint, for this GPU or ahead for another",
        description="Exports a checkpoint's graphs and builds TensorRT engines of them. On the GPU that they are for, "
        "it compares them with float32 and times them. Builds were run on a CPU; no engine was ever run.",
    )
    add_graph_options(parser, "float16")
    add = parser.add_argument
    gpus = "GPUs to build for on any machine, such as sm89, with TensorRT for RTX (default: this machine's GPU)"
    add("--for", dest="architectures", nargs="+", metavar="SM", help=gpus)
    add("--onnx-dir", type=Path, help="directory of the exported graphs (default: onnx in token2wav/)")
    add("--engines-dir", type=Path, help="directory for the engines (default: engines in token2wav/)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    build_engines(args, Tools(probe_host(), load_tensorrt, _gpu_certifier, time_chunks))
    return 0


def build_engines(args: argparse.Namespace, tools: Tools) -> None:
    """Build every engine that was asked for.

    Raises:
        CheckpointError, ExportError, TensorRTError: one can't be built, or was refused.
    """
    for target in _targets(args.architectures, tools.host):
        _build_for(args, target, tools)


def _targets(architectures: Sequence[str] | None, host: GpuHost) -> list[Target]:
    """Return what engines are made for.

    Raises:
        EngineBuildError: this machine has no GPU, and none was named.
        EngineUnfitError: no library that is installed has engines for it.
    """
    from token2wav_service.export.engines import Target

    if architectures:
        return [Target(name, host.library(name, TENSORRT_RTX), None) for name in dict.fromkeys(architectures)]
    if host.architecture is None:
        raise EngineBuildError(
            "this machine has no GPU that nvidia-smi shows; name the one to build for, as in --for sm89"
        )
    return [Target(host.architecture, host.library(host.architecture), host.gpu_name)]


def _build_for(args: argparse.Namespace, target: Target, tools: Tools) -> None:
    from token2wav_service.export.directory import ExportDirectory
    from token2wav_service.export.engines import ensure_engine

    model_dir = token2wav_dir(args.checkpoint)
    engines_dir = args.engines_dir or model_dir / ENGINES_FOLDER
    exports = ExportDirectory(model_dir, args.onnx_dir or model_dir / ONNX_FOLDER, export_options(args))
    made: list[EngineManifest] = []
    for task in exports.plan():
        started_s, certify = time.monotonic(), tools.certify_of(exports, task)
        load = partial(tools.load, target.library)
        manifest, is_new = ensure_engine(task, exports, target, engines_dir, load, certify)
        made.append(manifest)
        took = f"done in {time.monotonic() - started_s:.0f} s" if is_new else "was there already"
        size = f"{manifest.engine_bytes / 1e6:.1f} MB"
        print(f"{manifest.engine_path(engines_dir)}: {took}, {size}, {_quality(manifest)}")
    if target.gpu_name is None:
        print(f"built ahead for {target.architecture}: runner=auto takes them once `cosydit build-engines` ran there")
    else:
        _record_speed(made, model_dir, engines_dir, tools)


def _quality(manifest: EngineManifest) -> str:
    certificate = manifest.certificate
    return f"{certificate.worst_db:.1f} dB from float32 at worst" if certificate.errors else "not measured"


def _record_speed(made: Sequence[EngineManifest], model_dir: Path, engines_dir: Path, tools: Tools) -> None:
    """Time what serves, write it beside the engines, and say what `runner=auto` will do."""
    precisions = {
        graph: {m.key.precision for m in made if m.key.graph == graph} for graph in (ESTIMATOR_CHUNK, VOCODER)
    }
    vocoder = min(precisions[VOCODER], default="float32")
    for estimator in sorted(precisions[ESTIMATOR_CHUNK]):
        served = [m for m in made if m.key.precision == (vocoder if m.key.graph == VOCODER else estimator)]
        speed = served[0].speed if all(manifest.speed for manifest in served) else None
        if speed is None:
            speed = tools.time_chunks(model_dir, engines_dir, estimator, vocoder)
            for manifest in served:
                replace(manifest, speed=speed).write(engines_dir)
        leaves = "leaves them alone and takes slots; runner=tensorrt would take them"
        takes = "takes them" if speed.is_faster else leaves
        print(f"{estimator}: {speed}; runner=auto with dtype={estimator} {takes}")


def _gpu_certifier(exports: ExportDirectory, task: ExportTask) -> Certify:
    import torch

    from token2wav_service.export.compare import certify_engine

    return lambda engine: certify_engine(task.spec, exports.models, engine, torch.device("cuda"))
