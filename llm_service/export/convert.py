"""The three conversions, each done only where it is not done already.

    llm.pt or Hugging Face form -> converted Hugging Face form      vLLM, trtllm-serve (PyTorch), Transformers, embedded
    either                      -> TensorRT-LLM checkpoint          trtllm-build
    TensorRT-LLM checkpoint     -> engine                           trtllm-serve --backend tensorrt

Imports nothing heavy by itself: finding that there is nothing to do must be quick.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llm_service.errors import CheckpointError, LLMConfigError
from llm_service.export.manifest import Recipe, is_up_to_date, new_directory
from llm_service.export.trtllm_build import BuildLimits, build_command, build_engine
from servicekit.checkpoint_file import CheckpointDeclaration, CheckpointFileError, find_declaration, write_declaration

if TYPE_CHECKING:
    from llm_service.export.source import SpeechLMSource

DTYPES = ("float16", "bfloat16", "float32")
LLM_PT = "llm.pt"
QWEN_DIR = "CosyVoice-BlankEN"  # beside llm.pt in the official checkpoint


@dataclass(frozen=True)
class Origin:
    """Where the model comes from."""

    path: Path  # llm.pt, a directory that holds it, or a Hugging Face directory
    qwen_dir: Path | None = None  # Qwen2's config.json and tokenizer, for llm.pt


def convert_huggingface(origin: Origin, directory: Path, dtype: str) -> bool:
    """Write the converted Hugging Face form; return False if it is there already.

    Raises:
        LLMConfigError: the dtype is unknown.
        CheckpointError: the source is damaged or numbered otherwise, or `directory` holds something else.
    """
    _check_dtype(dtype)
    recipe = Recipe("huggingface", source_files(origin.path, origin.qwen_dir), {"dtype": dtype})
    if is_up_to_date(directory, recipe):
        return False
    from llm_service.export.huggingface import write_huggingface

    source = read_source(origin.path, origin.qwen_dir)
    with new_directory(directory, recipe) as partial:
        write_huggingface(source, partial, dtype)
        write_declaration(partial, _declared(origin))
    return True


def _declared(origin: Origin) -> CheckpointDeclaration:
    """Return what the checkpoint declares that the model belongs to."""
    try:
        return find_declaration(origin.path if origin.path.is_dir() else origin.path.parent)
    except CheckpointFileError as error:
        raise CheckpointError(str(error)) from error


def convert_trtllm(origin: Origin, directory: Path, dtype: str) -> bool:
    """Write a TensorRT-LLM checkpoint for one GPU; return False if it is there already.

    Raises:
        LLMConfigError: the dtype is unknown.
        CheckpointError: the source is damaged or numbered otherwise, or `directory` holds something else.
    """
    _check_dtype(dtype)
    recipe = Recipe("trtllm_checkpoint", source_files(origin.path, origin.qwen_dir), {"dtype": dtype})
    if is_up_to_date(directory, recipe):
        return False
    from llm_service.export.trtllm import write_checkpoint

    source = read_source(origin.path, origin.qwen_dir)
    with new_directory(directory, recipe) as partial:
        write_checkpoint(source, partial, dtype)
    return True


def _check_dtype(dtype: str) -> None:
    if dtype not in DTYPES:
        raise LLMConfigError(f"dtype is {dtype!r}, expected one of {', '.join(DTYPES)}")


def build_trtllm(checkpoint_dir: Path, directory: Path, limits: BuildLimits) -> bool:
    """Build the engine; return False if it is there already, built here by this version of TensorRT-LLM.

    Raises:
        BackendUnavailableError: trtllm-build is not installed.
        CheckpointError: `checkpoint_dir` is no checkpoint, or `directory` holds something else.
        BuildError: the build failed.
    """
    command = build_command(checkpoint_dir, Path("ENGINE"), limits)
    options = {"command": command[1:], "gpus": _gpus(), "tensorrt_llm": _version("tensorrt_llm")}
    files = [checkpoint_dir / "config.json", *sorted(checkpoint_dir.glob("rank*.safetensors"))]
    recipe = Recipe("trtllm_engine", files, options)
    if is_up_to_date(directory, recipe):
        return False
    log_path = directory.with_name(f"{directory.name}.build.log")
    with new_directory(directory, recipe) as partial:
        build_engine(checkpoint_dir, partial, limits, log_path)
    return True


def _gpus() -> list[str]:
    """Name the GPUs: an engine runs only on the kind that built it."""
    command = ["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return sorted(set(output.strip().splitlines()))


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


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
    return [path for path in names if path.name != "manifest.json"]
