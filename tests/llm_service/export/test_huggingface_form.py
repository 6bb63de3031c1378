"""The converted form: its logits equal the source's, nothing but speech can come out, and stock loaders refuse it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from llm_service.errors import CheckpointError
from llm_service.export.convert import HUGGINGFACE, convert, read_source
from llm_service.export.source import SpeechLMSource
from llm_service.huggingface_layout import has_speech_form
from llm_service.speech_head import speech_rows
from llm_service.vocab import COSYVOICE2
from tests.file_modes import assert_all_have_the_usual_mode

SPEECH_ROWS = speech_rows(COSYVOICE2)
PROMPT = [158227, 5, 6, 7, 158228, 151700, 151800]


@pytest.fixture(scope="module")
def expected(stock_dir: Path, source: SpeechLMSource) -> torch.Tensor:
    """The source's logits after each place of the prompt, [T, 6564] float32, by plain Transformers and the head."""
    # NOTE: imported by those who use it: its import takes seconds, and every worker imports this file.
    from transformers import Qwen2Model

    decoder = Qwen2Model.from_pretrained(stock_dir, dtype=torch.float32)
    with torch.inference_mode():
        hidden = decoder(torch.tensor([PROMPT])).last_hidden_state[0]
        logits: torch.Tensor = hidden @ source.head.weight.float().T + source.head.bias
    return logits


def test_transformers_gives_the_sources_logits_and_nothing_but_speech(
    converted_dir: Path, expected: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM, dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    model = AutoModelForCausalLM.from_pretrained(converted_dir, trust_remote_code=True, dtype=torch.float32)
    with torch.inference_mode():
        logits = model(torch.tensor([PROMPT])).logits[0].numpy()
    np.testing.assert_allclose(logits[:, SPEECH_ROWS], expected.numpy(), atol=3e-5)
    logits[:, SPEECH_ROWS] = -np.inf
    assert np.isneginf(logits).all()


def test_a_stock_loader_refuses_the_form_rather_than_losing_the_bias(converted_dir: Path) -> None:
    from transformers import AutoModelForCausalLM

    with pytest.raises(RuntimeError, match="mismatched"):
        AutoModelForCausalLM.from_pretrained(converted_dir)
    assert json.loads((converted_dir / "config.json").read_text())["architectures"] != ["Qwen2ForCausalLM"]


def test_a_service_of_another_user_can_read_the_form(converted_dir: Path) -> None:
    assert_all_have_the_usual_mode(converted_dir)


@pytest.mark.slow
def test_llm_pt_converts_to_the_same_files(official_dir: Path, converted_dir: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    assert convert(HUGGINGFACE, official_dir, made, "float32")
    for name in ("model.safetensors", "config.json", "generation_config.json"):
        assert (made / name).read_bytes() == (converted_dir / name).read_bytes()
    assert has_speech_form(made)
    read_source(made, None)


def test_what_is_no_source_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="neither"):
        convert(HUGGINGFACE, tmp_path, tmp_path / "made", "float32")
    assert not (tmp_path / "made").exists()
