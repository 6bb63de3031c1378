"""Which TensorRT engines of a checkpoint are there, and whether each fits this machine. Loads no library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from token2wav_service.errors import EngineUnfitError
from token2wav_service.runtime.tensorrt.manifest import (
    ENGINES_FOLDER,
    MANIFEST_SUFFIX,
    EngineManifest,
    GpuHost,
    misfits,
    read_manifest,
)

SERVED_GRAPH = "estimator_chunk"
"""The one that `runner=tensorrt` uses."""


@dataclass(frozen=True)
class EngineReport:
    """One engine file."""

    name: str
    graph: str
    problems: tuple[str, ...]
    """Why it can't be used here; empty if it can."""
    note: str = ""
    """Worth knowing of one that fits."""


def report_engines(token2wav_dir: Path, host: GpuHost) -> list[EngineReport]:
    """Look at every engine in a checkpoint's engines folder."""
    directory = token2wav_dir / ENGINES_FOLDER
    return [_report(path, host) for path in sorted(directory.glob("*" + MANIFEST_SUFFIX))]


def next_engine_command(token2wav_dir: Path, reports: Sequence[EngineReport]) -> str | None:
    """Return the command that makes the engine that serving needs; None if a fitting one is there."""
    if any(report.graph == SERVED_GRAPH and not report.problems for report in reports):
        return None
    if not any((token2wav_dir / "onnx").glob(f"{SERVED_GRAPH}.*.onnx")):
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
