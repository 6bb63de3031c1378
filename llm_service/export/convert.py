"""The three conversions, each done only where it is not done already.

    llm.pt or Hugging Face form -> converted Hugging Face form      vLLM, trtllm-serve (PyTorch), Transformers, embedded
    either                      -> TensorRT-LLM checkpoint          trtllm-build
    TensorRT-LLM checkpoint     -> engine                           trtllm-serve --backend tensorrt

Imports nothing heavy by itself: finding that there is nothing to do must be quick.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import logging
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_service.errors import CheckpointError, ConfigError
from llm_service.export.manifest import Recipe, is_up_to_date, new_directory
from llm_service.export.read import read_source, shape_file, source_files
from llm_service.export.trtllm_build import EngineLimits, build_command, build_engine
from llm_service.export.trtllm_options import DTYPES, TrtllmOptions, check_options
from llm_service.qwen2 import read_shape
from servicekit.checkpoint_file import CheckpointDeclaration, CheckpointFileError, find_declaration, write_declaration

if TYPE_CHECKING:
    from llm_service.export.smooth_quant import LayerRanges
    from llm_service.export.source import SpeechLMSource

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Origin:
    """Where the model comes from."""

    path: Path  # llm.pt, a directory that holds it, or a Hugging Face directory
    qwen_dir: Path | None = None  # Qwen2's config.json and tokenizer, for llm.pt


@dataclass(frozen=True)
class Calibration:
    """What SmoothQuant measures activations with."""

    texts: Sequence[str]
    max_tokens: int = 100  # speech tokens for each text, at most
    seed: int = 0
    device: str = "cpu"


def convert_huggingface(origin: Origin, directory: Path, dtype: str) -> bool:
    """Write the converted Hugging Face form; return False if it is there already.

    Raises:
        ConfigError: the dtype is unknown.
        CheckpointError: the source is damaged or numbered otherwise, or `directory` holds something else.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"dtype is {dtype!r}, expected one of {', '.join(DTYPES)}")
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


def convert_trtllm(
    origin: Origin, directory: Path, options: TrtllmOptions, workers: int, calibration: Calibration | None
) -> bool:
    """Write a TensorRT-LLM checkpoint; return False if it is there already.

    Args:
        origin: the model.
        directory: made if missing.
        options: how it is cut and quantised.
        workers: rank files made at the same time; changes nothing in them.
        calibration: needed with SmoothQuant, unused without.

    Raises:
        ConfigError: TensorRT-LLM can't build this combination, or the calibration is missing.
        CheckpointError: the source is damaged or numbered otherwise, or `directory` holds something else.
    """
    check_options(options, read_shape(shape_file(origin.path, origin.qwen_dir)))
    if workers < 1:
        raise ConfigError(f"workers is {workers}, expected 1 or more")
    if options.smooth_quant is not None and calibration is None:
        raise ConfigError("SmoothQuant needs texts to measure activations with")
    recipe = Recipe("trtllm_checkpoint", source_files(origin.path, origin.qwen_dir), _described(options, calibration))
    if is_up_to_date(directory, recipe):
        return False
    from llm_service.export.trtllm_checkpoint import write_checkpoint

    source = read_source(origin.path, origin.qwen_dir)
    ranges = _ranges(source, options, calibration)
    with new_directory(directory, recipe) as partial:
        write_checkpoint(source, partial, options, workers, ranges)
    return True


def build_trtllm(checkpoint_dir: Path, directory: Path, limits: EngineLimits) -> bool:
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


def _described(options: TrtllmOptions, calibration: Calibration | None) -> dict[str, Any]:
    described = dataclasses.asdict(options)
    if options.smooth_quant is not None and calibration is not None:
        texts = hashlib.sha256("\n".join(calibration.texts).encode()).hexdigest()
        described["calibration"] = {
            "texts_sha256": texts,
            "max_tokens": calibration.max_tokens,
            "seed": calibration.seed,
        }
    return described


def _ranges(
    source: SpeechLMSource, options: TrtllmOptions, calibration: Calibration | None
) -> Sequence[LayerRanges] | None:
    if options.smooth_quant is None or calibration is None:
        return None
    from llm_service.export.calibration import measure_ranges, prompts_of

    prompts = prompts_of(source, calibration.texts)
    return measure_ranges(source, prompts, calibration.max_tokens, calibration.seed, calibration.device)


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
