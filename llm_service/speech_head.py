"""The speech head of a Hugging Face directory, whichever way it is stored, and the tensors of its safetensors files.

A head is stored in one of three ways: a file of its own (what `make_random_llm` writes), the few rows of the converted
form (see `llm_service.huggingface_layout`), or the whole vocabulary's rows, of which the speech ones are taken. Tensors
stay on disk until they are used. Knows nothing of the rest of the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from llm_service.config import SPEECH_HEAD_FILE
from llm_service.errors import CheckpointError
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


class TensorFiles(Mapping[str, torch.Tensor]):
    """Tensors of all weight files of a directory, by name; the separate speech head is not among them."""

    def __init__(self, model_dir: Path) -> None:
        """Index a directory.

        Raises:
            CheckpointError: there are no weight files, one can't be read, or a name occurs twice.
        """
        self.paths = [path for path in sorted(model_dir.glob("*.safetensors")) if path.name != SPEECH_HEAD_FILE]
        if not self.paths:
            raise CheckpointError(f"{model_dir} has no *.safetensors; save the model again with safe_serialization")
        self._homes: dict[str, Path] = {}
        for path in self.paths:
            for name in _names(path):
                if name in self._homes:
                    raise CheckpointError(f"{name} is in {self._homes[name].name} and in {path.name} of {model_dir}")
                self._homes[name] = path

    def __getitem__(self, name: str) -> torch.Tensor:
        with safe_open(self._homes[name], framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
            return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)


def _names(path: Path) -> list[str]:
    try:
        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    except (SafetensorError, OSError) as err:
        raise CheckpointError(f"{path} can't be read: {err}; download or make it again") from err
