"""Keeps a directory of exported files: finds the files that are missing or outdated, and makes them.

Beside the graphs lies what their users need of the checkpoint: the models' sizes, and the weights of what stays outside
the graphs. With these, a directory is complete without the checkpoint it was made from.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from servicekit.file_sums import sha256_of_code, sha256_of_file, sha256_of_json
from servicekit.files import write_text
from token2wav_service.checkpoint import loader
from token2wav_service.checkpoint.family import find_family
from token2wav_service.errors import CheckpointError, ExportError
from token2wav_service.export import build
from token2wav_service.export.manifest import (
    KEYED_PACKAGES,
    Manifest,
    describe,
    read_manifest,
    versions,
    write_manifest,
)
from token2wav_service.export.onnx_file import OPSETS, check_interface, write_graph
from token2wav_service.graphs import catalogue as graphs
from token2wav_service.graphs.shapes import ShapeSettings
from token2wav_service.graphs.spec import GraphSpec, Precision

HASH_MEMORY = ".hashes.json"
_CODE = ("modules.py", "precision.py", "onnx_file.py")


@dataclass(frozen=True)
class ExportOptions:
    """What to export."""

    precisions: tuple[Precision, ...] = (Precision.FLOAT32,)
    """Precisions of the flow's graphs."""
    vocoder_precisions: tuple[Precision, ...] = (Precision.FLOAT32,)
    """Precisions of the vocoder's convolutions."""
    graphs: tuple[str, ...] | None = None
    """Names of graphs; None is all that the checkpoint's family has."""
    shapes: tuple[ShapeSettings, ...] = (ShapeSettings(),)


@dataclass(frozen=True)
class ExportTask:
    """One file of the directory."""

    spec: GraphSpec
    path: Path
    sources: tuple[Path, ...]
    """Files of the checkpoint that it is made from."""
    key: str
    is_done: bool
    """Whether the file exists already, made from the same things."""


class ExportDirectory:
    """Exports one checkpoint into one directory."""

    def __init__(self, model_dir: Path, out_dir: Path, options: ExportOptions) -> None:
        """Read the models' sizes; `out_dir` is made if missing.

        Raises:
            CheckpointError: the sizes are missing or unusable.
            ExportError: the family has no graph of a name, or `out_dir` holds another family's.
        """
        self.model_dir, self.out_dir, self.options = model_dir, out_dir, options
        self.config = loader.read_config(model_dir)
        self._given_files = {Path(name).stem: name for name in self.config.family.files.given}
        described = graphs.describe_graphs(self.config.flow, self.config.hift, Precision.FLOAT32)
        known = (*described, *self._given_files)
        self._wanted = known if options.graphs is None else options.graphs
        self._check(known)
        out_dir.mkdir(parents=True, exist_ok=True)
        self._hashes = FileHashes(out_dir / HASH_MEMORY)
        self.models = build.Models(model_dir)
        package = Path(build.__file__).parent
        models = sorted((package.parent / "models").rglob("*.py"))
        self._code = sha256_of_code([*models, *(package / name for name in _CODE)])

    def plan(self) -> list[ExportTask]:
        """Return every file that was asked for, done or not.

        Raises:
            CheckpointError: a file of the checkpoint is missing.
        """
        return [self._task(spec) for spec in self._specs()]

    def run(self, task: ExportTask) -> Manifest:
        """Make a file and its manifest; the old one stays until the new one is complete.

        Raises:
            ExportError: the graph can't be exported as described, or a given file is not of its interface.
            CheckpointError: the weights can't be loaded.
        """
        if task.spec.name in self._given_files:
            opset = _take(task)
        else:
            build.write_companions(self.model_dir, self.out_dir, self.models)
            write_graph(build.module_for(task.spec, self.models), task.spec, task.path)
            opset = OPSETS[task.spec.precision]
        manifest = Manifest(
            graph=task.spec.name,
            precision=task.spec.precision.value,
            opset=opset,
            sha256=sha256_of_file(task.path),
            size_bytes=task.path.stat().st_size,
            key=task.key,
            sources={path.name: self._hashes.sha256(path) for path in task.sources},
            versions=versions(),
            description=describe(task.spec),
        )
        write_manifest(task.path, manifest)
        return manifest

    def _check(self, known: Sequence[str]) -> None:
        family, unknown = self.config.family, sorted(set(self._wanted) - set(known))
        if unknown:
            raise ExportError(
                f"got graphs {' '.join(unknown)}, expected some of {' '.join(known)}, those of family {family.value}"
            )
        other = find_family(self.out_dir)
        if other not in (None, family):
            raise ExportError(
                f"{self.out_dir} holds graphs of family {other.value}, {self.model_dir} is {family.value}; "
                "give another --out"
            )

    def _specs(self) -> list[GraphSpec]:
        shapes, flow, hift = self.options.shapes, self.config.flow, self.config.hift
        described: list[GraphSpec] = []
        for precision in self.options.precisions:
            made = graphs.describe_graphs(flow, hift, precision, shapes)
            described += [made[name] for name in graphs.FLOW_GRAPHS if name in self._wanted]
        for precision in self.options.vocoder_precisions:
            made = graphs.describe_graphs(flow, hift, precision, shapes, precision)
            wanted = [made[name] for name in graphs.VOCODER_GRAPHS if name in made and name in self._wanted]
            described += [spec for spec in wanted if spec not in described]
        given = graphs.describe_given(flow, shapes, Path(self.config.family.files.speech_tokenizer).stem)
        return described + [spec for name, spec in given.items() if name in self._wanted]

    def _task(self, spec: GraphSpec) -> ExportTask:
        path = self.out_dir / self._given_files.get(spec.name, spec.file_name)
        sources = self._sources(spec.name)
        made_with = versions()
        key = sha256_of_json(
            {
                "graph": [spec.name, spec.precision.value, describe(spec)],
                "sources": {source.name: self._hashes.sha256(source) for source in sources},
                "code": self._code,
                "versions": [made_with.get(name) for name in KEYED_PACKAGES],
            }
        )
        return ExportTask(spec, path, sources, key, _is_made(path, key) and build.has_companions(self.out_dir))

    def _sources(self, graph: str) -> tuple[Path, ...]:
        if graph in self._given_files:
            names: Sequence[Path] = [self.model_dir / self._given_files[graph]]
        elif graph in graphs.FLOW_GRAPHS:
            names = loader.flow_files(self.model_dir)
        else:
            names = loader.hift_files(self.model_dir)
        for path in names:
            if not path.is_file():
                raise CheckpointError(f"{path} is missing; complete the checkpoint, or leave {graph} out with --only")
        return tuple(names)


def _is_made(path: Path, key: str) -> bool:
    try:
        manifest = read_manifest(path)
    except ExportError:
        return False
    return manifest.key == key and path.is_file() and path.stat().st_size == manifest.size_bytes


def _take(task: ExportTask) -> int:
    """Check a file that the checkpoint brings and copy it; returns its opset."""
    (source,) = task.sources
    model = onnx.load(str(source), load_external_data=False)
    onnx.checker.check_model(str(source))
    check_interface(model, task.spec, by_position=True)
    partial = task.path.with_name(f".{task.path.name}.{os.getpid()}.part")
    shutil.copyfile(source, partial)
    os.replace(partial, task.path)
    return next(int(entry.version) for entry in model.opset_import if entry.domain in ("", "ai.onnx"))


class FileHashes:
    """SHA-256 of files, remembered in a JSON file under their absolute paths."""

    def __init__(self, memory: Path) -> None:
        self._memory = memory
        self._known = _read(memory)

    def sha256(self, path: Path) -> str:
        """Return a file's SHA-256 as hex.

        Raises:
            OSError: the file can't be read.
        """
        status = path.stat()
        stamp = [status.st_size, status.st_mtime_ns]
        known = self._known.get(str(path.resolve()))
        if known is not None and known[:2] == stamp:
            return str(known[2])
        found = sha256_of_file(path)
        self._known[str(path.resolve())] = [*stamp, found]
        write_text(self._memory, json.dumps(self._known, indent=1, sort_keys=True) + "\n")
        return found


def _read(memory: Path) -> dict[str, list[object]]:
    try:
        known = json.loads(memory.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
