"""The safetensors files of a Hugging Face directory, read by tensor name; tensors stay on disk until they are used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from llm_service.config import SPEECH_HEAD_FILE
from llm_service.errors import CheckpointError


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
