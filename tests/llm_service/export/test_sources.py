"""Both forms are read as the same model; what is wrong with a checkpoint is said before anything is written."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from llm_service.config import SPEECH_HEAD_FILE
from llm_service.errors import CheckpointError
from llm_service.export import convert as conversions
from llm_service.export.convert import QWEN_DIR, convert, read_source, source_files
from llm_service.export.source import SpeechLMSource, build_tokenizer_files
from llm_service.huggingface_layout import INLINE_TOKENS, has_speech_form
from llm_service.vocab import COSYVOICE2
from tests.file_modes import assert_all_have_the_usual_mode
from tests.llm_service.export.conftest import official_tensors, text_tokenizer

Tensors = dict[str, torch.Tensor]


@pytest.mark.slow
def test_both_forms_are_the_same_model(official_dir: Path, source: SpeechLMSource) -> None:
    for path in (official_dir, official_dir / "llm.pt"):
        official = read_source(path, None)
        assert official.shape == source.shape
        assert official.decoder.keys() == source.decoder.keys()
        assert all(torch.equal(official.decoder[name], source.decoder[name]) for name in source.decoder)
        assert torch.equal(official.embedding, source.embedding)
        assert torch.equal(official.head.weight, source.head.weight)
        assert torch.equal(official.head.bias, source.head.bias)


def test_the_converted_form_is_a_source_too(converted_dir: Path, source: SpeechLMSource) -> None:
    again = read_source(converted_dir, None)
    assert torch.equal(again.head.bias, source.head.bias)
    assert torch.equal(again.embedding, source.embedding.float())


def test_a_whole_vocabulary_head_with_a_bias_gives_its_speech_rows(
    stock_dir: Path, source: SpeechLMSource, tmp_path: Path
) -> None:
    def spread(tensors: Tensors) -> None:
        tensors["lm_head.bias"] = torch.full((COSYVOICE2.table_rows,), float("-inf"))
        tensors["lm_head.bias"][COSYVOICE2.first_id :][: COSYVOICE2.head_rows] = source.head.bias

    model_dir = changed_copy(stock_dir, tmp_path, spread, without=SPEECH_HEAD_FILE)
    head = read_source(model_dir, None).head
    assert torch.equal(head.bias, source.head.bias)
    assert torch.equal(head.weight, source.head.weight)


def test_a_lost_bias_is_said(stock_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model_dir = changed_copy(stock_dir, tmp_path, lambda tensors: None, without=SPEECH_HEAD_FILE)
    with caplog.at_level(logging.WARNING):
        source = read_source(model_dir, None)
    assert not source.head.bias.any()
    assert "no bias of the speech head" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(lambda t: t.pop("llm_decoder.bias"), r"1 missing \(llm_decoder.bias\)", id="no bias"),
        pytest.param(lambda t: t.pop("llm.model.model.norm.weight"), "missing .*norm.weight", id="no norm"),
        pytest.param(lambda t: t.update(extra=torch.ones(1)), r"1 unknown \(extra\)", id="unknown tensor"),
        pytest.param(
            lambda t: t.update({"speech_embedding.weight": t["speech_embedding.weight"][:6561]}),
            r"speech_embedding.weight \[6561, 64\] instead of \[6564, 64\]",
            id="speech rows",
        ),
        pytest.param(
            lambda t: t.update({"llm_embedding.weight": t["llm_embedding.weight"].float()}), "dtypes", id="dtypes"
        ),
        pytest.param(
            lambda t: t["llm_embedding.weight"][1].zero_(), r"<\|task_id\|> \(row 158228\) is all zero", id="task id"
        ),
    ],
)
def test_a_damaged_llm_pt_is_refused(
    official_dir: Path, source: SpeechLMSource, tmp_path: Path, change: Callable[[Tensors], object], message: str
) -> None:
    tensors = official_tensors(source)
    change(tensors)
    torch.save(tensors, tmp_path / "llm.pt")
    with pytest.raises(CheckpointError, match=message):
        read_source(tmp_path / "llm.pt", official_dir / QWEN_DIR)


def test_what_is_no_checkpoint_is_refused(official_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"neither llm\.pt nor config\.json"):
        source_files(tmp_path, None)
    (tmp_path / "llm.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(CheckpointError, match="--qwen-dir"):
        source_files(tmp_path, None)
    with pytest.raises(CheckpointError, match="download it again"):
        read_source(tmp_path, official_dir / QWEN_DIR)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(lambda t: t.pop("model.layers.1.mlp.up_proj.weight"), "1 missing", id="no matrix"),
        pytest.param(lambda t: t.pop("model.embed_tokens.weight"), "no model.embed_tokens", id="no embedding"),
        pytest.param(lambda t: t.pop("lm_head.weight"), "has no lm_head.weight", id="tied head"),
        pytest.param(
            lambda t: t.update({"lm_head.weight": t["lm_head.weight"][:100]}), "lm_head has 100 rows", id="short head"
        ),
        pytest.param(
            lambda t: t["model.embed_tokens.weight"][COSYVOICE2.first_id].zero_(), r"<\|s_0\|>", id="first token"
        ),
        pytest.param(
            lambda t: t["model.embed_tokens.weight"][COSYVOICE2.task_id].zero_(), r"<\|task_id\|>", id="task id"
        ),
    ],
)
def test_a_damaged_hugging_face_form_is_refused(
    stock_dir: Path, tmp_path: Path, change: Callable[[Tensors], object], message: str
) -> None:
    model_dir = changed_copy(stock_dir, tmp_path, change, without=SPEECH_HEAD_FILE)
    with pytest.raises(CheckpointError, match=message):
        read_source(model_dir, None)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        pytest.param("config.json", '"qwen2"', '"llama"', "model_type is 'llama'", id="other model"),
        pytest.param("config.json", '"hidden_size"', '"size"', "no hidden_size", id="no size"),
        pytest.param("tokenizer.json", "<|sos|>", "<|s0s|>", r"<\|sos\|> has id", id="sos"),
        pytest.param("tokenizer.json", "<|s_0|>", "<|s_x|>", r"<\|s_0\|> has id", id="speech token"),
        pytest.param("tokenizer_config.json", "chat_template", "template", "no chat_template", id="no template"),
    ],
)
def test_a_wrong_numbering_is_named(
    stock_dir: Path, tmp_path: Path, name: str, old: str, new: str, message: str
) -> None:
    model_dir = changed_copy(stock_dir, tmp_path, None)
    text = (stock_dir / name).read_text("utf-8")
    assert old in text
    (model_dir / name).unlink()
    (model_dir / name).write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(CheckpointError, match=message):
        read_source(model_dir, None)


@pytest.mark.slow
def test_the_built_tokenizer_has_the_official_numbering(official_dir: Path, stock_dir: Path) -> None:
    files = build_tokenizer_files(official_dir / QWEN_DIR)
    built, known = Tokenizer.from_str(files["tokenizer.json"]), Tokenizer.from_file(str(stock_dir / "tokenizer.json"))
    text = "<|sos|>Hello [breath] <|endofprompt|>中<|task_id|><|s_6560|><|eos1|>"
    assert built.encode(text).ids == known.encode(text).ids
    assert built.encode("plain", add_special_tokens=False).ids == known.encode("plain").ids
    assert json.loads(files["special_tokens_map.json"])["additional_special_tokens"] == list(INLINE_TOKENS)


@pytest.mark.slow
def test_a_text_tokenizer_of_vocabulary_and_merges_will_do(stock_dir: Path, tmp_path: Path) -> None:
    description = json.loads(text_tokenizer(stock_dir))
    (tmp_path / "vocab.json").write_text(json.dumps(description["model"]["vocab"]))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    decoder = {str(token.pop("id")): token for token in description["added_tokens"]}
    config = {"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": decoder}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    built = Tokenizer.from_str(build_tokenizer_files(tmp_path)["tokenizer.json"])
    known = Tokenizer.from_file(str(stock_dir / "tokenizer.json"))
    text = "<|sos|>ab[breath]<|task_id|><|s_6560|>"
    assert built.encode(text).ids == known.encode(text).ids


@pytest.mark.slow
def test_another_text_tokenizer_is_refused(stock_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(text_tokenizer(stock_dir, text_tokens=151000))
    with pytest.raises(CheckpointError, match="ends at id 151019, expected 151662"):
        build_tokenizer_files(tmp_path)


def changed_copy(model_dir: Path, parent: Path, change: Callable[[Tensors], object] | None, without: str = "") -> Path:
    """Return a directory of links to a model's files, its tensors changed."""
    copy = parent / "model"
    copy.mkdir()
    for path in model_dir.iterdir():
        if path.name not in (without, "model.safetensors"):
            shutil.copyfile(path, copy / path.name) if path.suffix == ".json" else (copy / path.name).symlink_to(path)
    if change is None:
        (copy / "model.safetensors").symlink_to(model_dir / "model.safetensors")
        return copy
    tensors = load_file(model_dir / "model.safetensors")
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, copy / "model.safetensors")
    return copy


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
