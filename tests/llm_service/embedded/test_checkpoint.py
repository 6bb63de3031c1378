"""The random checkpoint: official numbering, loadable by others, and our model equals Transformers' own."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from llm_service.checkpoint import make_random_llm
from llm_service.config import SPEECH_HEAD_FILE
from llm_service.embedded.model import DecodeRow, SpeechLanguageModel
from llm_service.errors import CheckpointError
from llm_service.huggingface_layout import HEAD_BIAS, INLINE_TOKENS
from llm_service.speech_head import check_finite
from llm_service.vocab import COSYVOICE2

MAX_BYTES = 45_000_000
OFFICIAL_IDS = {
    "<|endoftext|>": 151643,
    "<|im_start|>": 151644,
    "[mn]": 151662,
    "<|s_0|>": 151663,
    "<|s_6560|>": 158223,
    "<|eos1|>": 158224,
    "<|eos3|>": 158226,
    "<|sos|>": 158227,
    "<|task_id|>": 158228,
}


def test_transformers_sees_the_official_ids_and_the_chat_template(llm_dir: Path) -> None:
    # NOTE: imported by those who use it: its import takes seconds, and every worker imports this file.
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(llm_dir)
    assert tokenizer.convert_tokens_to_ids(list(OFFICIAL_IDS)) == list(OFFICIAL_IDS.values())
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "<|s_1|>"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == "<|sos|>hi<|task_id|><|s_1|>"
    assert tokenizer.decode(tokenizer("héllo 中 [breath]").input_ids) == "héllo 中 [breath]"
    assert tokenizer.convert_tokens_to_ids(list(INLINE_TOKENS)) == list(range(151644, 151663))


def test_the_directory_is_small_and_equal_seeds_give_equal_files(llm_dir: Path, tmp_path: Path) -> None:
    assert sum(path.stat().st_size for path in llm_dir.iterdir()) < MAX_BYTES
    make_random_llm(tmp_path, seed=7)
    for path in llm_dir.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_our_logits_equal_transformers_plus_the_bias(llm_dir: Path, model: SpeechLanguageModel) -> None:
    from transformers import AutoModelForCausalLM

    ids = [158227, 5, 6, 7, 158228, 151700, 151800]
    model.allocate_cache(3, 64, rows_per_forward=2)
    ours = [model.prefill(2, ids[:5])]
    ours += [model.decode([DecodeRow(2, ids[place], place)])[0] for place in (5, 6)]
    reference = AutoModelForCausalLM.from_pretrained(llm_dir, dtype=torch.float32)
    with torch.inference_mode():
        logits = reference(torch.tensor([ids])).logits[0, 4:]
    rows = logits[:, COSYVOICE2.first_id : COSYVOICE2.first_id + COSYVOICE2.head_rows]
    bias = load_file(llm_dir / SPEECH_HEAD_FILE)["bias"]
    assert bias.abs().max() > 1
    np.testing.assert_allclose(np.stack(ours), (rows + bias).numpy(), atol=2e-5)


def test_without_the_head_file_the_head_has_no_bias(llm_dir: Path, model: SpeechLanguageModel, tmp_path: Path) -> None:
    for path in llm_dir.iterdir():
        if path.name != SPEECH_HEAD_FILE:
            (tmp_path / path.name).symlink_to(path)
    plain = SpeechLanguageModel.load(tmp_path, "cpu", "float32")
    bias = load_file(llm_dir / SPEECH_HEAD_FILE)["bias"].numpy()
    for loaded in (plain, model):
        loaded.allocate_cache(1, 64, rows_per_forward=1)
    ids = [158227, 5, 158228]
    np.testing.assert_allclose(plain.prefill(0, ids) + bias, model.prefill(0, ids), atol=2e-5)


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        SpeechLanguageModel.load(tmp_path, "cpu", "float32")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_weight_that_is_not_finite_is_refused(value: float, tmp_path: Path) -> None:
    check_finite("empty", torch.zeros(0), tmp_path)
    with pytest.raises(CheckpointError, match=r"norm\.weight holds NaN or infinity"):
        check_finite("norm.weight", torch.tensor([1.0, value, 2.0], dtype=torch.bfloat16), tmp_path)


@pytest.mark.parametrize(("value", "is_refused"), [(float("-inf"), False), (float("inf"), True), (float("nan"), True)])
def test_of_infinities_a_head_s_bias_may_hold_the_negative_one(value: float, is_refused: bool, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) if is_refused else nullcontext():
        check_finite(HEAD_BIAS, torch.tensor([value, 0.0]), tmp_path)
