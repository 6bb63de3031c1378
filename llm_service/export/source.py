"""The model to convert, from any source: its decoder, embedding, speech head and tokenizer files.

The tokenizer's files are copied from a Hugging Face directory, or built on the text tokenizer that llm.pt goes with.
llm.pt is Qwen2 with an embedding and a decoder of its own for speech tokens:

    llm.model.model.*       Qwen2, text rows of the embedding included      speech_embedding  [rows, hidden]
    llm.model.lm_head.*     Qwen2's own head, not used                      llm_decoder       [rows, hidden]

CosyVoice2 has 6564 rows, a bias of the decoder, and llm_embedding [2, hidden] for sos and task_id. CosyVoice3 has 6761
rows, sos and task_id among them, and no bias. Rows of the speech embedding stand in the order of the LLM ids: the
tokens 0..6560, then the closing tokens.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer

from llm_service.errors import CheckpointError
from llm_service.huggingface_layout import special_tokens_map, text_tokens, tokenizer_config
from llm_service.qwen2 import Qwen2Shape, check_tensors, decoder_tensors, read_shape
from llm_service.speech_head import SpeechHead, speech_rows
from llm_service.text_encoder import TOKENIZER_FILE, check_numbering, load_text_encoder
from llm_service.vocab import (
    COSYVOICE2,
    COSYVOICE3,
    SOS_TOKEN,
    SPEECH_TOKEN_COUNT,
    TASK_TOKEN,
    SpeechVocabulary,
    speech_token_text,
)


@dataclass(frozen=True)
class SpeechLMSource:
    """A speech-token LLM, read and checked. Tensors have the source's dtypes and may still lie on disk."""

    shape: Qwen2Shape
    decoder: Mapping[str, torch.Tensor]  # named as in Transformers' Qwen2Model; no embedding
    embedding: torch.Tensor  # [rows of the table, hidden], row = LLM id
    head: SpeechHead
    tokenizer_files: Mapping[str, str]  # file name -> text
    vocabulary: SpeechVocabulary = COSYVOICE2


def check_special_rows(embedding: torch.Tensor, where: Path, vocabulary: SpeechVocabulary) -> None:
    """Check that the embedding knows the special tokens.

    Raises:
        CheckpointError: the table has another size, or a special token's row is all zero: it was never filled in.
    """
    rows = embedding.shape[0]
    if rows != vocabulary.table_rows:
        raise CheckpointError(f"{where}: the embedding has {rows} rows, expected {vocabulary.table_rows}")
    # Tokens that the model reads; the first speech token stands for all. Nothing comes after an end token.
    needed = (SOS_TOKEN, TASK_TOKEN)
    ids = {speech_token_text(0): vocabulary.first_id} | {token: vocabulary.control_ids[token] for token in needed}
    for token, token_id in ids.items():
        if not embedding[token_id].any():
            raise CheckpointError(f"{where}: the embedding of {token} (row {token_id}) is all zero; wrong numbering?")


TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE_FILE = "chat_template.jinja"
OTHER_FILES = ("special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", CHAT_TEMPLATE_FILE)


def read_tokenizer_files(model_dir: Path) -> dict[str, str]:
    """Return the tokenizer's files of a Hugging Face directory, by name.

    Raises:
        CheckpointError: one that is needed is missing, a token has another id than `vocab` says, or there is no chat
            template.
    """
    load_text_encoder(model_dir)  # checks numbering and says what is wrong
    names = [TOKENIZER_FILE, TOKENIZER_CONFIG, *(name for name in OTHER_FILES if (model_dir / name).is_file())]
    try:
        files = {name: (model_dir / name).read_text(encoding="utf-8") for name in names}
        has_template = CHAT_TEMPLATE_FILE in files or "chat_template" in json.loads(files[TOKENIZER_CONFIG])
    except (OSError, ValueError) as err:
        raise CheckpointError(f"{model_dir}: a tokenizer file can't be read: {err}") from err
    if not has_template:
        raise CheckpointError(f"{model_dir / TOKENIZER_CONFIG} has no chat_template; expected the speech-token LLM's")
    return files


def build_tokenizer_files(text_tokenizer_dir: Path, vocabulary: SpeechVocabulary = COSYVOICE2) -> dict[str, str]:
    """Add the special and the speech tokens to Qwen2's text tokenizer; return the files by name.

    Raises:
        CheckpointError: the text tokenizer is missing, or the ids do not come out as `vocab` says.
    """
    tokenizer = _text_tokenizer(text_tokenizer_dir)
    tokenizer.add_special_tokens([_token(token) for token in text_tokens(vocabulary)])
    last = max(tokenizer.get_vocab(with_added_tokens=True).values())
    if last != vocabulary.first_id - 1:
        raise CheckpointError(
            f"{text_tokenizer_dir}: with its special tokens the text tokenizer ends at id {last}, expected "
            f"{vocabulary.first_id - 1}; give the tokenizer that the checkpoint came with"
        )
    speech = [speech_token_text(index) for index in range(SPEECH_TOKEN_COUNT)]
    tokenizer.add_tokens([_token(token) for token in (*speech, *vocabulary.control_ids)])
    text = tokenizer.to_str()
    check_numbering(Tokenizer.from_str(text), text_tokenizer_dir)
    return {
        TOKENIZER_FILE: text,
        TOKENIZER_CONFIG: _json(tokenizer_config(vocabulary)),
        "special_tokens_map.json": _json(special_tokens_map(vocabulary)),
    }


def _text_tokenizer(directory: Path) -> Tokenizer:
    path = directory / TOKENIZER_FILE
    if path.is_file():
        return Tokenizer.from_file(str(path))
    if not (directory / "vocab.json").is_file():
        raise CheckpointError(f"{directory} has neither {TOKENIZER_FILE} nor vocab.json; give Qwen2's with --qwen-dir")
    from transformers import AutoTokenizer

    slow: Any = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    # A copy through text: the library's own object must not change.
    return Tokenizer.from_str(slow.backend_tokenizer.to_str())


def _token(content: str) -> AddedToken:
    return AddedToken(content, normalized=False)


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False) + "\n"


DECODER_PREFIX = "llm.model.model."
TEXT_EMBEDDING = DECODER_PREFIX + "embed_tokens.weight"
UNUSED_HEAD = "llm.model.lm_head.weight"
SPEECH_EMBEDDING = "speech_embedding.weight"
CONTROL_EMBEDDING = "llm_embedding.weight"
HEAD_WEIGHT = "llm_decoder.weight"
HEAD_BIAS = "llm_decoder.bias"


def read_official(path: Path, qwen_dir: Path) -> SpeechLMSource:
    """Read the official llm.pt, with sizes and tokenizer from a Qwen2 directory.

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
    head = SpeechHead(tensors[HEAD_WEIGHT], bias)
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
