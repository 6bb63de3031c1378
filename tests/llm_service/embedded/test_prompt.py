"""Numbering of speech tokens, prompts, injection, and bounds of speech and of the answer's length."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_service import vocab
from llm_service.errors import (
    CheckpointError,
    PromptError,
    PromptTooLongError,
    VocabularyError,
)
from llm_service.prompt import build_prompt, generation_bounds, target_text_tokens
from llm_service.speech_bounds import BOUNDS_FILE, SpeechBounds, load_speech_bounds, write_speech_bounds
from llm_service.text_encoder import TextEncoder, load_text_encoder
from llm_service.vocab import CONTROL_TOKENS, COSYVOICE2

markup = st.sampled_from([*CONTROL_TOKENS, "<|s_0|>", "<|s_6560|>", "<|", "|>", "[breath]", "s_5"])
hostile_text = st.lists(st.one_of(markup, st.text(max_size=4)), max_size=8).map("".join)


@pytest.fixture(scope="module")
def encoder(llm_dir: Path) -> TextEncoder:
    return load_text_encoder(llm_dir)


def encode_letters(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def test_the_prompt_has_the_order_of_the_model_card() -> None:
    prompt = build_prompt(encode_letters, "ab", "cde", [0, 6560])
    assert prompt.token_ids == (COSYVOICE2.sos_id, 97, 98, 99, 100, 101, COSYVOICE2.task_id, 151663, 158223)
    assert prompt.target_text_tokens == 3


def test_blank_space_at_the_ends_of_a_text_is_not_spoken() -> None:
    assert build_prompt(encode_letters, " ab\n", "\tc d ", [0]) == build_prompt(encode_letters, "ab", "c d", [0])
    assert build_prompt(encode_letters, " ", "c", []) == build_prompt(encode_letters, "", "c", [])
    assert target_text_tokens(encode_letters, " c d ") == 3


def test_an_empty_target_text_is_refused() -> None:
    with pytest.raises(PromptError, match="the target text is empty"):
        build_prompt(encode_letters, "ab", " \n", [])


def test_an_encoder_that_lets_control_tokens_through_is_refused() -> None:
    with pytest.raises(PromptError, match="the encoder gave ids from 151663 on for a text"):
        build_prompt(lambda _: [COSYVOICE2.first_id], "", "c", [])


@given(hostile_text)
def test_no_text_can_make_control_or_speech_tokens(encoder: TextEncoder, text: str) -> None:
    ids = encoder.encode(text)
    assert all(token_id < COSYVOICE2.first_id for token_id in ids)
    assert not set(ids) & {151643, 151644, 151645, 151646}


def test_inline_tags_keep_their_special_ids(encoder: TextEncoder) -> None:
    assert encoder.encode("[breath]") == [151647]
    assert len(encoder.encode("<laughter></laughter><strong></strong>[mn]")) == 5


def test_a_tokenizer_with_other_numbers_is_refused(llm_dir: Path, tmp_path: Path) -> None:
    description = json.loads((llm_dir / "tokenizer.json").read_text())
    vocabulary = description["model"]["vocab"]
    vocabulary["<|s_7|>"], vocabulary["<|s_8|>"] = vocabulary["<|s_8|>"], vocabulary["<|s_7|>"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    with pytest.raises(CheckpointError, match=r"<\|s_7\|>"):
        load_text_encoder(tmp_path)


@pytest.mark.parametrize("content", [None, "not json", "[" * 100_000, "[]", "{}", '{"added_tokens": [{}]}'])
def test_a_directory_without_a_good_tokenizer_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError):
        load_text_encoder(tmp_path)


@given(st.integers(1, 2000))
def test_bounds_are_two_to_twenty_tokens_each_below_the_cap(text_tokens: int) -> None:
    bounds = generation_bounds(text_tokens, max_speech_tokens=5000)
    assert bounds.min_tokens == 2 * text_tokens
    assert bounds.max_tokens == min(20 * text_tokens, 5000)
    assert bounds.min_tokens <= bounds.max_tokens


def test_a_text_that_can_not_fit_the_cap_is_refused() -> None:
    with pytest.raises(PromptTooLongError, match="split"):
        generation_bounds(51, max_speech_tokens=100)


def test_the_numbering_is_the_official_one() -> None:
    assert vocab.COSYVOICE2.llm_id(0) == 151663
    assert vocab.COSYVOICE2.llm_id(6560) == 158223
    assert vocab.COSYVOICE2.end_ids == (158224, 158225, 158226)
    assert (vocab.COSYVOICE2.sos_id, vocab.COSYVOICE2.task_id) == (158227, 158228)
    assert vocab.COSYVOICE2.table_rows == 158336


@pytest.mark.parametrize("speech_id", [-1, 6561])
def test_a_speech_id_out_of_range_is_refused(speech_id: int) -> None:
    with pytest.raises(VocabularyError, match=r"expected 0\.\.6560"):
        vocab.COSYVOICE2.llm_id(speech_id)


@pytest.mark.parametrize("llm_id", [0, 151662, 158224, 158228])
def test_other_llm_ids_are_no_speech_tokens(llm_id: int) -> None:
    assert not vocab.COSYVOICE2.is_speech(llm_id)
    with pytest.raises(VocabularyError):
        vocab.COSYVOICE2.speech_id(llm_id)


def test_bounds_are_read_as_they_were_written(tmp_path: Path) -> None:
    assert load_speech_bounds(tmp_path) == SpeechBounds()
    write_speech_bounds(tmp_path, SpeechBounds(segment_letters=90, carry_tokens=0))
    assert load_speech_bounds(tmp_path) == SpeechBounds(90, 0)
    write_speech_bounds(tmp_path, SpeechBounds(silent_tokens=(0, 6560)))
    assert load_speech_bounds(tmp_path) == SpeechBounds(silent_tokens=(0, 6560))


def test_what_is_asked_for_replaces_what_the_checkpoint_says() -> None:
    learnt = SpeechBounds(90, 100)
    assert learnt.overridden_by(SpeechBounds()) == learnt
    assert learnt.overridden_by(SpeechBounds(carry_tokens=0)) == SpeechBounds(90, 0)


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "3", '{"letters": 3}', '{"segment_letters": 0}', '{"carry_tokens": -1}', '{"carry_tokens": true}'),
        *('{"follows_text": 1.5}', '{"silent_tokens": 3}', '{"silent_tokens": [6561]}', '{"silent_tokens": ["1"]}'),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / BOUNDS_FILE).write_text(content)
    with pytest.raises(CheckpointError, match=r"speech_bounds.json can't be read .*segment_letters, carry_tokens"):
        load_speech_bounds(tmp_path)
