"""Which TensorRT engines of a checkpoint are there, and whether each fits this machine. Loads no library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from token2wav_service.checkpoint.family import Family, find_family
from token2wav_service.errors import EngineUnfitError
from token2wav_service.runtime.tensorrt.manifest import (
    ENGINES_FOLDER,
    MANIFEST_SUFFIX,
    EngineManifest,
    GpuHost,
    misfits,
    read_manifest,
)

SERVED_GRAPHS = ("estimator_chunk", "vocoder")
"""The graphs that `runner=tensorrt` uses. It needs the first; fused kernels stand in for an engine of the second."""


@dataclass(frozen=True)
class EngineReport:
    """One engine file."""

    name: str
    graph: str
    problems: tuple[str, ...]
    """Reasons why the engine can't be used here; empty if it can."""
    note: str = ""
    """Remark on an engine that fits."""


def serves_engines(token2wav_dir: Path) -> bool:
    """Tell whether `runner=tensorrt` serves the checkpoint's family; engines of the others are for other runtimes."""
    return find_family(token2wav_dir) in (None, Family.STEP_AUDIO2)


def report_engines(token2wav_dir: Path, host: GpuHost) -> list[EngineReport]:
    """Look at every engine in a checkpoint's engines folder."""
    directory = token2wav_dir / ENGINES_FOLDER
    return [_report(path, host) for path in sorted(directory.glob("*" + MANIFEST_SUFFIX))]


def next_engine_command(token2wav_dir: Path, reports: Sequence[EngineReport]) -> str | None:
    """Return the command that makes the engines that serving uses; None if it uses none, or fitting ones are there."""
    if not serves_engines(token2wav_dir):
        return None
    fitting = {report.graph for report in reports if not report.problems}
    if fitting.issuperset(SERVED_GRAPHS):
        return None
    if not all(any((token2wav_dir / "onnx").glob(f"{graph}.*.onnx")) for graph in SERVED_GRAPHS):
        return f"cosydit export {token2wav_dir} --out {token2wav_dir / 'onnx'} --precision float16"
    return f"cosydit build-engines {token2wav_dir}"


def _report(path: Path, host: GpuHost) -> EngineReport:
    try:
        manifest = read_manifest(path)
    except EngineUnfitError as err:
        return EngineReport(path.stem, "", (str(err).splitlines()[0],))
    problems = tuple(misfits(manifest, path.parent, host))
    return EngineReport(path.stem, manifest.key.graph, problems, _note(manifest, host))


def _note(manifest: EngineManifest, host: GpuHost) -> str:
    worst = min(error.snr_db for case in manifest.certificate.cases for error in case.outputs)
    other = f"; built on {manifest.gpu_name}" if manifest.gpu_name != host.gpu_name else ""
    return f"fits, {worst:.0f} dB from float32 at worst{other}"
