"""Converts llm.pt or a Hugging Face form into the form that vLLM, trtllm-serve and the embedded server serve.

Done only where it is not done already, into a directory that appears whole or not at all; its `manifest.json` names the
sources, the options and the files written. Imports nothing heavy by itself: finding that there is nothing to do must be
quick.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_service.errors import CheckpointError
from servicekit.checkpoint_file import find_declaration, write_declaration
from servicekit.files import takes_lock

if TYPE_CHECKING:
    from llm_service.export.source import SpeechLMSource

DTYPES = ("float16", "bfloat16", "float32")
LLM_PT = "llm.pt"
QWEN_DIR = "CosyVoice-BlankEN"  # beside llm.pt in the official checkpoint
MANIFEST = "manifest.json"
FORMAT = 2
"""Raised when the same source and options would give other files."""

Recipe = dict[str, Any]
"""What a directory is made of, as JSON: equal recipes give equal directories."""


def convert(path: Path, directory: Path, dtype: str, qwen_dir: Path | None = None) -> bool:
    """Write a model in the form that engines serve; return False if it is there already.

    Args:
        path: see `source_files`.
        directory: for the result.
        dtype: of all tensors, one of `DTYPES`.
        qwen_dir: see `source_files`.

    Raises:
        CheckpointError: the source is damaged or numbered otherwise, or `directory` holds something else.
    """
    recipe = recipe_of(source_files(path, qwen_dir), dtype)
    if is_up_to_date(directory, recipe):
        return False
    source = read_source(path, qwen_dir)
    with new_directory(directory, recipe) as partial:
        from llm_service.export.huggingface import write_huggingface

        write_huggingface(source, partial, dtype)
        write_declaration(partial, find_declaration(path if path.is_dir() else path.parent))
    return True


def source_files(path: Path, qwen_dir: Path | None) -> list[Path]:
    """Return the files that a conversion of `path` reads; a cheap look, nothing is opened.

    Args:
        path: llm.pt, a directory that holds it, or a Hugging Face directory (stock or converted form).
        qwen_dir: Qwen2's config.json and tokenizer, for llm.pt; by default CosyVoice-BlankEN beside it.

    Raises:
        CheckpointError: `path` is none of these.
    """
    llm_pt = _llm_pt(path)
    if llm_pt is not None:
        return [llm_pt, *_small_files(_qwen_dir(llm_pt, qwen_dir))]
    if not (path / "config.json").is_file():
        raise CheckpointError(f"{path} has neither {LLM_PT} nor config.json; give the official or Hugging Face form")
    return _small_files(path) + sorted(path.glob("*.safetensors"))


def read_source(path: Path, qwen_dir: Path | None) -> SpeechLMSource:
    """Read a model in either form; arguments as of `source_files`.

    Raises:
        CheckpointError: something is missing, damaged or numbered otherwise; the message says what.
    """
    # Heavy: importing these takes longer than finding out that there is nothing to do.
    from llm_service.export.huggingface import read_huggingface
    from llm_service.export.source import check_special_rows, read_official

    llm_pt = _llm_pt(path)
    if llm_pt is not None:
        source = read_official(llm_pt, _qwen_dir(llm_pt, qwen_dir))
    else:
        source = read_huggingface(path)
    check_special_rows(source.embedding, path, source.vocabulary)
    return source


def _llm_pt(path: Path) -> Path | None:
    if path.is_file():
        return path
    inside = path / LLM_PT
    return inside if inside.is_file() else None


def _qwen_dir(llm_pt: Path, given: Path | None) -> Path:
    directory = given or llm_pt.parent / QWEN_DIR
    if not directory.is_dir():
        raise CheckpointError(f"{directory} is missing; give Qwen2's config.json and tokenizer with --qwen-dir")
    return directory


def _small_files(directory: Path) -> list[Path]:
    """Return configuration and tokenizer; not the record of an earlier conversion, which changes nothing here."""
    names = sorted(path for pattern in ("*.json", "*.txt", "*.jinja") for path in directory.glob(pattern))
    return [path for path in names if path.name != MANIFEST]


def recipe_of(sources: Sequence[Path], dtype: str) -> Recipe:
    """Return what a directory is made of: of files, by their names, sizes and times, in one type."""
    statuses = [(path.name, path.stat()) for path in sources]
    files = [{"name": name, "size": each.st_size, "mtime_ns": each.st_mtime_ns} for name, each in statuses]
    return {"format": FORMAT, "kind": "huggingface", "options": {"dtype": dtype}, "sources": files}


def is_up_to_date(directory: Path, recipe: Recipe) -> bool:
    """Tell whether `directory` holds what this recipe gives, of sources of the same names, sizes and times."""
    recorded = _recorded(directory)
    if recorded is None or recorded != recipe | {"files": recorded["files"]}:
        return False
    written = [(directory / name, size) for name, size in recorded["files"].items()]
    return all(path.is_file() and path.stat().st_size == size for path, size in written)


@contextmanager
def new_directory(directory: Path, recipe: Recipe) -> Iterator[Path]:
    """Yield an empty directory to write into; on leaving it becomes `directory`, with its manifest.

    An exception leaves `directory` as it was; a lock keeps two converters apart, and the next removes what a killed one
    left behind.

    Raises:
        CheckpointError: `directory` holds something that no converter made, or another converter is at work on it.
    """
    if directory.exists() and any(directory.iterdir()) and _recorded(directory) is None:
        raise CheckpointError(f"{directory} is not empty and has no {MANIFEST}; give another directory")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _locked(directory):
        partial, old = directory.with_name(f".{directory.name}.partial"), directory.with_name(f".{directory.name}.old")
        for leftover in (partial, old):
            shutil.rmtree(leftover, ignore_errors=True)
        partial.mkdir()
        try:
            yield partial
            _write_manifest(partial, recipe)
            if directory.exists():
                directory.rename(old)
            partial.rename(directory)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    path = directory.with_name(f".{directory.name}.lock")
    with path.open("w") as file:
        if not takes_lock(file.fileno()):
            raise CheckpointError(f"another converter is writing {directory}; wait for it (lock {path})")
        yield


def _write_manifest(directory: Path, recipe: Recipe) -> None:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    sizes = {str(path.relative_to(directory)): path.stat().st_size for path in files}
    manifest = json.dumps(recipe | {"files": sizes}, indent=2)
    (directory / MANIFEST).write_text(manifest + "\n", encoding="utf-8")


def _recorded(directory: Path) -> dict[str, Any] | None:
    try:
        recorded = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return recorded if isinstance(recorded, dict) and {"sources", "files"} <= recorded.keys() else None
