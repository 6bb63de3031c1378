"""The speech head of a Hugging Face directory, whichever way it is stored, and the tensors of its safetensors files.

A head is stored in one of three ways: a file of its own (what `make_random_llm` writes), the few rows of the converted
form (see `llm_service.huggingface_layout`), or the whole vocabulary's rows, of which the speech ones are taken. Tensors
stay on disk until they are used. Knows nothing of the rest of the model.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from llm_service.config import SPEECH_HEAD_FILE
from llm_service.errors import CheckpointError, VocabularyError
from llm_service.huggingface_layout import FIRST_ID_KEY, HEAD_BIAS
from llm_service.qwen2 import DECODER_PREFIX, EMBEDDING, Qwen2Shape, check_tensors, decoder_tensors
from llm_service.vocab import COSYVOICE2, SpeechVocabulary, vocabulary_of_ids, vocabulary_of_table
from servicekit.file_sums import FileSumsError, check_file

logger = logging.getLogger(__name__)

HEAD_WEIGHT = "lm_head.weight"


@dataclass(frozen=True)
class SpeechHead:
    """Row i belongs to LLM id `first_id + i` of the vocabulary: speech tokens, then closing tokens."""

    weight: torch.Tensor  # [rows, hidden]; 6564 rows for CosyVoice2
    bias: torch.Tensor  # [rows]; zero where none is stored


def read_vocabulary(model_dir: Path) -> SpeechVocabulary:
    """Return the numbering that a directory's config.json tells: by the head's first id, or by the table's size.

    Raises:
        CheckpointError: it is of no known family, or can't be read.
    """
    path = model_dir / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        if FIRST_ID_KEY in config:
            return vocabulary_of_ids(config[FIRST_ID_KEY])
        return vocabulary_of_table(config["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise CheckpointError(f"{path} can't be read as a model's description: {err!r}") from err
    except VocabularyError as err:
        raise CheckpointError(f"{path}: {err}") from err


def read_speech_head(model_dir: Path) -> SpeechHead:
    """Read the head of a model directory.

    Raises:
        CheckpointError: there is none, or it is of another shape.
    """
    vocabulary = read_vocabulary(model_dir)
    path = model_dir / SPEECH_HEAD_FILE
    if path.is_file():
        return _checked(dict(TensorFiles(path)), path, vocabulary)
    tensors = TensorFiles(model_dir)
    if HEAD_WEIGHT not in tensors:
        raise CheckpointError(f"{model_dir} has no {HEAD_WEIGHT}; the speech head can't be tied to the embedding")
    parts = {"weight": tensors[HEAD_WEIGHT]}
    if HEAD_BIAS in tensors:
        parts["bias"] = tensors[HEAD_BIAS]
    rows = parts["weight"].shape[0]
    if rows != vocabulary.head_rows:
        speech = speech_rows(vocabulary)
        if rows < speech.stop:
            expected = f"{vocabulary.head_rows} or {vocabulary.table_rows}"
            raise CheckpointError(f"{model_dir}: lm_head has {rows} rows, expected {expected}")
        parts = {name: tensor[speech].clone() for name, tensor in parts.items()}
    return _checked(parts, model_dir, vocabulary)


def decoder_of(tensors: Mapping[str, torch.Tensor], shape: Qwen2Shape, where: Path) -> dict[str, torch.Tensor]:
    """Return what is not the head: the decoder's tensors and the embedding, by their names in `Qwen2Model`.

    Raises:
        CheckpointError: tensors are missing, unknown or of another shape.
    """
    beside = (HEAD_WEIGHT, HEAD_BIAS, EMBEDDING)
    decoder = {name.removeprefix(DECODER_PREFIX): tensors[name] for name in tensors if name not in beside}
    check_tensors(decoder, decoder_tensors(shape), where)
    if EMBEDDING not in tensors:
        raise CheckpointError(f"{where} has no {EMBEDDING}; it is no Qwen2 checkpoint")
    decoder[EMBEDDING.removeprefix(DECODER_PREFIX)] = tensors[EMBEDDING]
    return decoder


def speech_rows(vocabulary: SpeechVocabulary) -> slice:
    """Return the rows of a whole vocabulary's head that are the speech head's."""
    return slice(vocabulary.first_id, vocabulary.first_id + vocabulary.head_rows)


def _checked(parts: Mapping[str, torch.Tensor], where: Path, vocabulary: SpeechVocabulary) -> SpeechHead:
    rows = vocabulary.head_rows
    if "weight" not in parts or parts["weight"].ndim != 2:
        raise CheckpointError(f"{where} holds {sorted(parts)}, expected weight [{rows}, hidden] and bias")
    bias = parts.get("bias", torch.zeros(rows))
    found = {"weight": tuple(parts["weight"].shape), "bias": tuple(bias.shape)}
    expected = {"weight": (rows, parts["weight"].shape[1]), "bias": (rows,)}
    if found != expected:
        raise CheckpointError(f"{where} holds {found}, expected {expected}")
    if "bias" not in parts and vocabulary is COSYVOICE2:
        logger.warning(
            "%s stores no bias of the speech head (neither %s nor %s): the official model has one, so it was lost when "
            "this directory was made; convert the official llm.pt if you have it",
            *(where, HEAD_BIAS, SPEECH_HEAD_FILE),
        )
    return SpeechHead(parts["weight"], bias)


class TensorFiles(Mapping[str, torch.Tensor]):
    """Tensors of one weight file or of all in a directory, by name; the separate speech head is not among those."""

    def __init__(self, where: Path) -> None:
        """Index a file or a directory.

        Raises:
            CheckpointError: there are no weight files, one can't be read, or a name occurs twice.
        """
        found = [path for path in sorted(where.glob("*.safetensors")) if path.name != SPEECH_HEAD_FILE]
        paths = [where] if where.is_file() else found
        if not paths:
            raise CheckpointError(f"{where} has no *.safetensors; save the model again with safe_serialization")
        self._homes: dict[str, Path] = {}
        for path in paths:
            for name in _names(path):
                if name in self._homes:
                    raise CheckpointError(f"{name} is in {self._homes[name].name} and in {path.name} of {where}")
                self._homes[name] = path

    def __getitem__(self, name: str) -> torch.Tensor:
        with safe_open(self._homes[name], framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
        check_finite(name, tensor, self._homes[name])
        return tensor

    def __contains__(self, name: object) -> bool:
        return name in self._homes  # the base's reads the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)


def check_finite(name: str, tensor: torch.Tensor, where: Path) -> None:
    """Refuse a weight that is not finite; a whole vocabulary's bias may be minus infinity where nothing is spoken.

    Raises:
        CheckpointError: it holds NaN or infinity.
    """
    if tensor.numel() == 0:
        return
    # Both are NaN if any value is. Far cheaper than a look at each value.
    lowest, highest = (float(value) for value in torch.aminmax(tensor.detach()))
    if not (highest < torch.inf and (lowest > -torch.inf or (name == HEAD_BIAS and lowest == -torch.inf))):
        raise CheckpointError(f"{where}: {name} holds NaN or infinity; download or make it again")


def _names(path: Path) -> list[str]:
    try:
        check_file(path)
        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    except FileSumsError as err:
        raise CheckpointError(str(err)) from err
    except (SafetensorError, OSError) as err:
        raise CheckpointError(f"{path} can't be read: {err}; download or make it again") from err
