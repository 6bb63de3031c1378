"""The model `tensorrt_llm`: the tensors of an LLM inside Triton, answered by the LLM service over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gateway.dialects.cosyvoice2_dit.tensorrt_llm import StreamingTokens, WholeTokens, load_model
from gateway.errors import ConfigError
from llm_service.vocab import COSYVOICE2
from tests.token2wav_service.serving.conftest import Checkpoint
from tests.token2wav_service.serving.fake_llm import FakeLLMServer
from tests.token2wav_service.serving.fakes import FakePbUtils, FakeRequest

WAIT_S = 30.0
SPOKEN = [COSYVOICE2.llm_id(token) for token in [*range(40), *range(10)]]
"""What the fake LLM answers, in two pieces."""


def load(checkpoint: Checkpoint, llm: FakeLLMServer, *, decoupled: bool, **more: str) -> Any:
    parameters = {"llm_tokenizer_dir": checkpoint.settings["llm_tokenizer_dir"], "llm_api_base": llm.url} | more
    config = {"parameters": {name: {"string_value": value} for name, value in parameters.items()}}
    return load_model(FakePbUtils(), json.dumps(config | {"model_transaction_policy": {"decoupled": decoupled}}))


@pytest.fixture(scope="module")
def streaming(small_checkpoint: Checkpoint, fake_llm: FakeLLMServer) -> Iterator[StreamingTokens]:
    model = load(small_checkpoint, fake_llm, decoupled=True)
    yield model
    model.finalize()


@pytest.fixture(autouse=True)
def fresh_llm(fake_llm: FakeLLMServer) -> None:
    fake_llm.forget()
    fake_llm.is_failing = False


def token_request(**changes: Any) -> FakeRequest:
    """What the original's `cosyvoice2` sends its LLM, padded by two ids."""
    end = COSYVOICE2.end_ids[0]
    tensors: dict[str, Any] = {
        "input_ids": np.array([[*range(5), end, end]], np.int32),
        "input_lengths": np.array([[5]], np.int32),
        "request_output_len": np.array([[750]], np.int32),
        "end_id": np.array([[end]], np.int32),
        "pad_id": np.array([[end]], np.int32),
        "streaming": np.array([[True]]),
        "runtime_top_p": np.array([[0.9]], np.float32),
        "runtime_top_k": np.array([[7]], np.int32),
        "temperature": np.array([[0.5]], np.float32),
        "repetition_penalty": np.array([[1.25]], np.float32),
        "random_seed": np.array([[42]], np.uint64),
    }
    return FakeRequest({name: value for name, value in (tensors | changes).items() if value is not None})


def ask(model: StreamingTokens, request: FakeRequest) -> list[Any]:
    model.execute([request])
    assert request.sender.done.wait(WAIT_S) and request.sender.finals == 1
    return request.sender.sent


def ids_of(response: Any) -> list[int]:
    """Read an answer as the original does: the first of the beam, as far as its length says."""
    assert response.error is None, response.error.message()
    tensors = response.named()
    assert tensors["output_ids"].dtype == tensors["sequence_length"].dtype == np.int32
    return list(tensors["output_ids"][0][0][: tensors["sequence_length"][0][0]])


def test_an_answer_streams_in_pieces_and_the_request_reaches_the_llm(
    streaming: StreamingTokens, fake_llm: FakeLLMServer
) -> None:
    pieces = [ids_of(response) for response in ask(streaming, token_request())]
    assert pieces == [SPOKEN[:40], SPOKEN[40:]]
    (body,) = fake_llm.bodies
    lengths = (body["prompt"], body["max_tokens"], body["stop_token_ids"], body["seed"])
    assert lengths == ([0, 1, 2, 3, 4], 750, list(COSYVOICE2.end_ids), 42)
    drawn = [body[name] for name in ("temperature", "top_p", "top_k", "repetition_penalty")]
    assert drawn == pytest.approx([0.5, 0.9, 7, 1.25])


def test_what_is_left_out_is_as_the_originals_client_sets_it(
    streaming: StreamingTokens, fake_llm: FakeLLMServer
) -> None:
    names = ("input_lengths", "end_id", "streaming", "runtime_top_p", "runtime_top_k", "temperature", "random_seed")
    (whole,) = ask(streaming, token_request(**dict.fromkeys((*names, "pad_id", "repetition_penalty"))))
    assert ids_of(whole) == SPOKEN
    (body,) = fake_llm.bodies
    assert (len(body["prompt"]), body["top_k"], body["temperature"], body["seed"]) == (7, 50, 0.8, 0)


def test_one_that_is_not_decoupled_answers_once_and_several_side_by_side(
    small_checkpoint: Checkpoint, fake_llm: FakeLLMServer
) -> None:
    model = load(small_checkpoint, fake_llm, decoupled=False)
    assert isinstance(model, WholeTokens)
    quiet = [token_request(streaming=np.array([[False]])) for _ in range(2)]
    *answers, refused = model.execute([*quiet, token_request()])
    assert [ids_of(answer) for answer in answers] == [SPOKEN, SPOKEN]
    assert "INVALID_REQUEST: streaming is true" in refused.error.message()
    model.finalize()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param({"input_ids": None}, "input_ids is missing", id="no prompt"),
        pytest.param({"input_lengths": np.array([[9]], np.int32)}, "input_lengths is 9: expected 1 to 7", id="length"),
        pytest.param({"request_output_len": np.array([[0]], np.int32)}, "request_output_len is 0", id="no output"),
        pytest.param({"end_id": np.array([[2]], np.int32)}, "end_id is 2: expected an end token", id="end token"),
        pytest.param({"temperature": np.array([[1]], np.int32)}, "dtype int32: expected FP32", id="type"),
    ],
)
def test_what_is_wrong_with_a_request_is_said(streaming: StreamingTokens, changes: dict[str, Any], said: str) -> None:
    (answer,) = ask(streaming, token_request(**changes))
    assert answer.error.message().startswith("INVALID_REQUEST: ") and said in answer.error.message()


def test_an_llm_that_fails_is_a_typed_error(streaming: StreamingTokens, fake_llm: FakeLLMServer) -> None:
    fake_llm.is_failing = True
    (answer,) = ask(streaming, token_request())
    assert answer.error.message().startswith("UNAVAILABLE: ")


def test_a_parameter_that_is_unknown_is_refused(small_checkpoint: Checkpoint, fake_llm: FakeLLMServer) -> None:
    with pytest.raises(ConfigError, match=r"tensorrt_llm are .*'speed'.*assemble the repository again"):
        load(small_checkpoint, fake_llm, decoupled=True, speed="fast")
