"""Keeps a directory of exported files: finds those that are missing or outdated, and makes them.

Beside every `NAME.onnx` lies `NAME.onnx.json`, its manifest: what it was made from, and what the graph takes and gives.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servicekit.extras import installed_version
from servicekit.file_sums import sha256_of_code, sha256_of_file, sha256_of_json
from servicekit.files import write_text
from token2wav_service.checkpoint import loader
from token2wav_service.errors import CheckpointError, ExportError
from token2wav_service.export import modules
from token2wav_service.export.onnx_file import OPSET, write_graph
from token2wav_service.graphs import ESTIMATOR_CHUNK, GRAPHS, VOCODER, GraphSpec, Precision, describe_graph

PACKAGES = ("cosydit", "torch", "onnx", "onnxscript")
"""Packages whose versions are recorded."""
KEYED_PACKAGES = ("torch", "onnxscript")
"""Packages whose versions may change the exported files."""
_CODE = ("modules.py", "onnx_file.py")


@dataclass(frozen=True)
class ExportOptions:
    """What to export."""

    precisions: tuple[Precision, ...] = (Precision.FLOAT32,)
    """Precisions of the estimator."""
    vocoder_precisions: tuple[Precision, ...] = (Precision.FLOAT32,)
    """Precisions of the vocoder's convolutions."""
    graphs: tuple[str, ...] = GRAPHS
    """Names of graphs."""


@dataclass(frozen=True)
class ExportTask:
    """One file of the directory."""

    spec: GraphSpec
    path: Path
    sources: Mapping[str, str]
    """SHA-256 of the checkpoint's files that it is made from, by name."""
    key: str
    """Hash of everything the file depends on; with an equal key it need not be made again."""

    @property
    def is_done(self) -> bool:
        """Whether the file exists already, made from the same things."""
        try:
            manifest = json.loads(manifest_path(self.path).read_text("utf-8"))
            return (manifest["key"], manifest["size_bytes"]) == (self.key, self.path.stat().st_size)
        except (OSError, ValueError, KeyError, TypeError):
            return False


def manifest_path(file: Path) -> Path:
    """Return where a file's manifest is."""
    return file.with_name(f"{file.name}.json")


class ExportDirectory:
    """Exports one checkpoint into one directory."""

    def __init__(self, model_dir: Path, out_dir: Path, options: ExportOptions) -> None:
        """Read the models' sizes; `out_dir` is made if missing.

        Raises:
            CheckpointError: the sizes are missing or unusable.
            ExportError: there is no graph of a name.
        """
        unknown = sorted(set(options.graphs) - set(GRAPHS))
        if unknown:
            raise ExportError(f"got graphs {' '.join(unknown)}, expected some of {' '.join(GRAPHS)}")
        self.model_dir, self.out_dir, self.options = model_dir, out_dir, options
        self.config = loader.read_config(model_dir)
        self.models = modules.Models(model_dir)
        out_dir.mkdir(parents=True, exist_ok=True)
        package = Path(modules.__file__).parent
        models = sorted((package.parent / "models").rglob("*.py"))
        self._code = sha256_of_code([*models, *(package / name for name in _CODE)])

    def plan(self) -> list[ExportTask]:
        """Return every file that was asked for, done or not.

        Raises:
            CheckpointError: a file of the checkpoint is missing.
        """
        wanted = {ESTIMATOR_CHUNK: self.options.precisions, VOCODER: self.options.vocoder_precisions}
        files = {ESTIMATOR_CHUNK: loader.flow_files, VOCODER: loader.hift_files}
        tasks = []
        for name in dict.fromkeys(self.options.graphs):
            sources = _hashes(files[name](self.model_dir))
            for precision in wanted[name]:
                spec = describe_graph(name, self.config.flow, self.config.hift, precision)
                tasks.append(self._task(spec, sources))
        return tasks

    def run(self, task: ExportTask) -> None:
        """Make a file and its manifest; the old one stays until the new one is complete.

        Raises:
            ExportError: the graph can't be exported as described.
            CheckpointError: the weights can't be loaded.
        """
        write_graph(modules.module_for(task.spec, self.models), task.spec, task.path)
        manifest = {
            "graph": task.spec.name,
            "precision": task.spec.precision.value,
            "opset": OPSET,
            "sha256": sha256_of_file(task.path),
            "size_bytes": task.path.stat().st_size,
            "key": task.key,
            "sources": task.sources,
            "versions": versions(),
            "description": describe(task.spec),
        }
        write_text(manifest_path(task.path), json.dumps(manifest, indent=1) + "\n")

    def _task(self, spec: GraphSpec, sources: Mapping[str, str]) -> ExportTask:
        made_with = versions()
        made_of = {
            "graph": [spec.name, spec.precision.value, describe(spec)],
            "sources": sources,
            "code": self._code,
            "versions": [made_with.get(name) for name in KEYED_PACKAGES],
        }
        return ExportTask(spec, self.out_dir / spec.file_name, sources, sha256_of_json(made_of))


def _hashes(files: list[Path]) -> dict[str, str]:
    for path in files:
        if not path.is_file():
            raise CheckpointError(f"{path} is missing; complete the checkpoint, or name the other graph with --only")
    return {path.name: sha256_of_file(path) for path in files}


def describe(spec: GraphSpec) -> dict[str, Any]:
    """Return a description as plain data."""
    return {
        "inputs": [dataclasses.asdict(tensor) for tensor in spec.inputs],
        "outputs": [dataclasses.asdict(tensor) for tensor in spec.outputs],
        "ranges": {axis: dataclasses.astuple(size) for axis, size in spec.ranges.items()},
    }


def versions() -> dict[str, str]:
    """Return the recorded packages' versions; what is not installed is left out."""
    return {name: version for name in PACKAGES if (version := installed_version(name)) is not None}
