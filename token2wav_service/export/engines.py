"""Makes one engine file out of a graph: export, build, measure, and only then rename into place.

Two builders that share a directory take turns. What is there already and fits is left alone. An engine for a GPU of
another machine is built without being measured; `ensure_engine` on that machine measures it and builds nothing.
`ProgressBars` shows how far a build is.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from filelock import FileLock, Timeout
from tqdm import tqdm

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
    EngineProfile,
    damages,
    read_manifest,
)
from token2wav_service.runtime.tensorrt.types import BuildProgress

logger = logging.getLogger(__name__)

LOCK_NAME = ".build.lock"
LOCK_TIMEOUT_S = 4 * 3600.0
"""Seconds to wait for another build, which takes minutes to an hour; a longer wait has another cause."""

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
    progress: BuildProgress,
    lock_timeout_s: float = LOCK_TIMEOUT_S,
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
    with _locked(directory, lock_timeout_s):
        known = _existing(target.key(task), directory)
        if known is not None and (known.certificate.errors or target.gpu_name is None):
            return known, False
        tensorrt = load_tensorrt()
        made = known or _build(task, exports, target, directory, tensorrt, progress)
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
    task: ExportTask,
    exports: ExportDirectory,
    target: Target,
    directory: Path,
    tensorrt: TensorRT,
    progress: BuildProgress,
) -> EngineManifest:
    """Write the engine; nobody uses it before its manifest is there."""
    if not task.is_done:
        exports.run(task)
    key, spec = target.key(task), task.spec
    timings = directory / f"timings.{key.architecture}.{key.library.replace(' ', '-')}.cache"
    built = tensorrt.build(
        task.path,
        [spec.shape_ranges(profile) for profile in spec.profiles],
        key.architecture,
        progress,
        timings.read_bytes() if timings.is_file() else b"",
    )
    if built.timings:
        # They help even if the engine is refused: the next build times the same kernels.
        write_bytes(timings, built.timings)
    profiles = tuple(EngineProfile(p.name, held) for p, held in zip(spec.profiles, built.profiles, strict=True))
    certificate = EngineCertificate(ENGINE_MIN_SNR_DB[spec.precision])
    manifest = EngineManifest(key, target.gpu_name, task.sources, profiles, len(built.plan), certificate)
    write_bytes(manifest.engine_path(directory), built.plan)
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


@contextmanager
def _locked(directory: Path, timeout_s: float) -> Iterator[None]:
    """Hold the directory's lock; the system frees it if its holder dies."""
    lock = FileLock(directory / LOCK_NAME)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        logger.warning("another build works in %s; waiting for it", directory)
        try:
            lock.acquire(timeout=timeout_s)
        except Timeout as err:
            raise EngineBuildError(
                f"another build has held {directory / LOCK_NAME} for {timeout_s:g} s; wait for it or end it, then retry"
            ) from err
    try:
        yield
    finally:
        lock.release()


class ProgressBars:
    """One bar for every open phase; may be called from several threads."""

    def __init__(self, title: str, stream: TextIO) -> None:
        """Keep where to write.

        Args:
            title: stands before the outermost phases.
        """
        self._title, self._stream = title, stream
        self._lock = threading.Lock()
        self._bars: dict[str, tqdm[Any]] = {}

    def start(self, phase: str, parent: str | None, steps: int) -> None:
        """Open a bar."""
        text = phase if parent is not None else f"{self._title}: {phase}"
        with self._lock:
            self._close(phase)
            self._bars[phase] = tqdm(total=steps, desc=text, leave=parent is None, file=self._stream, unit="step")

    def step(self, phase: str, index: int) -> None:
        """Move a bar on."""
        with self._lock:
            bar = self._bars.get(phase)
            if bar is not None:
                bar.update(index + 1 - bar.n)

    def finish(self, phase: str) -> None:
        """Close a bar at its end: TensorRT does not report a phase's last steps."""
        with self._lock:
            bar = self._bars.get(phase)
            if bar is not None:
                bar.update((bar.total or bar.n) - bar.n)
            self._close(phase)

    def close(self) -> None:
        """Close what a failed build left open."""
        with self._lock:
            for phase in list(self._bars):
                self._close(phase)

    def _close(self, phase: str) -> None:
        bar = self._bars.pop(phase, None)
        if bar is not None:
            bar.close()
