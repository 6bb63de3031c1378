"""Reads both Hugging Face forms (see `llm_service.huggingface_layout`) and writes the converted one.

Stock holds the whole vocabulary's head, the converted form the few rows of the speech head.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from llm_service.errors import CheckpointError
from llm_service.export.source import SpeechLMSource, read_tokenizer_files
from llm_service.huggingface_layout import (
    ARCHITECTURE,
    FIRST_ID_KEY,
    HEAD_BIAS,
    ROWS_KEY,
    WEIGHTS_FILE,
    generation_config,
    write_json,
)
from llm_service.qwen2 import DECODER_PREFIX, EMBEDDING, qwen2_config, read_shape
from llm_service.speech_head import HEAD_WEIGHT, TensorFiles, decoder_of, read_speech_head, read_vocabulary
from servicekit.files import usual_mode


def read_huggingface(model_dir: Path) -> SpeechLMSource:
    """Read a Hugging Face directory.

    Raises:
        CheckpointError: it is incomplete or damaged, or numbers its tokens otherwise.
    """
    shape = read_shape(model_dir / "config.json")
    vocabulary = read_vocabulary(model_dir)
    tokenizer_files = read_tokenizer_files(model_dir)
    decoder = decoder_of(TensorFiles(model_dir), shape, model_dir)
    embedding = decoder.pop(EMBEDDING.removeprefix(DECODER_PREFIX))
    head = read_speech_head(model_dir)
    if head.weight.shape[1] != shape.hidden:
        raise CheckpointError(
            f"{model_dir}: the head takes {head.weight.shape[1]} channels, the model has {shape.hidden}"
        )
    return SpeechLMSource(shape, decoder, embedding, head, tokenizer_files, vocabulary)


def write_huggingface(source: SpeechLMSource, directory: Path, dtype: str) -> None:
    """Write the converted form into an empty directory.

    Args:
        source: what to write.
        directory: exists and is empty.
        dtype: float32, float16 or bfloat16, of all tensors.
    """
    with usual_mode(directory / WEIGHTS_FILE) as path:
        save_file(_tensors(source, getattr(torch, dtype)), path, metadata={"format": "pt"})
    write_json(directory / "config.json", _config(source, dtype))
    write_json(directory / "generation_config.json", generation_config(source.vocabulary))
    for name, text in source.tokenizer_files.items():
        (directory / name).write_text(text, encoding="utf-8")


def _tensors(source: SpeechLMSource, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    tensors = {f"model.{name}": tensor for name, tensor in source.decoder.items()}
    tensors["model.embed_tokens.weight"] = source.embedding
    tensors[HEAD_WEIGHT], tensors[HEAD_BIAS] = source.head.weight, source.head.bias
    return {name: tensor.to(dtype).contiguous() for name, tensor in tensors.items()}


def _config(source: SpeechLMSource, dtype: str) -> dict[str, Any]:
    vocabulary = source.vocabulary
    return qwen2_config(source.shape, vocabulary, dtype) | {
        "architectures": [ARCHITECTURE],
        FIRST_ID_KEY: vocabulary.first_id,
        ROWS_KEY: vocabulary.head_rows,
    }
