"""Reads both Hugging Face forms (see `llm_service.huggingface_layout`) and writes the converted one.

Stock holds the whole vocabulary's head, the converted form the few rows of the speech head.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from llm_service.adapters import TRANSFORMERS_AUTO_MAP, TRANSFORMERS_MODEL_FILE
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
from llm_service.qwen2 import (
    DECODER_PREFIX,
    EMBEDDING,
    check_tensors,
    decoder_tensors,
    qwen2_config,
    read_shape,
)
from llm_service.speech_head import HEAD_WEIGHT, TensorFiles, read_speech_head, read_vocabulary, speech_rows
from llm_service.vocab import COSYVOICE2, SpeechVocabulary
from servicekit.files import usual_mode

# A bias below this makes a token impossible: e to the power of it is nothing beside any other token.
IMPOSSIBLE_BIAS = -1e4


def read_huggingface(model_dir: Path) -> SpeechLMSource:
    """Read a Hugging Face directory.

    Raises:
        CheckpointError: it is incomplete or damaged, numbers its tokens otherwise, or its head can speak text.
    """
    shape = read_shape(model_dir / "config.json")
    vocabulary = read_vocabulary(model_dir)
    tokenizer_files = read_tokenizer_files(model_dir)
    _check_end_ids(model_dir, vocabulary)
    tensors = TensorFiles(model_dir)
    decoder = {name.removeprefix(DECODER_PREFIX): tensors[name] for name in tensors if name.startswith(DECODER_PREFIX)}
    embedding = decoder.pop(EMBEDDING.removeprefix(DECODER_PREFIX), None)
    check_tensors(decoder, decoder_tensors(shape), model_dir)
    if embedding is None:
        raise CheckpointError(f"{model_dir} has no {EMBEDDING}; wrong or damaged checkpoint")
    _check_other_rows(tensors, model_dir, vocabulary)
    head = read_speech_head(model_dir)
    if head.weight.shape[1] != shape.hidden:
        raise CheckpointError(
            f"{model_dir}: the head takes {head.weight.shape[1]} channels, the model has {shape.hidden}"
        )
    return SpeechLMSource(shape, decoder, embedding, head, tokenizer_files, vocabulary)


def _check_end_ids(model_dir: Path, vocabulary: SpeechVocabulary) -> None:
    """Check that what stops a generation is the end tokens."""
    for name in ("config.json", "generation_config.json"):
        ids = _eos_ids(model_dir / name)
        ends = vocabulary.end_ids
        if ids is not None and not (vocabulary.eos_id in ids and set(ids) <= set(ends)):
            raise CheckpointError(
                f"{model_dir / name}: eos_token_id is {sorted(ids)}, expected {vocabulary.eos_id} (<|eos1|>), alone or "
                f"with others of {ends[0]}..{ends[-1]}; correct the file or use the checkpoint it belongs to"
            )


def _eos_ids(path: Path) -> set[int] | None:
    """Return the ids of a config file, None where it says nothing."""
    if not path.is_file():
        return None
    value: Any = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    if value is None:
        return None
    return set(value) if isinstance(value, list) else {value}


def _check_other_rows(tensors: TensorFiles, model_dir: Path, vocabulary: SpeechVocabulary) -> None:
    """Check that a whole-vocabulary head has nothing to say outside the speech rows, which are all that is kept.

    CosyVoice3's official form keeps the text model's rows, which must not speak either: they are left away unchecked.
    """
    weight = tensors.get(HEAD_WEIGHT)
    if weight is None or vocabulary is not COSYVOICE2 or weight.shape[0] == vocabulary.head_rows:
        return
    if weight.shape[0] != vocabulary.table_rows:
        return  # reading the head says what is wrong with it
    is_live = (weight != 0).any(dim=1)
    if HEAD_BIAS in tensors:
        is_live &= tensors[HEAD_BIAS] > IMPOSSIBLE_BIAS
    is_live[speech_rows(vocabulary)] = False
    if is_live.any():
        first = int(torch.nonzero(is_live)[0])
        raise CheckpointError(
            f"{model_dir}: lm_head has {int(is_live.sum())} rows that could speak other than speech tokens, the first "
            f"is {first}; expected zero weights there: is this the speech-token LLM?"
        )


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
    shutil.copyfile(TRANSFORMERS_MODEL_FILE, directory / TRANSFORMERS_MODEL_FILE.name)


def _tensors(source: SpeechLMSource, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    tensors = {f"model.{name}": tensor for name, tensor in source.decoder.items()}
    tensors["model.embed_tokens.weight"] = source.embedding
    tensors[HEAD_WEIGHT], tensors[HEAD_BIAS] = source.head.weight, source.head.bias
    return {name: tensor.to(dtype).contiguous() for name, tensor in tensors.items()}


def _config(source: SpeechLMSource, dtype: str) -> dict[str, Any]:
    vocabulary = source.vocabulary
    return qwen2_config(source.shape, vocabulary) | {
        "architectures": [ARCHITECTURE],
        "auto_map": TRANSFORMERS_AUTO_MAP,
        FIRST_ID_KEY: vocabulary.first_id,
        ROWS_KEY: vocabulary.head_rows,
        "tie_word_embeddings": False,
        "bos_token_id": vocabulary.sos_id,
        "eos_token_id": vocabulary.eos_id,
        "torch_dtype": dtype,
    }
