"""The speech head of a Hugging Face directory, whichever way it is stored.

Three ways are known: a file of its own (what `make_random_llm` writes), the few rows of the converted form (see
`llm_service.speech_form`), and the whole vocabulary's rows, of which the speech ones are taken. Knows nothing of the
rest of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from llm_service.config import SPEECH_HEAD_FILE
from llm_service.errors import CheckpointError
from llm_service.tensor_files import TensorFiles
from llm_service.vocab import PADDED_VOCABULARY_SIZE, SPEECH_HEAD_ROWS, SPEECH_TOKEN_OFFSET

HEAD_WEIGHT = "lm_head.weight"
HEAD_BIAS = "lm_head.bias"
SPEECH_ROWS = slice(SPEECH_TOKEN_OFFSET, SPEECH_TOKEN_OFFSET + SPEECH_HEAD_ROWS)


@dataclass(frozen=True)
class SpeechHead:
    """Row i belongs to LLM id 151663 + i: speech tokens, then the end tokens."""

    weight: torch.Tensor  # [6564, hidden]
    bias: torch.Tensor  # [6564]
    has_bias: bool  # False: the directory stores none, and `bias` is zero


def read_speech_head(model_dir: Path) -> SpeechHead:
    """Read the head of a model directory.

    Raises:
        CheckpointError: there is none, or it is of another shape.
    """
    path = model_dir / SPEECH_HEAD_FILE
    if path.is_file():
        return _checked(load_file(path), path)
    return head_of(TensorFiles(model_dir), model_dir)


def head_of(tensors: Mapping[str, torch.Tensor], where: Path) -> SpeechHead:
    """Take the head from a model's tensors, by their Hugging Face names.

    Raises:
        CheckpointError: there is none, or it is of another shape.
    """
    if HEAD_WEIGHT not in tensors:
        raise CheckpointError(f"{where} has no {HEAD_WEIGHT}; the speech head can't be tied to the embedding")
    parts = {"weight": tensors[HEAD_WEIGHT]}
    if HEAD_BIAS in tensors:
        parts["bias"] = tensors[HEAD_BIAS]
    rows = parts["weight"].shape[0]
    if rows != SPEECH_HEAD_ROWS:
        if rows < SPEECH_ROWS.stop:
            expected = f"{SPEECH_HEAD_ROWS} or {PADDED_VOCABULARY_SIZE}"
            raise CheckpointError(f"{where}: lm_head has {rows} rows, expected {expected}")
        parts = {name: tensor[SPEECH_ROWS].clone() for name, tensor in parts.items()}
    return _checked(parts, where)


def _checked(parts: Mapping[str, torch.Tensor], where: Path) -> SpeechHead:
    if "weight" not in parts or parts["weight"].ndim != 2:
        raise CheckpointError(f"{where} holds {sorted(parts)}, expected weight [{SPEECH_HEAD_ROWS}, hidden] and bias")
    bias = parts.get("bias", torch.zeros(SPEECH_HEAD_ROWS))
    found = {"weight": tuple(parts["weight"].shape), "bias": tuple(bias.shape)}
    expected = {"weight": (SPEECH_HEAD_ROWS, parts["weight"].shape[1]), "bias": (SPEECH_HEAD_ROWS,)}
    if found != expected:
        raise CheckpointError(f"{where} holds {found}, expected {expected}")
    return SpeechHead(parts["weight"], bias, "bias" in parts)
