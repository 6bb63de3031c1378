"""The neural recogniser's decoding, with models of a few numbers instead of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from cosydit.certify.recognition import words_of
from lab.ears.moonshine import (
    DECODER,
    ENCODER,
    END_ID,
    LEAST_TOKENS,
    TOKENIZER,
    MoonshineRecogniser,
    without_last_silence,
)

WORDS = ("<unk>", "<s>", "</s>", "hello", "world", "again")
CACHES = [f"0.{side}.{kind}" for side in ("decoder", "encoder") for kind in ("key", "value")]
SECOND = np.full(16_000, 0.1, np.float32)


def write_models(directory: Path, then: dict[int, int], then_hearing: dict[int, int]) -> Path:
    """Write models whose decoder answers a token by `then`, or by `then_hearing` while it has the encoder's keys.

    The encoder's keys are made by the first call only; those of later calls are zeros.
    """
    tables = {"deaf": then, "hearing": then_hearing}
    constants = [
        numpy_helper.from_array(_table(table, 1.0 if name == "deaf" else 10.0), name) for name, table in tables.items()
    ]
    constants += [
        numpy_helper.from_array(np.ones((1, 2, 1, 3), np.float32), "some"),
        numpy_helper.from_array(np.zeros((1, 2, 1, 3), np.float32), "none"),
        numpy_helper.from_array(np.array([1], np.int64), "axis"),
    ]
    nodes = [
        helper.make_node("Gather", ["deaf", "input_ids"], ["plain"]),
        helper.make_node("Gather", ["hearing", "input_ids"], ["heard"]),
        helper.make_node("ReduceSum", ["past_key_values.0.encoder.key"], ["loudness"], keepdims=0),
        helper.make_node("Mul", ["heard", "loudness"], ["weighed"]),
        helper.make_node("Add", ["plain", "weighed"], ["logits"]),
        helper.make_node("Where", ["use_cache_branch", "none", "some"], ["made"]),
        *(helper.make_node("Identity", ["made"], [f"present.{cache}"]) for cache in CACHES),
    ]
    inputs = [
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, 1]),
        helper.make_tensor_value_info("encoder_hidden_states", TensorProto.FLOAT, [1, 1, None]),
        helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1]),
        *(
            helper.make_tensor_value_info(f"past_key_values.{cache}", TensorProto.FLOAT, [None, 2, None, 3])
            for cache in CACHES
        ),
    ]
    outputs = [
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, None),
        *(helper.make_tensor_value_info(f"present.{cache}", TensorProto.FLOAT, None) for cache in CACHES),
    ]
    _save(directory / DECODER, nodes, inputs, outputs, constants)
    _save(
        directory / ENCODER,
        [helper.make_node("Unsqueeze", ["input_values", "axis"], ["last_hidden_state"])],
        [helper.make_tensor_value_info("input_values", TensorProto.FLOAT, [1, None])],
        [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, None)],
        constants[-1:],
    )
    vocabulary = {word: index for index, word in enumerate(WORDS)}
    Tokenizer(WordLevel(vocabulary, "<unk>")).save(str(directory / TOKENIZER))
    return directory


def _table(then: dict[int, int], score: float) -> np.ndarray:  # type: ignore[type-arg]
    table = np.zeros((len(WORDS), len(WORDS)), np.float32)
    for token, follower in then.items():
        table[token, follower] = score
    return table


def _save(
    path: Path,
    nodes: list[NodeProto],
    inputs: list[ValueInfoProto],
    outputs: list[ValueInfoProto],
    constants: list[TensorProto],
) -> None:
    graph = helper.make_graph(nodes, "made", inputs, outputs, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))


def test_a_transcript_goes_on_from_what_the_first_call_heard(tmp_path: Path) -> None:
    models = write_models(tmp_path, {1: 3, 3: END_ID, 4: END_ID}, {3: 4, 4: 5, 5: END_ID})
    assert MoonshineRecogniser(models).transcribe(SECOND) == "hello world again"


def test_the_first_token_is_never_the_end(tmp_path: Path) -> None:
    models = write_models(tmp_path, {1: END_ID}, dict.fromkeys(range(len(WORDS)), END_ID))
    assert MoonshineRecogniser(models).transcribe(SECOND) != ""


@pytest.mark.parametrize(("seconds", "words"), [(1, LEAST_TOKENS), (10, 65)])
def test_a_transcript_that_repeats_itself_ends_with_the_audio(tmp_path: Path, seconds: int, words: int) -> None:
    models = write_models(tmp_path, dict.fromkeys(range(len(WORDS)), 4), {})
    assert MoonshineRecogniser(models).transcribe(np.tile(SECOND, seconds)).split() == ["world"] * words


def test_a_file_that_is_missing_is_named_with_where_it_comes_from(tmp_path: Path) -> None:
    write_models(tmp_path, {}, {})
    (tmp_path / TOKENIZER).unlink()
    with pytest.raises(FileNotFoundError, match=rf"{TOKENIZER}; lab/train/README.md"):
        MoonshineRecogniser(tmp_path)


def test_of_silence_at_the_end_a_tenth_of_a_second_is_heard_and_pauses_stay() -> None:
    silence = np.zeros_like(SECOND)
    speech = np.concatenate([SECOND, silence, SECOND])
    assert len(without_last_silence(np.concatenate([speech, silence]))) == len(speech) + 1_600
    assert np.array_equal(without_last_silence(speech), speech)


def test_quotation_marks_are_no_part_of_a_word_but_an_apostrophe_within_one_is() -> None:
    assert words_of("' he said, \"'But it’s the ladies' room.'") == "he said but it's the ladies room".split()
