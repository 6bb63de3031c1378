"""Shared by the converter's tests: one small model in each form that the converter reads, and one converted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from llm_service.checkpoint import make_random_llm
from llm_service.config import SPEECH_HEAD_FILE
from llm_service.export.convert import QWEN_DIR, convert, read_source
from llm_service.export.source import SpeechLMSource
from llm_service.huggingface_layout import ENDOFTEXT
from llm_service.vocab import COSYVOICE2
from tests.workers import made_once

OFFICIAL_TEXT_ROWS = 151936
OFFICIAL_TEXT_TOKENS = 151643
# So large that a head without it answers otherwise.
BIAS_STD = 2.0


@pytest.fixture(scope="session")
def stock_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stock Hugging Face form: the whole vocabulary's head, the bias in a file of its own."""

    def make(directory: Path) -> None:
        make_random_llm(directory, seed=11)
        path = directory / SPEECH_HEAD_FILE
        head = load_file(path)
        noise = torch.randn(COSYVOICE2.head_rows, generator=torch.Generator().manual_seed(1)) * BIAS_STD
        save_file({"weight": head["weight"], "bias": head["bias"] + noise}, path)

    return made_once(tmp_path_factory, "stock-llm", make)


@pytest.fixture(scope="session")
def source(stock_dir: Path) -> SpeechLMSource:
    """The model, read."""
    return read_source(stock_dir, None)


@pytest.fixture(scope="session")
def official_dir(tmp_path_factory: pytest.TempPathFactory, source: SpeechLMSource, stock_dir: Path) -> Path:
    """The same model as the official llm.pt, with Qwen2's directory beside it."""

    def make(directory: Path) -> None:
        qwen_dir = directory / QWEN_DIR
        qwen_dir.mkdir(parents=True)
        torch.save(official_tensors(source), directory / "llm.pt")
        (qwen_dir / "config.json").write_bytes((stock_dir / "config.json").read_bytes())
        (qwen_dir / "tokenizer.json").write_text(text_tokenizer(stock_dir), encoding="utf-8")

    return made_once(tmp_path_factory, "official-llm", make)


@pytest.fixture(scope="session")
def converted_dir(tmp_path_factory: pytest.TempPathFactory, stock_dir: Path) -> Path:
    """The converted form, in float32 so that it can be compared exactly."""
    return made_once(tmp_path_factory, "converted-llm", lambda folder: convert(stock_dir, folder, "float32"))


def official_tensors(source: SpeechLMSource) -> dict[str, torch.Tensor]:
    """Return the tensors of llm.pt, by the official names."""
    hidden = source.shape.hidden
    text = torch.ones(OFFICIAL_TEXT_ROWS, hidden, dtype=source.embedding.dtype)
    text[: COSYVOICE2.first_id] = source.embedding[: COSYVOICE2.first_id]
    return {
        **{f"llm.model.model.{name}": tensor for name, tensor in source.decoder.items()},
        "llm.model.model.embed_tokens.weight": text,
        "llm.model.lm_head.weight": text,
        "speech_embedding.weight": source.embedding[COSYVOICE2.first_id :][: COSYVOICE2.head_rows].clone(),
        "llm_embedding.weight": source.embedding[[COSYVOICE2.sos_id, COSYVOICE2.task_id]],
        "llm_decoder.weight": source.head.weight,
        "llm_decoder.bias": source.head.bias,
    }


def text_tokenizer(stock_dir: Path, text_tokens: int = OFFICIAL_TEXT_TOKENS) -> str:
    """Return tokenizer.json as Qwen2's own: text and three special tokens, nothing of speech.

    The 256 bytes are real; the other text tokens fill the numbering and never come out.
    """
    description = json.loads((stock_dir / "tokenizer.json").read_text("utf-8"))
    kept = (ENDOFTEXT, "<|im_start|>", "<|im_end|>")
    tokens = [token for token in description["added_tokens"] if token["content"] in kept]
    description["added_tokens"] = [token | {"id": text_tokens + index} for index, token in enumerate(tokens)]
    vocabulary = {token: token_id for token, token_id in description["model"]["vocab"].items() if token_id < 256}
    description["model"]["vocab"] = vocabulary | {f"filler{index}": index for index in range(256, text_tokens)}
    return json.dumps(description)
