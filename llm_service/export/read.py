"""Finds out which form a checkpoint has, and reads it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from llm_service.errors import CheckpointError

if TYPE_CHECKING:
    from llm_service.export.source import SpeechLMSource

LLM_PT = "llm.pt"
QWEN_DIR = "CosyVoice-BlankEN"  # beside llm.pt in the official checkpoint


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


def shape_file(path: Path, qwen_dir: Path | None) -> Path:
    """Return the config.json that says the model's sizes; arguments as of `source_files`.

    Raises:
        CheckpointError: llm.pt has no Qwen2 directory beside it.
    """
    llm_pt = _llm_pt(path)
    return (path if llm_pt is None else _qwen_dir(llm_pt, qwen_dir)) / "config.json"


def read_source(path: Path, qwen_dir: Path | None) -> SpeechLMSource:
    """Read a model in either form; arguments as of `source_files`.

    Raises:
        CheckpointError: something is missing, damaged or numbered otherwise; the message says what.
    """
    # Heavy: importing these takes longer than finding out that there is nothing to do.
    from llm_service.export.huggingface import read_huggingface
    from llm_service.export.official_source import read_official
    from llm_service.export.source import check_special_rows

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
