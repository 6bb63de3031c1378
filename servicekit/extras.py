"""Returns the command that installs a missing optional part of the package, for any source of the package.

The package is on no public index under our name: a hint names the repository, or a wheel in the working directory.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "cosydit"
_ROOT = Path(__file__).resolve().parents[1]
_EXTRA_OF = {
    **dict.fromkeys(("torch", "onnxruntime", "scipy", "soundfile", "yaml", "pytriton"), "demo"),
    "safetensors": "llm-embedded",
    "av": "audio",
    "wetext": "text",
    "onnx": "checkpoint",
    "transformers": "checkpoint",
    "onnxscript": "export",
    "matplotlib": "bench",
    "datasets": "datasets",
    "pyarrow": "datasets",
    "huggingface_hub": "download",
    "modelscope": "download",
    "opentelemetry": "tracing",
    "pocketsphinx": "ears",
    "tensorrt": "tensorrt",
    "tensorrt_rtx_bindings": "tensorrt-rtx",
}


@dataclass(frozen=True)
class Source:
    """What this package was installed from."""

    requirement: str
    """Requirement for pip, without extras: a folder or a wheel file."""
    is_repository: bool


def installed_from() -> Source:
    """Return what the package was installed from: the repository that it runs from, else a wheel."""
    if (_ROOT / "pyproject.toml").is_file():
        return Source(str(_ROOT), is_repository=True)
    version = installed_version(PACKAGE) or "VERSION"
    return Source(f"./{PACKAGE}-{version}-py3-none-any.whl", is_repository=False)


def install_command(extra: str) -> str:
    """Return the command that adds an extra to this installation."""
    source = installed_from()
    editable = "-e " if source.is_repository else ""
    return f"{sys.executable} -m pip install {editable}'{source.requirement}[{extra}]'"


def own_command(arguments: str) -> str:
    """Return how this installation's `cosydit` is called from here, with arguments.

    The program beside this Python: relative to the working directory if it lies below it, as `.venv/bin/cosydit` does.
    """
    program = Path(sys.prefix) / "bin" / PACKAGE
    if not program.is_file():
        return f"{PACKAGE} {arguments}"
    here = Path.cwd()
    return f"{program.relative_to(here) if program.is_relative_to(here) else program} {arguments}"


def missing_extra(error: ImportError) -> str | None:
    """Return what to do about a module that could not be imported; None if no extra brings it."""
    name = (error.name or "").partition(".")[0]
    extra = _EXTRA_OF.get(name)
    return None if extra is None else f"{name} is not installed; it comes with: {install_command(extra)}"


def installed_version(distribution: str) -> str | None:
    """Return the version of a package; None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def require_modules(names: Iterable[str], extra: str) -> None:
    """Refuse to go on without some modules; imports none of them.

    Raises:
        ModuleNotFoundError: some are missing; the message says which and how to install them.
    """
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(f"{', '.join(missing)} not installed; install with: {install_command(extra)}")
