"""The converted form: stock loaders refuse it, and both sources give the same files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_service.errors import CheckpointError
from llm_service.export import convert as conversions
from llm_service.export.convert import convert, read_source
from llm_service.huggingface_layout import has_speech_form
from tests.file_modes import assert_all_have_the_usual_mode


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
    assert convert(official_dir, made, "float32")
    for name in ("model.safetensors", "config.json", "generation_config.json"):
        assert (made / name).read_bytes() == (converted_dir / name).read_bytes()
    assert has_speech_form(made)
    read_source(made, None)


def test_a_rerun_with_nothing_to_do_opens_no_model(
    stock_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "made"
    assert convert(stock_dir, made, "float32")

    def refuse(*_: object) -> None:
        raise AssertionError("the model was read")

    monkeypatch.setattr(conversions, "read_source", refuse)
    assert not convert(stock_dir, made, "float32")
    with pytest.raises(AssertionError, match="the model was read"):
        convert(stock_dir, made, "float16")
    assert json.loads((made / "config.json").read_text())["torch_dtype"] == "float32"


def test_what_is_no_source_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="neither"):
        convert(tmp_path, tmp_path / "made", "float32")
    assert not (tmp_path / "made").exists()
