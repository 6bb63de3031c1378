"""Describes an engine file: its key, its certificates, and whether it fits a machine. No TensorRT, no torch.

Beside every `NAME.engine` lies `NAME.json`, the manifest. The name is made of the key, so that engines for different
GPUs, libraries, precisions or sizes can share a directory. `probe_host` looks at this machine's GPU and libraries
without loading one, so it is quick and works where they are broken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from servicekit.extras import install_command, installed_version
from servicekit.files import write_bytes
from servicekit.gpu_host import read_gpus
from token2wav_service.errors import EngineUnfitError
from token2wav_service.graphs import VOCODER

ENGINE_SUFFIX = ".engine"
MANIFEST_SUFFIX = ".json"
ENGINES_FOLDER = "engines"
"""Folder of the engines in a checkpoint's token2wav folder, unless another is named."""
_NAME_DIGITS = 12
"""Digits of a hash in a file's name; the manifest holds all."""
TENSORRT, TENSORRT_RTX = "tensorrt", "tensorrt_rtx"
"""Names of the two libraries that build and run engines: TensorRT, and its sibling TensorRT for RTX."""
RTX_ARCHITECTURES = ("sm75", "sm80", "sm86", "sm89", "sm120", "sm121")
"""GPUs that TensorRT for RTX has engines for; Hopper (sm90) is none of them."""


@dataclass(frozen=True)
class EngineKey:
    """Everything that makes one engine another."""

    graph: str
    precision: str
    """Type of the products: float32 or float16."""
    architecture: str
    """Architecture of the GPU, such as sm89."""
    library: str
    """Name and full version of the library, such as `tensorrt_rtx 1.7.1.116`."""
    graph_sha256: str
    """Hash of all that the graph was made from, its sizes included."""

    @property
    def stem(self) -> str:
        """The file's name without suffix."""
        name, _, version = self.library.partition(" ")
        parts = (self.graph, self.precision, self.architecture, f"{name}-{version}")
        return ".".join((*parts, self.graph_sha256[:_NAME_DIGITS]))


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
    """The error of a graph against the float32 modules, measured where it runs."""

    min_snr_db: float
    """The least agreement that every output must reach."""
    cases: tuple[CertifiedCase, ...] = ()
    """None where the engine was built for a GPU of another machine."""

    @property
    def errors(self) -> list[tuple[CertifiedCase, OutputError]]:
        """Every output at every set of sizes."""
        return [(case, error) for case in self.cases for error in case.outputs]

    @property
    def worst_db(self) -> float:
        """The least agreement that was measured."""
        return min(error.snr_db for _, error in self.errors)

    def failures(self) -> list[str]:
        """Say which outputs are out of tolerance, or that nothing was measured."""
        if not self.errors:
            return ["its numerics were not measured: run `cosydit build-engines` on this machine"]
        return [
            f"{error.output} has {error.snr_db:.1f} dB at {dict(case.sizes)}, expected {self.min_snr_db:g} or more"
            for case, error in self.errors
            if not error.snr_db >= self.min_snr_db
        ]


@dataclass(frozen=True)
class Speed:
    """Median times of the same chunks, with all engines of a checkpoint and without, on one GPU."""

    gpu_name: str
    tensorrt_ms: float
    slots_ms: float

    @property
    def is_faster(self) -> bool:
        """True where the engines took less time."""
        return self.tensorrt_ms < self.slots_ms

    def __str__(self) -> str:
        return f"{self.tensorrt_ms:.1f} ms with engines, {self.slots_ms:.1f} ms with the fused kernels"


@dataclass(frozen=True)
class EngineManifest:
    """What lies beside an engine."""

    key: EngineKey
    gpu_name: str | None
    """The GPU on which it was built; None if it was built ahead, for a GPU of another machine."""
    sources: Mapping[str, str]
    """SHA-256 of the checkpoint's files that the graph was exported from, by name."""
    engine_bytes: int
    certificate: EngineCertificate
    speed: Speed | None = None
    """None until it was measured; without it, `runner=auto` leaves the engine alone."""

    def engine_path(self, directory: Path) -> Path:
        """Return where the engine lies."""
        return directory / (self.key.stem + ENGINE_SUFFIX)

    def write(self, directory: Path) -> None:
        """Write the manifest at once or not at all."""
        write_bytes(directory / (self.key.stem + MANIFEST_SUFFIX), _MANIFESTS.dump_json(self, indent=1))


_MANIFESTS = TypeAdapter(EngineManifest)


@dataclass(frozen=True)
class GpuHost:
    """What an engine has to fit."""

    architecture: str | None
    """Architecture of the GPU; None without a GPU."""
    gpu_name: str | None
    libraries: tuple[str, ...]
    """Name and version of each library that is installed."""

    def library(self, architecture: str, name: str | None = None) -> str:
        """Return the installed library that has engines for an architecture.

        Args:
            name: take this one only.

        Raises:
            EngineUnfitError: there is none; it says what to install.
        """
        usable = (TENSORRT, TENSORRT_RTX) if architecture in RTX_ARCHITECTURES else (TENSORRT,)
        for library in self.libraries:
            kind = library.partition(" ")[0]
            if kind in usable and name in (None, kind):
                return library
        found = f"found {', '.join(self.libraries) or 'neither'}"
        if architecture not in RTX_ARCHITECTURES and (name or self.libraries):
            raise EngineUnfitError(
                f"TensorRT for RTX has engines for {' '.join(RTX_ARCHITECTURES)}, not for {architecture} (sm90 is "
                f"Hopper's), which takes TensorRT; {found}: {install_command(TENSORRT)}"
            )
        wanted = name or f"{TENSORRT} or {TENSORRT_RTX}"
        raise EngineUnfitError(
            f"expected the library {wanted}, {found}: {install_command((name or TENSORRT).replace('_', '-'))}"
        )


def misfits(manifest: EngineManifest, directory: Path, host: GpuHost) -> list[str]:
    """Say why an engine can't be used on a machine; empty if it can."""
    key = manifest.key
    reasons = damages(manifest, directory)
    if key.architecture != host.architecture:
        reasons.append(f"it is for {key.architecture}, this GPU is {host.architecture or 'not there'}")
    if key.library not in host.libraries:
        reasons.append(f"it is for {key.library}, here is {', '.join(host.libraries) or 'none'}")
    return reasons + manifest.certificate.failures()


def damages(manifest: EngineManifest, directory: Path) -> list[str]:
    """Say what is wrong with an engine's file; empty if it is whole."""
    path = manifest.engine_path(directory)
    if not path.is_file():
        return ["the engine file is missing"]
    size = path.stat().st_size
    return (
        [] if size == manifest.engine_bytes else [f"the engine file has {size} bytes, expected {manifest.engine_bytes}"]
    )


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
    option = "--vocoder-precision" if graph == VOCODER else "--precision"
    command = f"cosydit build-engines {model_dir} --engines-dir {directory} --only {graph} {option} {precision}"
    raise EngineUnfitError(f"no engine in {directory} can be used:\n{listed}\nrun: {command}")


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


DISTRIBUTIONS = {
    TENSORRT: ("tensorrt", "tensorrt-cu13", "tensorrt-cu12", "tensorrt-cu13-bindings", "tensorrt-cu12-bindings"),
    TENSORRT_RTX: ("tensorrt-rtx-cu13-bindings", "tensorrt-rtx-cu12-bindings"),
}
"""Packages that bring each library's module, the one that users name first."""


def probe_host() -> GpuHost:
    """Return what an engine built or loaded now has to fit: the first GPU that this process may use."""
    gpu = next(iter(read_gpus()), None)
    architecture = None if gpu is None else architecture_name(*gpu.capability)
    return GpuHost(architecture, None if gpu is None else gpu.name, installed_libraries())


def architecture_name(major: int, minor: int) -> str:
    """Return a compute capability as compilers name it."""
    return f"sm{major}{minor}"


def installed_libraries() -> tuple[str, ...]:
    """Return name and version of each library that is installed, TensorRT first."""
    found = {library: [*filter(None, map(installed_version, names))] for library, names in DISTRIBUTIONS.items()}
    return tuple(f"{library} {versions[0]}" for library, versions in found.items() if versions)
