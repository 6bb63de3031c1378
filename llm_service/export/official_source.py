"""Reads the official llm.pt: Qwen2 with an embedding and a decoder of its own for speech tokens.

    llm.model.model.*       Qwen2, text rows of the embedding included      speech_embedding  [rows, hidden]
    llm.model.lm_head.*     Qwen2's own head, not used                      llm_decoder       [rows, hidden]

CosyVoice2 has 6564 rows, a bias of the decoder, and llm_embedding [2, hidden] for sos and task_id. CosyVoice3 has 6761
rows, sos and task_id among them, and no bias. Rows of the speech embedding stand in the order of the LLM ids: the
tokens 0..6560, then the closing tokens.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

import torch

from llm_service.errors import CheckpointError
from llm_service.export.source import SpeechLMSource, build_tokenizer_files
from llm_service.qwen2 import Qwen2Shape, check_tensors, decoder_tensors, read_shape
from llm_service.speech_head import SpeechHead, speech_rows
from llm_service.vocab import COSYVOICE2, COSYVOICE3, SpeechVocabulary

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
    vocabulary = COSYVOICE2 if CONTROL_EMBEDDING in tensors else COSYVOICE3
    check_tensors(tensors, _expected(shape, tensors, vocabulary), path)
    decoder = {
        name.removeprefix(DECODER_PREFIX): tensor
        for name, tensor in tensors.items()
        if name.startswith(DECODER_PREFIX) and name != TEXT_EMBEDDING
    }
    bias = tensors.get(HEAD_BIAS, torch.zeros(vocabulary.head_rows))
    head = SpeechHead(tensors[HEAD_WEIGHT], bias, has_bias=True)
    tokenizer_files = build_tokenizer_files(qwen_dir, vocabulary)
    return SpeechLMSource(shape, decoder, _embedding(tensors, path, vocabulary), head, tokenizer_files, vocabulary)


def _load(path: Path) -> Mapping[str, torch.Tensor]:
    try:
        tensors = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except (OSError, RuntimeError, pickle.UnpicklingError) as err:
        raise CheckpointError(f"{path} can't be read: {err}; download it again") from err
    if not isinstance(tensors, Mapping) or not all(isinstance(value, torch.Tensor) for value in tensors.values()):
        raise CheckpointError(f"{path} holds no plain dictionary of tensors; expected the official {path.name}")
    return tensors


def _expected(
    shape: Qwen2Shape, tensors: Mapping[str, torch.Tensor], vocabulary: SpeechVocabulary
) -> dict[str, tuple[int, ...]]:
    """Qwen2's text vocabulary may be padded to any size, and its own head may have been left out."""
    text_rows = max(tensors[TEXT_EMBEDDING].shape[0] if TEXT_EMBEDDING in tensors else 0, COSYVOICE2.first_id)
    expected = {DECODER_PREFIX + name: size for name, size in decoder_tensors(shape).items()}
    expected |= {
        TEXT_EMBEDDING: (text_rows, shape.hidden),
        SPEECH_EMBEDDING: (vocabulary.head_rows, shape.hidden),
        HEAD_WEIGHT: (vocabulary.head_rows, shape.hidden),
    }
    if vocabulary is COSYVOICE2:
        expected |= {CONTROL_EMBEDDING: (2, shape.hidden), HEAD_BIAS: (vocabulary.head_rows,)}
    if UNUSED_HEAD in tensors:
        expected[UNUSED_HEAD] = (text_rows, shape.hidden)
    return expected


def _embedding(tensors: Mapping[str, torch.Tensor], path: Path, vocabulary: SpeechVocabulary) -> torch.Tensor:
    """Put the tables into one, by LLM id; rows that no token uses are zero."""
    names = [name for name in (TEXT_EMBEDDING, SPEECH_EMBEDDING, CONTROL_EMBEDDING) if name in tensors]
    text, speech = tensors[TEXT_EMBEDDING], tensors[SPEECH_EMBEDDING]
    if len({tensors[name].dtype for name in names}) > 1:
        raise CheckpointError(f"{path}: the embeddings have dtypes {[str(tensors[name].dtype) for name in names]}")
    table = torch.zeros(vocabulary.table_rows, text.shape[1], dtype=text.dtype)
    count = min(len(text), vocabulary.first_id)
    table[:count] = text[:count]
    table[speech_rows(vocabulary)] = speech
    if CONTROL_EMBEDDING in tensors:
        table[vocabulary.sos_id], table[vocabulary.task_id] = tensors[CONTROL_EMBEDDING]
    return table
