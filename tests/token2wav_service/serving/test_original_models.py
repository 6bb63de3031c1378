"""`token2wav`, `vocoder` and `tensorrt_llm` of the original's other scripts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gateway.dialects.cosyvoice2_dit.drop_in import StreamingModel, WholeModel
from gateway.dialects.cosyvoice2_dit.tensorrt_llm import load_model
from gateway.errors import ConfigError
from llm_service.vocab import COSYVOICE2
from tests.token2wav_service.serving.conftest import Checkpoint
from tests.token2wav_service.serving.fake_llm import FakeLLMServer
from tests.token2wav_service.serving.fakes import FakePbUtils, FakeRequest
from tests.token2wav_service.streaming.family_factory import BLOCK, make_block_flow, make_causal_hift
from tests.token2wav_service.streaming.flow_factory import VOCAB, make_hift
from token2wav_service.checkpoint.family import Family
from token2wav_service.config import SynthesisPolicy, Token2WavConfig
from token2wav_service.errors import CheckpointError
from token2wav_service.models.vocoder.causal_vocoder_stream import CausalStreamVocoder
from token2wav_service.models.vocoder.hift import fold_weight_norm
from token2wav_service.models.vocoder.vocoder_stream import StreamVocoder
from token2wav_service.python_backend.inputs import OneByOneModel
from token2wav_service.serving import original_models
from token2wav_service.serving.original_models import TOKEN_OFFSET, WaveStreams, WholePass, vocode

POLICY = SynthesisPolicy(ode_steps=2)
PROMPT = 2 * BLOCK
TOKENS = np.random.default_rng(1).integers(0, VOCAB, 2 * BLOCK)


def make_whole(family: Family, policy: SynthesisPolicy = POLICY) -> WholePass:
    return WholePass(make_block_flow(family), Token2WavConfig(Path("unused"), synthesis=policy))


def request(tokens: Any, added: int, request_id: str = "", **more: Any) -> FakeRequest:
    rng = np.random.default_rng(0)
    tensors = {
        "target_speech_tokens": (np.asarray(tokens) + added)[None].astype(np.int32),
        "prompt_speech_tokens": (rng.integers(0, VOCAB, PROMPT) + added)[None].astype(np.int32),
        "prompt_speech_feat": rng.standard_normal((1, 2 * PROMPT, 80)).astype(np.float16),
        "prompt_spk_embedding": rng.standard_normal((1, 192)).astype(np.float16),
    }
    if "token_offset" in more:
        tensors["token_offset"] = np.array([[more["token_offset"]]], np.int32)
        tensors["finalize"] = np.array([[more["finalize"]]])
    return FakeRequest(tensors, request_id=request_id)


def answer(model: Any, *requests: FakeRequest) -> list[Any]:
    responses = model.execute(list(requests))
    assert all(response.error is None for response in responses), [r.error and r.error.message() for r in responses]
    return [next(iter(response.named().values())) for response in responses]


def mel_of(policy: SynthesisPolicy) -> list[Any]:
    """A first chunk, the last one, both at once, and the whole utterance."""
    whole = make_whole(Family.COSYVOICE3, policy)
    return answer(
        OneByOneModel(FakePbUtils(), lambda inputs, _: {"mel": whole.run(inputs, 0)[0].numpy()[None]}),
        request(TOKENS[: BLOCK + 3], 0, token_offset=0, finalize=False),
        request(TOKENS, 0, token_offset=BLOCK, finalize=True),
        request(TOKENS, 0, token_offset=0, finalize=True),
        request(TOKENS, 0),
    )


def test_mel_of_chunks_that_end_blocks_is_that_of_one_pass() -> None:
    first, last, both, whole = mel_of(POLICY)
    assert first.shape == last.shape == (1, 80, 2 * BLOCK) and first.dtype == np.float32
    np.testing.assert_allclose(np.concatenate([first, last], 2), both, atol=1e-4)
    assert np.abs(both - whole).max() > 1e-2, "a whole utterance is not block-masked"


def test_the_vocoder_gives_all_audio_but_that_of_the_last_eight_frames() -> None:
    causal = CausalStreamVocoder(fold_weight_norm(make_causal_hift()), SynthesisPolicy())
    vocoder = OneByOneModel(FakePbUtils(), lambda inputs, _: vocode(causal, inputs))
    mel = np.random.default_rng(2).standard_normal((1, 80, 30)).astype(np.float32)
    requests = [
        FakeRequest({"mel": np.ascontiguousarray(mel[:, :, :end]), "finalize": np.array([[is_last]])})
        for end, is_last in ((20, False), (30, True))
    ]
    first, whole = answer(vocoder, *requests)
    assert (first.shape, whole.shape) == ((1, 12 * 480), (1, 30 * 480))
    np.testing.assert_allclose(first, whole[:, : 12 * 480], atol=1e-4)
    (short,) = vocoder.execute([FakeRequest({"mel": mel[:, :, :8], "finalize": np.array([[False]])})])
    assert "got 8 mel frames, expected" in short.error.message()


def make_wave_model(whole: WholePass | None = None) -> OneByOneModel:
    vocoder = StreamVocoder(fold_weight_norm(make_hift()), SynthesisPolicy())
    return OneByOneModel(FakePbUtils(), WaveStreams(whole or make_whole(Family.COSYVOICE2), vocoder).speak)


def test_a_stream_s_audio_goes_by_its_request_id_and_is_as_long_as_its_tokens() -> None:
    model = make_wave_model()
    chunks = [(TOKENS[: BLOCK + 3], 0, False), (TOKENS, BLOCK, True)]
    requests = [
        request(tokens, TOKEN_OFFSET, name, token_offset=offset, finalize=is_last)
        for tokens, offset, is_last in chunks
        for name in ("a", "b")
    ]
    first, also_first, last, _ = answer(model, *requests)
    assert first.shape == (1, 12 * 480) and first.shape[1] + last.shape[1] == 2 * len(TOKENS) * 480
    np.testing.assert_array_equal(first, also_first)
    (whole,) = answer(model, request(TOKENS, TOKEN_OFFSET))
    assert whole.shape == (1, 2 * len(TOKENS) * 480)
    (gone,) = model.execute([requests[2]])
    assert "nothing is kept of stream 'a'" in gone.error.message()


def test_streams_that_nobody_ends_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(original_models, "MAX_STATES", 1)
    model = make_wave_model()
    begun = [request(TOKENS[:13], TOKEN_OFFSET, name, token_offset=0, finalize=False) for name in ("a", "b")]
    answer(model, *begun)
    (lost,) = model.execute([request(TOKENS, TOKEN_OFFSET, "a", token_offset=BLOCK, finalize=True)])
    assert "nothing is kept of stream 'a'" in lost.error.message()


def entry(tokens: Any, mel: Any, embedding: Any) -> dict[str, Any]:
    """What the original keeps of a voice in spk2info.pt."""
    kept = {"speech_token": tokens, "speech_feat": mel, "embedding": embedding}
    return {"prompt_text": "You hear me."} | {name: torch.from_numpy(value) for name, value in kept.items()}


def test_a_request_without_a_voice_is_spoken_in_the_one_of_spk2info(tmp_path: Path) -> None:
    whole = request(TOKENS, TOKEN_OFFSET)
    voice = [whole.tensors.pop(name).array for name in sorted(whole.tensors) if name.startswith("prompt")]
    mel, tokens, embedding = voice[0].astype(np.float32), voice[1], voice[2].astype(np.float32)
    torch.save({"001": entry(tokens - TOKEN_OFFSET, mel, embedding)}, tmp_path / "spk2info.pt")
    config = Token2WavConfig(Path("unused"), synthesis=POLICY)
    default = original_models.find_default_voice(tmp_path)
    model = make_wave_model(WholePass(make_block_flow(Family.COSYVOICE2), config, default))
    with_voice, without = answer(model, request(TOKENS, TOKEN_OFFSET), whole)
    np.testing.assert_allclose(with_voice, without, atol=1e-5)


def test_spk2info_without_the_voice_that_is_asked_for_is_refused(tmp_path: Path) -> None:
    assert original_models.find_default_voice(tmp_path) is None
    torch.save({"002": {"embedding": torch.zeros(1, 192)}}, tmp_path / "spk2info.pt")
    with pytest.raises(CheckpointError, match=r"expected a voice '001'; its entries are \['002'\]"):
        original_models.find_default_voice(tmp_path)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        pytest.param(request(TOKENS, 0), "all in 151663..158223", id="tokens without the offset"),
        pytest.param(
            request(TOKENS, TOKEN_OFFSET, token_offset=0, finalize=True), "needs a request id", id="no request id"
        ),
        pytest.param(
            request(TOKENS, TOKEN_OFFSET, "a", token_offset=18, finalize=False), "speaks 17 tokens", id="nothing new"
        ),
        pytest.param(
            FakeRequest({"target_speech_tokens": np.array([[TOKEN_OFFSET]], np.int32)}),
            "prompt_speech_tokens is missing",
            id="no voice",
        ),
    ],
)
def test_what_is_wrong_with_a_request_is_said(bad: FakeRequest, said: str) -> None:
    (response,) = make_wave_model().execute([bad])
    assert response.error.message().startswith("INVALID_REQUEST: ") and said in response.error.message()


WAIT_S = 30.0
SPOKEN = [COSYVOICE2.llm_id(token) for token in [*range(40), *range(10)]]
"""What the fake LLM answers, in two pieces."""


def load(checkpoint: Checkpoint, llm: FakeLLMServer, *, decoupled: bool, **more: str) -> Any:
    parameters = {"llm_tokenizer_dir": checkpoint.settings["llm_tokenizer_dir"], "llm_api_base": llm.url} | more
    config = {"parameters": {name: {"string_value": value} for name, value in parameters.items()}}
    return load_model(FakePbUtils(), json.dumps(config | {"model_transaction_policy": {"decoupled": decoupled}}))


@pytest.fixture(scope="module")
def streaming(small_checkpoint: Checkpoint, fake_llm: FakeLLMServer) -> Iterator[StreamingModel]:
    model = load(small_checkpoint, fake_llm, decoupled=True)
    yield model
    model.finalize()


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


def ask(model: StreamingModel, request: FakeRequest) -> list[Any]:
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
    streaming: StreamingModel, fake_llm: FakeLLMServer
) -> None:
    pieces = [ids_of(response) for response in ask(streaming, token_request())]
    assert pieces == [SPOKEN[:40], SPOKEN[40:]]
    (body,) = fake_llm.bodies
    lengths = (body["prompt"], body["max_tokens"], body["stop_token_ids"], body["seed"])
    assert lengths == ([0, 1, 2, 3, 4], 750, list(COSYVOICE2.end_ids), 42)
    drawn = [body[name] for name in ("temperature", "top_p", "top_k", "repetition_penalty")]
    assert drawn == pytest.approx([0.5, 0.9, 7, 1.25])


def test_what_is_left_out_is_as_the_originals_client_sets_it(
    streaming: StreamingModel, fake_llm: FakeLLMServer
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
    assert isinstance(model, WholeModel)
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
def test_what_is_wrong_with_a_request_for_tokens_is_said(
    streaming: StreamingModel, changes: dict[str, Any], said: str
) -> None:
    (answer,) = ask(streaming, token_request(**changes))
    assert answer.error.message().startswith("INVALID_REQUEST: ") and said in answer.error.message()


def test_an_llm_that_fails_is_a_typed_error(streaming: StreamingModel, fake_llm: FakeLLMServer) -> None:
    fake_llm.is_failing = True
    (answer,) = ask(streaming, token_request())
    assert answer.error.message().startswith("UNAVAILABLE: ")


def test_a_parameter_that_is_unknown_is_refused(small_checkpoint: Checkpoint, fake_llm: FakeLLMServer) -> None:
    with pytest.raises(ConfigError, match=r"parameters .*speed.*assemble the repository again"):
        load(small_checkpoint, fake_llm, decoupled=True, speed="fast")
