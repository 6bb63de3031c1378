"""Writes the converted form (see `llm_service.speech_form`): small biased head, whole embedding, tokenizer, model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from llm_service.adapters import TRANSFORMERS_AUTO_MAP, TRANSFORMERS_MODEL_FILE
from llm_service.export.source import SpeechLMSource
from llm_service.huggingface_layout import WEIGHTS_FILE, generation_config, write_json
from llm_service.qwen2 import qwen2_config
from llm_service.speech_form import ARCHITECTURE, FIRST_ID_KEY, ROWS_KEY
from llm_service.speech_head import HEAD_BIAS, HEAD_WEIGHT
from llm_service.vocab import END_IDS, SOS_ID, SPEECH_HEAD_ROWS, SPEECH_TOKEN_OFFSET
from servicekit.file_modes import usual_mode


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
    write_json(directory / "generation_config.json", generation_config())
    for name, text in source.tokenizer_files.items():
        (directory / name).write_text(text, encoding="utf-8")
    shutil.copyfile(TRANSFORMERS_MODEL_FILE, directory / TRANSFORMERS_MODEL_FILE.name)


def _tensors(source: SpeechLMSource, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    tensors = {f"model.{name}": tensor for name, tensor in source.decoder.items()}
    tensors["model.embed_tokens.weight"] = source.embedding
    tensors[HEAD_WEIGHT], tensors[HEAD_BIAS] = source.head.weight, source.head.bias
    return {name: tensor.to(dtype).contiguous() for name, tensor in tensors.items()}


def _config(source: SpeechLMSource, dtype: str) -> dict[str, Any]:
    return qwen2_config(source.shape) | {
        "architectures": [ARCHITECTURE],
        "auto_map": TRANSFORMERS_AUTO_MAP,
        FIRST_ID_KEY: SPEECH_TOKEN_OFFSET,
        ROWS_KEY: SPEECH_HEAD_ROWS,
        "tie_word_embeddings": False,
        "bos_token_id": SOS_ID,
        "eos_token_id": END_IDS[0],
        "torch_dtype": dtype,
    }
