"""The feature models against fakes: the original's tensors, one response per request, errors with a code."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from tests.token2wav_service.serving.fakes import FakePbUtils, FakeRequest
from tests.workers import random_checkpoint
from token2wav_service.checkpoint.family import open_features
from token2wav_service.python_backend.inputs import OneByOneModel
from token2wav_service.serving.feature_models import embed, tokenize
from token2wav_service.types import FloatArray, IntArray


class FakeExtractor:
    """Gives a token per 640 samples, all equal to the rounded mean, and the mean as embedding."""

    def tokens(self, samples: FloatArray) -> IntArray:
        return np.full(len(samples) // 640, round(float(samples.mean())), np.int64)

    def speaker_embedding(self, samples: FloatArray) -> FloatArray:
        return np.full(192, samples.mean(), np.float32)


def audio_tokenizer(extractor: Any) -> OneByOneModel:
    return OneByOneModel(FakePbUtils(), lambda inputs, _: tokenize(extractor, inputs))


def speaker_embedding(extractor: Any) -> OneByOneModel:
    return OneByOneModel(FakePbUtils(), lambda inputs, _: embed(extractor, inputs))


def tokenizer_request(rows: list[float], lengths: list[int], width: int = 6400) -> FakeRequest:
    waves = np.repeat(np.array(rows, np.float32)[:, None], width, axis=1)
    return FakeRequest({"reference_wav": waves, "reference_wav_len": np.array(lengths, np.int32)[:, None]})


def test_audio_tokenizer_trims_the_padding_and_answers_each_request_of_a_batch() -> None:
    requests = [tokenizer_request([3.0], [6400]), tokenizer_request([7.0], [1280])]
    first, second = audio_tokenizer(FakeExtractor()).execute(requests)
    assert first.named()["prompt_speech_tokens"].tolist() == [[3] * 10]
    assert second.named()["prompt_speech_tokens"].tolist() == [[7] * 2]
    assert second.named()["prompt_speech_tokens"].dtype == np.int32


def test_audio_tokenizer_keeps_the_rows_of_one_request_apart() -> None:
    (answer,) = audio_tokenizer(FakeExtractor()).execute([tokenizer_request([1.0, 2.0], [640, 640])])
    assert answer.named()["prompt_speech_tokens"].tolist() == [[1], [2]]


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(tokenizer_request([1.0], [0]), id="length 0"),
        pytest.param(tokenizer_request([1.0], [6401]), id="longer than the wave"),
        pytest.param(tokenizer_request([1.0, 2.0], [640]), id="a length is missing"),
        pytest.param(tokenizer_request([1.0, 2.0], [640, 1280]), id="rows of different lengths"),
        pytest.param(FakeRequest({"reference_wav": np.ones((1, 640), np.float32)}), id="no length"),
        pytest.param(tokenizer_request([float("nan")], [640]), id="not finite"),
    ],
)
def test_a_bad_request_is_an_error_and_the_others_are_answered(request_: FakeRequest) -> None:
    bad, good = audio_tokenizer(FakeExtractor()).execute([request_, tokenizer_request([1.0], [640])])
    assert bad.error.message().startswith("INVALID_REQUEST: ")
    assert good.error is None


@pytest.mark.parametrize("samples", [1, 399, 480_001, 300 * 16_000])
def test_a_prompt_that_is_too_short_or_too_long_is_its_callers_fault(samples: int) -> None:
    wave = np.full((1, samples), 0.25, np.float32)
    tokens = FakeRequest({"reference_wav": wave, "reference_wav_len": np.array([[samples]], np.int32)})
    (answer,) = audio_tokenizer(FakeExtractor()).execute([tokens])
    (embedding,) = speaker_embedding(FakeExtractor()).execute([FakeRequest({"reference_wav": wave})])
    for each in (answer, embedding):
        assert each.error.message().startswith(f"INVALID_PROMPT: the prompt has {samples} samples at 16000 Hz")


@pytest.mark.parametrize("samples", [400, 480_000])
def test_the_shortest_and_the_longest_prompt_give_features(
    samples: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    extractor = open_features(random_checkpoint(tmp_path_factory) / "token2wav")
    wave = (0.1 * np.random.default_rng(0).standard_normal((1, samples))).astype(np.float32)
    tokens = FakeRequest({"reference_wav": wave, "reference_wav_len": np.array([[samples]], np.int32)})
    (answer,) = audio_tokenizer(extractor).execute([tokens])
    assert answer.named()["prompt_speech_tokens"].shape == (1, -(-(samples // 160) // 4))
    (answer,) = speaker_embedding(extractor).execute([FakeRequest({"reference_wav": wave})])
    assert np.isfinite(answer.named()["prompt_spk_embedding"]).all()


def test_a_cancelled_request_is_not_computed() -> None:
    request = tokenizer_request([1.0], [640])
    request.sender.cancelled = True
    (answer,) = audio_tokenizer(FakeExtractor()).execute([request])
    assert answer.error.message().startswith("CANCELLED: ")


def test_speaker_embedding_is_half_precision() -> None:
    request = FakeRequest({"reference_wav": np.full((2, 800), 0.25, np.float32)})
    (answer,) = speaker_embedding(FakeExtractor()).execute([request])
    embedding: Any = answer.named()["prompt_spk_embedding"]
    assert (embedding.dtype, embedding.shape) == (np.float16, (2, 192))
    assert (embedding == np.float16(0.25)).all()


@pytest.mark.slow
def test_the_feature_processes_import_no_torch() -> None:
    program = (
        "import sys, token2wav_service.serving.feature_models, token2wav_service.features.prompt_models\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'torchaudio')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
