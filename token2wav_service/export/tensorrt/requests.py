"""Reads from an exported file what engine to make of it. No torch, so that finding nothing to do is quick."""

from __future__ import annotations

from pathlib import Path

from token2wav_service.errors import ExportError
from token2wav_service.export.manifest import Manifest, read_manifest
from token2wav_service.export.tensorrt.build import EngineRequest
from token2wav_service.graphs.catalogue import VOCODER_GRAPHS
from token2wav_service.graphs.shapes import AxisRange, Profile
from token2wav_service.graphs.spec import DType, GraphSpec, Precision, TensorSpec
from token2wav_service.runtime.tensorrt.manifest import EngineProfile
from token2wav_service.runtime.tensorrt.types import BuildOptions


def read_request(onnx_dir: Path, graph: str, precision: Precision, options: BuildOptions) -> EngineRequest:
    """Return the engine that belongs to an exported graph, with the profiles it was exported for.

    Args:
        precision: of the flow's graphs; the vocoder's are float32 always.

    Raises:
        ExportError: the graph was not exported, or its file is not what its manifest says.
    """
    exported = Precision.FLOAT32 if graph in VOCODER_GRAPHS else precision
    onnx = onnx_dir / f"{graph}.{exported.value}.onnx"
    manifest = read_manifest(onnx)
    if not onnx.is_file() or onnx.stat().st_size != manifest.size_bytes:
        raise ExportError(f"{onnx} is missing or not whole; run `cosydit export` again")
    spec = read_spec(manifest)
    profiles = tuple(EngineProfile(profile.name, spec.shape_ranges(profile)) for profile in spec.profiles)
    return EngineRequest(graph, exported.value, onnx, manifest.sha256, manifest.sources, profiles, options)


def read_spec(manifest: Manifest) -> GraphSpec:
    """Return the description that a graph was exported under, without its derived axes.

    Raises:
        ExportError: the manifest holds something else.
    """
    try:
        described = manifest.description
        tensors = [
            tuple(
                TensorSpec(t["name"], DType(t["dtype"]), tuple(t["dims"]), t["meaning"]) for t in described[direction]
            )
            for direction in ("inputs", "outputs")
        ]
        profiles = tuple(
            Profile(name, {axis: AxisRange(*size) for axis, size in ranges.items()})
            for name, ranges in described["profiles"].items()
        )
        return GraphSpec(manifest.graph, Precision(manifest.precision), tensors[0], tensors[1], profiles)
    except (KeyError, TypeError, ValueError) as err:
        raise ExportError(
            f"the manifest of {manifest.graph} can't be read ({err!r}); run `cosydit export` again"
        ) from err
