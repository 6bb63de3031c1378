"""Reads the official llm.pt: Qwen2 with an embedding and a biased decoder of its own for speech tokens.

    llm.model.model.*       Qwen2, text rows of the embedding included      speech_embedding  [6564, hidden]
    llm.model.lm_head.*     Qwen2's own head, not used                      llm_embedding     [2, hidden]: sos, task_id
                                                                            llm_decoder       [6564, hidden] and bias

Rows of the speech embedding are the tokens 0..6560, then three end tokens: just the order of the LLM ids.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

import torch

from llm_service.errors import CheckpointError
from llm_service.export.source import SpeechLMSource, build_tokenizer_files
from llm_service.qwen2 import Qwen2Shape, check_tensors, decoder_tensors, read_shape
from llm_service.speech_head import SpeechHead
from llm_service.vocab import PADDED_VOCABULARY_SIZE, SOS_ID, SPEECH_HEAD_ROWS, SPEECH_TOKEN_OFFSET, TASK_ID

DECODER_PREFIX = "llm.model.model."
TEXT_EMBEDDING = DECODER_PREFIX + "embed_tokens.weight"
UNUSED_HEAD = "llm.model.lm_head.weight"
SPEECH_EMBEDDING = "speech_embedding.weight"
CONTROL_EMBEDDING = "llm_embedding.weight"
HEAD_WEIGHT = "llm_decoder.weight"
HEAD_BIAS = "llm_decoder.bias"


def read_official(path: Path, qwen_dir: Path) -> SpeechLMSource:
    """Read llm.pt, with sizes and tokenizer from a Qwen2 directory.

    Raises:
        CheckpointError: a file is missing or damaged, or not laid out as above.
    """
    shape = read_shape(qwen_dir / "config.json")
    tensors = _load(path)
    check_tensors(tensors, _expected(shape, tensors), path)
    decoder = {
        name.removeprefix(DECODER_PREFIX): tensor
        for name, tensor in tensors.items()
        if name.startswith(DECODER_PREFIX) and name != TEXT_EMBEDDING
    }
    head = SpeechHead(tensors[HEAD_WEIGHT], tensors[HEAD_BIAS], has_bias=True)
    return SpeechLMSource(shape, decoder, _embedding(tensors, path), head, build_tokenizer_files(qwen_dir))


def _load(path: Path) -> Mapping[str, torch.Tensor]:
    try:
        tensors = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except (OSError, RuntimeError, pickle.UnpicklingError) as err:
        raise CheckpointError(f"{path} can't be read: {err}; download it again") from err
    if not isinstance(tensors, Mapping) or not all(isinstance(value, torch.Tensor) for value in tensors.values()):
        raise CheckpointError(f"{path} holds no plain dictionary of tensors; expected the official {path.name}")
    return tensors


def _expected(shape: Qwen2Shape, tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    """Qwen2's text vocabulary may be padded to any size, and its own head may have been left out."""
    text_rows = max(tensors[TEXT_EMBEDDING].shape[0] if TEXT_EMBEDDING in tensors else 0, SPEECH_TOKEN_OFFSET)
    expected = {DECODER_PREFIX + name: size for name, size in decoder_tensors(shape).items()}
    expected |= {
        TEXT_EMBEDDING: (text_rows, shape.hidden),
        SPEECH_EMBEDDING: (SPEECH_HEAD_ROWS, shape.hidden),
        CONTROL_EMBEDDING: (2, shape.hidden),
        HEAD_WEIGHT: (SPEECH_HEAD_ROWS, shape.hidden),
        HEAD_BIAS: (SPEECH_HEAD_ROWS,),
    }
    if UNUSED_HEAD in tensors:
        expected[UNUSED_HEAD] = (text_rows, shape.hidden)
    return expected


def _embedding(tensors: Mapping[str, torch.Tensor], path: Path) -> torch.Tensor:
    """Put the three tables into one, by LLM id; rows that no token uses are zero."""
    text, speech, control = tensors[TEXT_EMBEDDING], tensors[SPEECH_EMBEDDING], tensors[CONTROL_EMBEDDING]
    if not text.dtype == speech.dtype == control.dtype:
        raise CheckpointError(f"{path}: the embeddings have dtypes {text.dtype}, {speech.dtype} and {control.dtype}")
    table = torch.zeros(PADDED_VOCABULARY_SIZE, text.shape[1], dtype=text.dtype)
    table[:SPEECH_TOKEN_OFFSET] = text[:SPEECH_TOKEN_OFFSET]
    table[SPEECH_TOKEN_OFFSET : SPEECH_TOKEN_OFFSET + SPEECH_HEAD_ROWS] = speech
    table[SOS_ID], table[TASK_ID] = control[0], control[1]
    return table
