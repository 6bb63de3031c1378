"""Makes one engine file out of a graph: export, build, measure, and only then rename into place.

What is there already and fits is left alone. An engine for a GPU of another machine is built without being measured;
`ensure_engine` on that machine measures it and builds nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from servicekit.files import write_bytes
from token2wav_service.errors import EngineBuildError, EngineUnfitError
from token2wav_service.export.compare import ENGINE_MIN_SNR_DB
from token2wav_service.export.directory import ExportDirectory, ExportTask
from token2wav_service.runtime.tensorrt.api import TensorRT, TensorRTEngine
from token2wav_service.runtime.tensorrt.manifest import (
    MANIFEST_SUFFIX,
    EngineCertificate,
    EngineKey,
    EngineManifest,
    damages,
    read_manifest,
)

logger = logging.getLogger(__name__)

Certify = Callable[[TensorRTEngine], EngineCertificate]
"""Measures an engine that was just loaded on this machine's GPU."""


@dataclass(frozen=True)
class Target:
    """What engines are made for."""

    architecture: str
    """Architecture of the GPU, such as sm89."""
    library: str
    """Name and version of the library that builds."""
    gpu_name: str | None
    """This machine's GPU, where the engine is measured; None for a GPU of another machine."""

    def key(self, task: ExportTask) -> EngineKey:
        """Return the key that names a graph's engine."""
        return EngineKey(task.spec.name, task.spec.precision.value, self.architecture, self.library, task.key)


def ensure_engine(
    task: ExportTask,
    exports: ExportDirectory,
    target: Target,
    directory: Path,
    load_tensorrt: Callable[[], TensorRT],
    certify: Certify,
) -> tuple[EngineManifest, bool]:
    """Build an engine unless it is there, and measure it if it is for this machine's GPU.

    Args:
        task: the graph, which is exported if it has to be.
        directory: for engines; made if missing.
        load_tensorrt: called only if there is something to do.

    Returns:
        Its manifest, and whether anything was done.

    Raises:
        EngineBuildError: it can't be built, or its certificate has failures; nothing is left of it then.
        EngineUnfitError: TensorRT can't be loaded.
    """
    directory.mkdir(parents=True, exist_ok=True)
    known = _existing(target.key(task), directory)
    if known is not None and (known.certificate.errors or target.gpu_name is None):
        return known, False
    tensorrt = load_tensorrt()
    made = known or _build(task, exports, target, directory, tensorrt)
    if target.gpu_name is not None:
        made = _measured(replace(made, gpu_name=target.gpu_name), directory, tensorrt, certify)
    made.write(directory)
    return made, True


def _existing(key: EngineKey, directory: Path) -> EngineManifest | None:
    """Return the engine of a key if it is there and whole; one that is damaged is made again."""
    path = directory / (key.stem + MANIFEST_SUFFIX)
    if not path.is_file():
        return None
    try:
        manifest = read_manifest(path)
    except EngineUnfitError as err:
        logger.warning("%s", err)
        return None
    return manifest if manifest.key == key and not damages(manifest, directory) else None


def _build(
    task: ExportTask, exports: ExportDirectory, target: Target, directory: Path, tensorrt: TensorRT
) -> EngineManifest:
    """Write the engine; nobody uses it before its manifest is there."""
    if not task.is_done:
        exports.run(task)
    key = target.key(task)
    plan = tensorrt.build(task.path, task.spec.shape_ranges(), key.architecture)
    certificate = EngineCertificate(ENGINE_MIN_SNR_DB[task.spec.precision])
    manifest = EngineManifest(key, target.gpu_name, task.sources, len(plan), certificate)
    write_bytes(manifest.engine_path(directory), plan)
    return manifest


def _measured(manifest: EngineManifest, directory: Path, tensorrt: TensorRT, certify: Certify) -> EngineManifest:
    path = manifest.engine_path(directory)
    try:
        certificate = certify(tensorrt.load(path.read_bytes()))
        failures = certificate.failures()
        if failures:
            raise EngineBuildError(
                f"the engine of {manifest.key.graph} in {manifest.key.precision} was built and refused, it is too far "
                "from float32:\n" + "\n".join(f"  {failure}" for failure in failures) + "\nbuild the other precision, "
                "or report the sizes above"
            )
    except BaseException:
        path.unlink()
        path.with_suffix(MANIFEST_SUFFIX).unlink(missing_ok=True)
        raise
    return replace(manifest, certificate=certificate)
