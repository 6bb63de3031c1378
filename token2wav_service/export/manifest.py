"""The manifest beside every exported file: its content, its sources, and the packages that made it. No torch."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from servicekit.files import write_text
from token2wav_service.errors import ExportError
from token2wav_service.graphs.spec import GraphSpec

PACKAGES = ("cosydit", "torch", "onnx", "onnxscript")
"""Packages whose versions are recorded."""
KEYED_PACKAGES = ("torch", "onnxscript")
"""Packages whose versions may change the exported files."""


@dataclass(frozen=True)
class Manifest:
    """Beside `NAME.onnx` as `NAME.onnx.json`."""

    graph: str
    precision: str
    opset: int
    """Version of the default operator set."""
    sha256: str
    """SHA-256 of the file."""
    size_bytes: int
    key: str
    """Hash of everything the file depends on; with an equal key it need not be made again."""
    sources: Mapping[str, str]
    """SHA-256 of the checkpoint's files that it was made from, by name."""
    versions: Mapping[str, str]
    """Versions of the packages it was made with."""
    description: Mapping[str, Any]
    """The graph's inputs, outputs and profiles."""


def manifest_path(file: Path) -> Path:
    """Return where a file's manifest is."""
    return file.with_name(f"{file.name}.json")


def read_manifest(file: Path) -> Manifest:
    """Read the manifest beside an exported file.

    Raises:
        ExportError: there is none, or it is not of this version.
    """
    path = manifest_path(file)
    try:
        return Manifest(**json.loads(path.read_text("utf-8")))
    except FileNotFoundError as err:
        raise ExportError(f"{path} is missing; run `cosydit export` on the checkpoint") from err
    except (OSError, ValueError, TypeError) as err:
        raise ExportError(f"{path} can't be read as a manifest ({err}); run `cosydit export` again") from err


def write_manifest(file: Path, manifest: Manifest) -> None:
    """Write the manifest beside an exported file, whole or not at all."""
    write_text(manifest_path(file), json.dumps(dataclasses.asdict(manifest), indent=1) + "\n")


def describe(spec: GraphSpec) -> dict[str, Any]:
    """Return a description as plain data."""
    return {
        "inputs": [dataclasses.asdict(tensor) for tensor in spec.inputs],
        "outputs": [dataclasses.asdict(tensor) for tensor in spec.outputs],
        "profiles": {
            profile.name: {axis: dataclasses.astuple(size) for axis, size in profile.ranges.items()}
            for profile in spec.profiles
        },
    }


def versions() -> dict[str, str]:
    """Return the recorded packages' versions; what is not installed is left out."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
