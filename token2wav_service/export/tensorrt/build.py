"""Makes one engine file out of an exported graph: read its request, build, measure, and only then rename into place.

Two builders that share a directory take turns. What is there already and fits is left alone, without loading TensorRT
or torch, so that finding nothing to do is quick. `ProgressBars` shows how far a build is.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

from filelock import FileLock, Timeout
from tqdm import tqdm

from token2wav_service.errors import EngineBuildError, EngineUnfitError, ExportError
from token2wav_service.export.manifest import Manifest, read_manifest
from token2wav_service.graphs.shapes import AxisRange, Profile
from token2wav_service.graphs.spec import DType, GraphSpec, Precision, TensorSpec
from token2wav_service.runtime.tensorrt.api import TensorRT, TensorRTEngine
from token2wav_service.runtime.tensorrt.manifest import (
    MANIFEST_SUFFIX,
    EngineCertificate,
    EngineKey,
    EngineManifest,
    EngineProfile,
    GpuHost,
    misfits,
    recipe_sha256,
    write_manifest,
    write_whole,
)
from token2wav_service.runtime.tensorrt.manifest import read_manifest as read_engine_manifest
from token2wav_service.runtime.tensorrt.types import BuildOptions, BuildProgress

logger = logging.getLogger(__name__)

LOCK_NAME = ".build.lock"
LOCK_TIMEOUT_S = 4 * 3600.0
"""Seconds to wait for another build, which takes minutes to an hour; a longer wait has another cause."""


@dataclass(frozen=True)
class EngineRequest:
    """An engine to make."""

    graph: str
    precision: str
    onnx: Path
    onnx_sha256: str
    sources: Mapping[str, str]
    """SHA-256 of the checkpoint's files that the graph was exported from, by name."""
    profiles: tuple[EngineProfile, ...]
    options: BuildOptions

    def key(self, host: GpuHost) -> EngineKey:
        """Return the key that names the engine on a machine.

        Raises:
            EngineBuildError: the machine has no GPU or no TensorRT.
        """
        if host.architecture is None or host.tensorrt is None:
            raise EngineBuildError(
                f"engines are built on the GPU host with TensorRT 10 or 11; found GPU {host.gpu_name or 'none'} and "
                f"TensorRT {host.tensorrt or 'none'}; `cosydit doctor` says what is missing"
            )
        recipe = recipe_sha256(self.profiles, self.options)
        return EngineKey(self.graph, self.precision, host.architecture, host.tensorrt, self.onnx_sha256, recipe)


class Certifier(Protocol):
    """Measures a new engine against float32."""

    def __call__(self, engine: TensorRTEngine) -> EngineCertificate:
        """Run the engine; it was just loaded on this machine's GPU."""
        ...


@dataclass(frozen=True)
class LazyCertifier:
    """Makes a certifier only when there is something to measure: it loads the models."""

    make: Callable[[], Certifier]

    def __call__(self, engine: TensorRTEngine) -> EngineCertificate:
        """Make it and measure."""
        return self.make()(engine)


@dataclass(frozen=True)
class BuildResult:
    """The outcome of a request."""

    manifest: EngineManifest
    was_built: bool
    """Whether the engine was built now; False if a fitting one was there."""


def ensure_engine(
    request: EngineRequest,
    host: GpuHost,
    directory: Path,
    load_tensorrt: Callable[[], TensorRT],
    certify: Certifier,
    progress: BuildProgress,
    lock_timeout_s: float = LOCK_TIMEOUT_S,
) -> BuildResult:
    """Build an engine unless it is there.

    Args:
        directory: for engines; made if missing.
        load_tensorrt: called only if there is something to build.

    Raises:
        EngineBuildError: it can't be built, or its certificate has failures; nothing is left of it then.
        EngineUnfitError: TensorRT can't be loaded, or is not the version that `host` says.
    """
    key = request.key(host)
    existing = _existing(key, directory, host)
    if existing is not None:
        return BuildResult(existing, was_built=False)
    directory.mkdir(parents=True, exist_ok=True)
    with _locked(directory, lock_timeout_s):
        existing = _existing(key, directory, host)
        if existing is not None:
            return BuildResult(existing, was_built=False)
        return BuildResult(_build(request, key, host, directory, load_tensorrt(), certify, progress), was_built=True)


def _existing(key: EngineKey, directory: Path, host: GpuHost) -> EngineManifest | None:
    """Return the engine of a key if it is there and whole; one that is damaged is made again."""
    path = directory / (key.stem + MANIFEST_SUFFIX)
    if not path.is_file():
        return None
    try:
        manifest = read_engine_manifest(path)
    except EngineUnfitError as err:
        logger.warning("%s", err)
        return None
    return manifest if manifest.key == key and not misfits(manifest, directory, host) else None


def _build(
    request: EngineRequest,
    key: EngineKey,
    host: GpuHost,
    directory: Path,
    tensorrt: TensorRT,
    certify: Certifier,
    progress: BuildProgress,
) -> EngineManifest:
    if tensorrt.version != key.tensorrt:
        raise EngineUnfitError(
            f"TensorRT {tensorrt.version} was loaded, the installed package says {key.tensorrt}; reinstall it"
        )
    timings = directory / f"timings.{key.architecture}.trt{key.tensorrt}.cache"
    cached = timings.read_bytes() if timings.is_file() else b""
    built = tensorrt.build(
        request.onnx, [profile.inputs for profile in request.profiles], request.options, progress, cached
    )
    # The cache helps even if the engine is refused: the next build times the same kernels.
    write_whole(timings, built.timing_cache)
    certificate = certify(tensorrt.load(built.plan))
    failures = certificate.failures()
    if failures:
        raise EngineBuildError(
            f"the engine of {request.graph} in {request.precision} was built and refused, it is too far from float32:\n"
            + "\n".join(f"  {failure}" for failure in failures)
            + "\nbuild another precision (bfloat16 has float32's range), or report the sizes above"
        )
    manifest = EngineManifest(key, host.gpu_name or "", request.sources, request.profiles, len(built.plan), certificate)
    # The manifest is written last: nobody uses an engine without one.
    write_whole(manifest.engine_path(directory), built.plan)
    write_manifest(manifest, directory / (key.stem + MANIFEST_SUFFIX))
    return manifest


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


def read_request(onnx_dir: Path, graph: str, precision: Precision, options: BuildOptions) -> EngineRequest:
    """Return the engine that belongs to an exported graph, with the profiles it was exported for.

    Raises:
        ExportError: the graph was not exported, or its file is not what its manifest says.
    """
    onnx = onnx_dir / f"{graph}.{precision.value}.onnx"
    manifest = read_manifest(onnx)
    if not onnx.is_file() or onnx.stat().st_size != manifest.size_bytes:
        raise ExportError(f"{onnx} is missing or not whole; run `cosydit export` again")
    spec = read_spec(manifest)
    profiles = tuple(EngineProfile(profile.name, spec.shape_ranges(profile)) for profile in spec.profiles)
    return EngineRequest(graph, precision.value, onnx, manifest.sha256, manifest.sources, profiles, options)


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
        """Close a bar."""
        with self._lock:
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
