"""`cosydit build-engines`: exported graphs as TensorRT engines for this GPU, each with a numerics certificate.

Written to TensorRT's documented API; not run where this is developed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cosydit.cli.export import PRECISIONS, VOCODER_PRECISIONS

if TYPE_CHECKING:
    from token2wav_service.export.tensorrt.build import Certifier, EngineRequest
    from token2wav_service.runtime.tensorrt.api import TensorRT
    from token2wav_service.runtime.tensorrt.manifest import GpuHost

ONNX_FOLDER, ENGINES_FOLDER = "onnx", "engines"
MIB = 1024 * 1024


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "build-engines",
        help="build TensorRT engines of exported graphs, for this GPU",
        description="Builds TensorRT engines of exported graphs, for this GPU. Written to TensorRT's documented API, "
        "not run where it was developed. Every engine is compared with float32 before it is put into place.",
    )
    parser.add_argument("checkpoint", type=Path, help="directory with token2wav/, or a token2wav directory itself")
    parser.add_argument(
        "--onnx-dir", type=Path, help="directory that `cosydit export` wrote (default: onnx in token2wav/)"
    )
    parser.add_argument("--engines-dir", type=Path, help="directory for the engines (default: engines in token2wav/)")
    parser.add_argument(
        "--precision",
        nargs="+",
        choices=PRECISIONS,
        default=["float16"],
        help="precisions of the flow's graphs, one equal to the service's dtype (default float16)",
    )
    parser.add_argument(
        "--vocoder-precision",
        nargs="+",
        choices=VOCODER_PRECISIONS,
        default=["float32"],
        help="of the vocoder's convolutions; float32 products are TF32 (default float32)",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="GRAPH",
        default=["estimator_chunk", "vocoder"],
        help="graphs to build (default estimator_chunk and vocoder, those that runner=tensorrt uses)",
    )
    parser.add_argument(
        "--optimization-level",
        type=int,
        choices=range(6),
        default=3,
        help="effort of the builder; 0: fastest build, 5: fastest engine",
    )
    parser.add_argument(
        "--workspace-mib", type=int, help="MiB of GPU memory that a kernel may use (default: all of it)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Build what is missing; return 0, or 1 if an engine could not be built or was refused."""
    from token2wav_service.export.tensorrt.build import LazyCertifier
    from token2wav_service.runtime.tensorrt.manifest import probe_host

    host = probe_host()

    def certifier_of(model_dir: Path, request: EngineRequest) -> Certifier:
        return LazyCertifier(lambda: _gpu_certifier(model_dir, request.onnx))

    return build_engines(args, host, lambda: _load_on_gpu(host), certifier_of)


def build_engines(
    args: argparse.Namespace,
    host: GpuHost,
    load_tensorrt: Callable[[], TensorRT],
    certifier_of: Callable[[Path, EngineRequest], Certifier],
) -> int:
    """Build every engine that was asked for on a host; returns the exit status."""
    from token2wav_service.errors import CheckpointError, ExportError, TensorRTError
    from token2wav_service.export.tensorrt.build import ProgressBars, ensure_engine

    inner = args.checkpoint / "token2wav"
    model_dir = inner if inner.is_dir() else args.checkpoint
    engines_dir = args.engines_dir or model_dir / ENGINES_FOLDER
    try:
        for request in _requests(args, model_dir):
            bars = ProgressBars(f"{request.graph} {request.precision}", sys.stderr)
            started_s = time.monotonic()
            try:
                certify = certifier_of(model_dir, request)
                result = ensure_engine(request, host, engines_dir, load_tensorrt, certify, bars)
            finally:
                bars.close()
            path = result.manifest.engine_path(engines_dir)
            worst = min(error.snr_db for case in result.manifest.certificate.cases for error in case.outputs)
            took = f"built in {time.monotonic() - started_s:.0f} s" if result.was_built else "was there already"
            print(f"{path}: {took}, {worst:.1f} dB from float32 at worst")
    except (CheckpointError, ExportError, TensorRTError, OSError) as err:
        print(f"cosydit build-engines: {err}", file=sys.stderr)
        return 1
    return 0


def _requests(args: argparse.Namespace, model_dir: Path) -> list[EngineRequest]:
    from token2wav_service.errors import ExportError
    from token2wav_service.export.tensorrt.build import read_request
    from token2wav_service.graphs.catalogue import FLOW_GRAPHS, VOCODER_GRAPHS
    from token2wav_service.graphs.spec import Precision
    from token2wav_service.runtime.tensorrt.types import BuildOptions

    known = (*FLOW_GRAPHS, *VOCODER_GRAPHS)
    unknown = sorted(set(args.only) - set(known))
    if unknown:
        raise ExportError(f"got --only {' '.join(unknown)}, expected some of {' '.join(known)}")
    onnx_dir = args.onnx_dir or model_dir / ONNX_FOLDER
    workspace_bytes = args.workspace_mib * MIB if args.workspace_mib is not None else None
    options = BuildOptions(args.optimization_level, workspace_bytes)
    try:
        requests = [
            read_request(onnx_dir, graph, Precision(precision), options)
            for graph in dict.fromkeys(args.only)
            for precision in _precisions(args, graph)
        ]
    except ExportError as err:
        command = f"cosydit export {model_dir} --out {onnx_dir} --precision {' '.join(args.precision)}"
        command += f" --vocoder-precision {' '.join(args.vocoder_precision)}"
        raise ExportError(f"{err}\nrun: {command} --only {' '.join(args.only)}") from err
    return list({request.onnx: request for request in requests}.values())


def _precisions(args: argparse.Namespace, graph: str) -> list[str]:
    """Return the precisions to build a graph in; the pitch predictor is float32 always."""
    from token2wav_service.graphs.catalogue import F0_PREDICTOR, VOCODER

    wanted: dict[str, list[str]] = {F0_PREDICTOR: ["float32"], VOCODER: args.vocoder_precision}
    return list(dict.fromkeys(wanted.get(graph, args.precision)))


def _load_on_gpu(host: GpuHost) -> TensorRT:
    """Load TensorRT, once torch agrees on the GPU: both have to use the same one."""
    import torch

    from token2wav_service.errors import EngineBuildError
    from token2wav_service.runtime.tensorrt.api import load_tensorrt
    from token2wav_service.runtime.tensorrt.manifest import architecture_name

    if not torch.cuda.is_available():
        raise EngineBuildError(f"torch {torch.__version__} can't use the GPU; make .venv again on this host")
    seen = architecture_name(*torch.cuda.get_device_capability())
    if seen != host.architecture:
        raise EngineBuildError(
            f"torch's first GPU is {seen}, nvidia-smi's is {host.architecture}; set CUDA_VISIBLE_DEVICES to one GPU"
        )
    return load_tensorrt()


def _gpu_certifier(model_dir: Path, onnx: Path) -> Certifier:
    import torch

    from token2wav_service.export.tensorrt.certify import make_certifier

    return make_certifier(model_dir, onnx, torch.device("cuda"))
