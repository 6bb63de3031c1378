"""Finds a tritonserver on this machine, lays out what its python backend needs, and writes its command line.

Two kinds are known: the binary inside the `nvidia-pytriton` wheel (runs anywhere, GPU or not) and a complete
installation such as the NGC image (`tritonserver` on PATH). Knows nothing of our models.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from servicekit.extras import install_command
from servicekit.logs import PlainError

DEFAULT_HTTP_PORT = 18000
DEFAULT_GRPC_PORT = 8001
DEFAULT_METRICS_PORT = 8002

MIB = 1024 * 1024
SHM_REGION_BYTES = MIB
"""First size of a model process's shared memory, and its growth step: the least the python backend takes."""
DEFAULT_DRAIN_TIMEOUT_S = 20.0
"""Seconds for open streams before the server is told to stop."""
DEFAULT_EXIT_TIMEOUT_S = 10
_STUB_TIMEOUT_S = 120
_KEEPALIVE_TIME_MS = 30_000
"""Milliseconds of silence after which a client is pinged: a vanished host must not hold a stream."""
_KEEPALIVE_TIMEOUT_MS = 10_000
SUPPORTED_PYTHONS = ("3.10", "3.11", "3.12")
STUB_NAME = "triton_python_backend_stub"
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"


class TritonNotFoundError(PlainError):
    """No usable tritonserver; the message says what to install."""


@dataclass(frozen=True)
class TritonInstallation:
    """A tritonserver that can be started."""

    binary: Path
    library_dirs: tuple[Path, ...]
    """Folders that must come first on LD_LIBRARY_PATH."""
    python_backend: Path | None
    """Folder with libtriton_python.so; None when the server finds its own backends."""
    stub: Path | None
    """The python backend's stub for this Python; None with `python_backend` None."""


@dataclass(frozen=True)
class ServerOptions:
    """Where the server finds its models and where it listens."""

    model_repository: Path
    host: str = "127.0.0.1"
    http_port: int = DEFAULT_HTTP_PORT
    grpc_port: int = DEFAULT_GRPC_PORT
    metrics_port: int = DEFAULT_METRICS_PORT
    exit_timeout_s: int = DEFAULT_EXIT_TIMEOUT_S
    """Seconds that a stopping server waits for requests under way."""
    otlp_endpoint: str | None = None
    """Base URL of an OTLP/HTTP receiver, for Triton's own spans of requests that come with a traceparent."""

    @property
    def http_address(self) -> str:
        return f"{self.host}:{self.http_port}"


def find_installation() -> TritonInstallation:
    """Return the pytriton wheel's server if it is installed, else the `tritonserver` on PATH.

    Raises:
        TritonNotFoundError: neither exists, or the wheel can't serve this Python.
    """
    root = _wheel_root()
    if root is not None:
        return _from_wheel(root)
    on_path = shutil.which("tritonserver")
    if on_path is None:
        raise TritonNotFoundError(
            f"no tritonserver found: {install_command('triton-embedded')} brings one (nvidia-pytriton), and the NGC "
            "tritonserver image has one on PATH"
        )
    return TritonInstallation(Path(on_path), (), None, None)


def lay_out_backends(installation: TritonInstallation, directory: Path) -> Path | None:
    """Fill `directory` with the python backend and the stub of our Python, as links.

    Returns:
        The folder for `--backend-directory`, or None where the server's own default is right.
    """
    if installation.python_backend is None or installation.stub is None:
        return None
    backend = directory / "backends" / "python"
    backend.mkdir(parents=True, exist_ok=True)
    for source in installation.python_backend.iterdir():
        if source.is_file():
            _link(source, backend / source.name)
    _link(installation.stub, backend / STUB_NAME)
    return backend.parent


def server_command(
    installation: TritonInstallation, options: ServerOptions, backends: Path | None, shm_prefix: str
) -> list[str]:
    """Return the argument list that starts the server in the foreground.

    Args:
        backends: folder from `lay_out_backends`, None for the server's own.
        shm_prefix: names this server's shared-memory regions, so that they can be told from others'.
    """
    command = [
        str(installation.binary),
        f"--model-repository={options.model_repository}",
        "--model-control-mode=none",
        "--exit-on-error=true",
        "--disable-auto-complete-config",
        f"--exit-timeout-secs={options.exit_timeout_s}",
        "--log-verbose=0",
        f"--http-address={options.host}",
        f"--http-port={options.http_port}",
        f"--grpc-address={options.host}",
        f"--grpc-port={options.grpc_port}",
        f"--grpc-keepalive-time={_KEEPALIVE_TIME_MS}",
        f"--grpc-keepalive-timeout={_KEEPALIVE_TIMEOUT_MS}",
        f"--metrics-address={options.host}",
        f"--metrics-port={options.metrics_port}",
        f"--allow-gpu-metrics={str(has_gpu()).lower()}",
        f"--backend-config=python,shm-region-prefix-name={shm_prefix}",
        f"--backend-config=python,shm-default-byte-size={SHM_REGION_BYTES}",
        f"--backend-config=python,shm-growth-byte-size={SHM_REGION_BYTES}",
        f"--backend-config=python,stub-timeout-seconds={_STUB_TIMEOUT_S}",
    ]
    command += _trace_options(options.otlp_endpoint)
    return command if backends is None else [*command, f"--backend-directory={backends}"]


def _trace_options(otlp_endpoint: str | None) -> list[str]:
    """Have requests traced whose callers ask for it, and no others (rate 0)."""
    if otlp_endpoint is None:
        return []
    settings = (
        "mode=opentelemetry",
        f"opentelemetry,url={otlp_endpoint.rstrip('/')}/v1/traces",
        "opentelemetry,resource=service.name=triton",
        "rate=0",
        "count=-1",
        "level=TIMESTAMPS",
    )
    return [f"--trace-config={setting}" for setting in settings]


def server_environment(installation: TritonInstallation) -> dict[str, str]:
    """Return the environment to start the server in: this interpreter first on PATH, its library findable.

    numpy's BLAS has one thread in the models' processes unless OPENBLAS_NUM_THREADS says otherwise.

    Raises:
        TritonNotFoundError: this interpreter's folder has no `python3`, so the stub would start another.
    """
    env = dict(os.environ)
    env.pop("PYTHONHOME", None)
    interpreter_dir = Path(sys.executable).parent
    if not (interpreter_dir / "python3").exists():
        raise TritonNotFoundError(
            f"{interpreter_dir} holds no `python3`, and Triton's python backend starts the first `python3` on PATH: "
            "run from a virtual environment made by `python3 -m venv`"
        )
    env["PATH"] = _prepend((interpreter_dir,), env.get("PATH", ""))
    # NOTE: the features' products gain nothing from more threads, which then spin: on two cores a voice cost six times
    # the CPU, and on a larger host every further core joins in.
    env.setdefault(_BLAS_THREADS, "1")
    if installation.library_dirs:
        env["LD_LIBRARY_PATH"] = _prepend(installation.library_dirs, env.get("LD_LIBRARY_PATH", ""))
    return env


def find_shared_libpython() -> Path:
    """Return the shared libpython of the running interpreter.

    Raises:
        TritonNotFoundError: there is none; names the package that brings it.
    """
    version = _running_python()
    name = f"libpython{version}.so.1.0"
    for folder in _library_folders():
        if (folder / name).exists():
            return folder / name
    raise TritonNotFoundError(
        f"the shared library {name} is missing, and Triton's python backend embeds it: install the Debian/Ubuntu "
        f"package libpython{version}, or use a Python built with --enable-shared"
    )


def has_gpu() -> bool:
    """Say whether the NVIDIA driver shows a device on this machine."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def _running_python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _wheel_root() -> Path | None:
    spec = importlib.util.find_spec("pytriton")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "tritonserver"


def _from_wheel(root: Path) -> TritonInstallation:
    version = _running_python()
    stub = root / "python_backend_stubs" / version / STUB_NAME
    binary = root / "bin" / "tritonserver"
    if version not in SUPPORTED_PYTHONS or not stub.exists() or not binary.exists():
        raise TritonNotFoundError(
            f"the nvidia-pytriton wheel in {root.parent} has no server for Python {version}: "
            f"use Python {' or '.join(SUPPORTED_PYTHONS)} and nvidia-pytriton 0.7.0"
        )
    libraries = root.parent.parent / "nvidia_pytriton.libs"
    return TritonInstallation(
        binary=binary,
        library_dirs=(find_shared_libpython().parent, libraries),
        python_backend=root / "backends" / "python",
        stub=stub,
    )


def _library_folders() -> Iterator[Path]:
    yield Path(sys.base_prefix) / "lib"
    libdir = sysconfig.get_config_var("LIBDIR")
    if libdir:
        yield Path(libdir)
        multiarch = sysconfig.get_config_var("MULTIARCH")
        if multiarch:
            yield Path(libdir) / multiarch


def _link(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    target.symlink_to(source.resolve())


def _prepend(folders: tuple[Path, ...], existing: str) -> str:
    return os.pathsep.join([*map(str, folders), *([existing] if existing else [])])
