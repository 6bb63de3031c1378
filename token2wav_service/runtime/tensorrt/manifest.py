"""Describes an engine file: its key, its numerics certificate, and whether it fits a machine. No TensorRT, no torch.

Beside every `NAME.engine` lies `NAME.json`, the manifest. The name is made of the key, so that engines for different
GPUs, TensorRT versions, precisions or profiles can share a directory. `probe_host` looks at this machine's GPU and
TensorRT without loading a library, so it is quick and works where they are broken.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from servicekit.file_sums import sha256_of_json
from token2wav_service.errors import EngineUnfitError
from token2wav_service.graphs.catalogue import VOCODER
from token2wav_service.graphs.spec import ShapeRange

ENGINE_SUFFIX = ".engine"
MANIFEST_SUFFIX = ".json"
ENGINES_FOLDER = "engines"
"""Folder of the engines in a checkpoint's token2wav folder, unless another is named."""
_NAME_DIGITS = 12
"""Digits of a hash in a file's name; the manifest holds all."""


@dataclass(frozen=True)
class EngineProfile:
    """One profile that an engine was built for."""

    name: str
    inputs: Mapping[str, ShapeRange]


@dataclass(frozen=True)
class EngineKey:
    """Everything that makes one engine another."""

    graph: str
    precision: str
    """Type of the products: float32, float16 or bfloat16."""
    architecture: str
    """Architecture of the GPU, such as sm90."""
    tensorrt: str
    """Full version of TensorRT."""
    onnx_sha256: str
    """Hash of the graph and its external data."""
    recipe_sha256: str
    """Hash of the profiles and the builder's options."""

    @property
    def stem(self) -> str:
        """The file's name without suffix."""
        parts = (self.graph, self.precision, self.architecture, f"trt{self.tensorrt}")
        return ".".join((*parts, self.recipe_sha256[:_NAME_DIGITS], self.onnx_sha256[:_NAME_DIGITS]))


@dataclass(frozen=True)
class OutputError:
    """How far one output is from float32."""

    output: str
    snr_db: float
    """Signal to error ratio in dB."""
    worst: float
    """Largest absolute difference."""


@dataclass(frozen=True)
class CertifiedCase:
    """The errors at one set of sizes."""

    sizes: Mapping[str, int]
    """Sizes of the graph's axes."""
    outputs: tuple[OutputError, ...]


@dataclass(frozen=True)
class EngineCertificate:
    """The engine's error against the float32 modules, measured on the machine that built it."""

    min_snr_db: float
    """The least agreement that every output must reach."""
    cases: tuple[CertifiedCase, ...]

    def failures(self) -> list[str]:
        """Say which outputs are out of tolerance, or that nothing was measured."""
        errors = [(case, error) for case in self.cases for error in case.outputs]
        if not errors:
            return ["nothing was measured"]
        return [
            f"{error.output} has {error.snr_db:.1f} dB at {dict(case.sizes)}, expected {self.min_snr_db:g} or more"
            for case, error in errors
            if not error.snr_db >= self.min_snr_db
        ]


@dataclass(frozen=True)
class EngineManifest:
    """What lies beside an engine."""

    key: EngineKey
    gpu_name: str
    sources: Mapping[str, str]
    """SHA-256 of the checkpoint's files that the graph was exported from, by name."""
    profiles: tuple[EngineProfile, ...]
    engine_bytes: int
    certificate: EngineCertificate

    def engine_path(self, directory: Path) -> Path:
        """Return where the engine lies."""
        return directory / (self.key.stem + ENGINE_SUFFIX)


_MANIFESTS = TypeAdapter(EngineManifest)


@dataclass(frozen=True)
class GpuHost:
    """What an engine has to fit."""

    architecture: str | None
    """Architecture of the GPU; None without a GPU."""
    gpu_name: str | None
    tensorrt: str | None
    """Version of TensorRT; None if it is not installed."""


def misfits(manifest: EngineManifest, directory: Path, host: GpuHost) -> list[str]:
    """Say why an engine can't be used on a machine; empty if it can."""
    key, path = manifest.key, manifest.engine_path(directory)
    reasons = []
    if not path.is_file():
        reasons.append("the engine file is missing")
    elif path.stat().st_size != manifest.engine_bytes:
        reasons.append(f"the engine file has {path.stat().st_size} bytes, expected {manifest.engine_bytes}")
    if key.architecture != host.architecture:
        reasons.append(f"it is for {key.architecture}, this GPU is {host.architecture or 'not there'}")
    if key.tensorrt != host.tensorrt:
        reasons.append(f"it is for TensorRT {key.tensorrt}, here is {host.tensorrt or 'none'}")
    return reasons + manifest.certificate.failures()


def find_engine(
    directory: Path, model_dir: Path, graph: str, precision: str, sources: Mapping[str, str], host: GpuHost
) -> EngineManifest:
    """Return the engine of a checkpoint's graph that fits a machine.

    Args:
        model_dir: of the checkpoint, for the command that is named.
        sources: SHA-256 of the checkpoint's files that the graph comes from, by name.

    Raises:
        EngineUnfitError: there is none; it says what is wrong with those that are there, and names the command.
    """
    found = [m for m in read_manifests(directory) if (m.key.graph, m.key.precision) == (graph, precision)]
    problems = []
    for manifest in found:
        reasons = misfits(manifest, directory, host)
        if manifest.sources != sources:
            changed = sorted(name for name, digest in sources.items() if manifest.sources.get(name) != digest)
            reasons.append(f"it was built from another {' and '.join(changed) or 'checkpoint'}")
        if not reasons:
            return manifest
        problems.append(f"  {manifest.key.stem}: {'; '.join(reasons)}")
    listed = "\n".join(problems) or f"  there is no engine of {graph} in {precision}"
    raise EngineUnfitError(
        f"no engine in {directory} can be used:\n{listed}\nrun: {build_command(model_dir, directory, graph, precision)}"
    )


def build_command(model_dir: Path, directory: Path, graph: str, precision: str) -> str:
    """Return the command that makes an engine of a checkpoint's graph."""
    option = "--vocoder-precision" if graph == VOCODER else "--precision"
    return f"cosydit build-engines {model_dir} --engines-dir {directory} --only {graph} {option} {precision}"


def read_manifests(directory: Path) -> Iterator[EngineManifest]:
    """Return every manifest in a directory, by name.

    Raises:
        EngineUnfitError: one can't be read.
    """
    for path in sorted(directory.glob("*" + MANIFEST_SUFFIX)):
        yield read_manifest(path)


def read_manifest(path: Path) -> EngineManifest:
    """Read one manifest.

    Raises:
        EngineUnfitError: it can't be read.
    """
    try:
        return _MANIFESTS.validate_json(path.read_bytes())
    except (OSError, ValidationError) as err:
        raise EngineUnfitError(
            f"can't read the engine manifest {path}; remove it and its engine, then run `cosydit build-engines`\n{err}"
        ) from err


def write_manifest(manifest: EngineManifest, path: Path) -> None:
    """Write a manifest at once or not at all."""
    write_whole(path, _MANIFESTS.dump_json(manifest, indent=1))


def write_whole(path: Path, data: bytes) -> None:
    """Write a file under a temporary name, then rename it."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def recipe_sha256(profiles: Sequence[EngineProfile], options: Any) -> str:
    """Return the hash of how an engine is built; `options` is a dataclass."""
    recipe = {"profiles": [dataclasses.asdict(p) for p in profiles], "options": dataclasses.asdict(options)}
    return sha256_of_json(recipe)


DISTRIBUTIONS = ("tensorrt", "tensorrt-cu13", "tensorrt-cu12", "tensorrt-cu13-bindings", "tensorrt-cu12-bindings")
"""Packages that bring the module `tensorrt`, the one that users name first."""
QUERY_TIMEOUT_S = 20.0

RunProgram = Callable[[Sequence[str]], str]
"""Returns a program's standard output; raises OSError or subprocess.SubprocessError."""


def probe_host() -> GpuHost:
    """Return what an engine built or loaded now has to fit."""
    architecture, name = probe_gpu(_run)
    return GpuHost(architecture, name, tensorrt_version())


def probe_gpu(run: RunProgram) -> tuple[str | None, str | None]:
    """Return architecture (such as sm90) and name of the first GPU that this process may use; None without one."""
    command = ["nvidia-smi", "--query-gpu=compute_cap,name", "--format=csv,noheader"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    if visible:
        command.append(f"--id={visible}")
    try:
        lines = run(command).splitlines()
    except (OSError, subprocess.SubprocessError):
        return None, None
    capability, comma, name = lines[0].partition(",") if lines else ("", "", "")
    return (architecture_name(*capability.strip().split(".")), name.strip()) if comma else (None, None)


def architecture_name(major: int | str, minor: int | str) -> str:
    """Return a compute capability as compilers name it."""
    return f"sm{major}{minor}"


def tensorrt_version() -> str | None:
    """Return the version of the installed TensorRT; None without one."""
    for name in DISTRIBUTIONS:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _run(command: Sequence[str]) -> str:
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(command[0])
    done = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_TIMEOUT_S, check=True)
    return done.stdout
