"""The feature numerics against the golden vectors (made with torchaudio, librosa and s3tokenizer)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.token2wav_service.features.helpers import ASSETS, golden
from token2wav_service.features.audio import resample_16k_to_24k
from token2wav_service.features.mel import (
    flow_mel_24k,
    flow_mel_filters,
    kaldi_fbank,
    s3_log_mel,
    s3_mel_filters,
    speaker_fbank,
)
from token2wav_service.features.prompt_models import SpeakerEncoder
from token2wav_service.types import FloatArray

Vectors = dict[str, FloatArray]


@pytest.mark.parametrize(
    ("name", "compute", "tolerance"),
    [
        pytest.param("audio_24k", lambda g: resample_16k_to_24k(g["audio_16k"]), 1e-6, id="resample"),
        pytest.param("mel_24k", lambda g: flow_mel_24k(g["audio_24k"][0]).T, 1e-3, id="flow mel"),
        pytest.param("mel_filters_24k", lambda g: flow_mel_filters(), 1e-6, id="flow filters"),
        pytest.param("s3_mel_filters", lambda g: s3_mel_filters(), 1e-6, id="tokenizer filters"),
        pytest.param("s3_log_mel", lambda g: s3_log_mel(g["audio_16k"]), 1e-3, id="tokenizer mel"),
        pytest.param("fbank", lambda g: kaldi_fbank(g["audio_16k"]), 1e-3, id="fbank"),
        pytest.param("fbank_mean_sub", lambda g: speaker_fbank(g["audio_16k"]), 1e-3, id="fbank mean_sub"),
    ],
)
def test_feature_equals_the_golden_vector(
    name: str, compute: Callable[[Vectors], FloatArray], tolerance: float
) -> None:
    vectors = golden()
    expected = vectors[name]
    if expected.ndim > 1 and expected.shape[0] == 1:
        expected = expected[0]

    got = compute(vectors)

    assert got.dtype == np.float32
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)


def test_speaker_embedding_equals_the_golden_vector() -> None:
    from safetensors.numpy import load_file

    folder = ASSETS / "h_checkpoint"
    expected = load_file(folder / "campplus_expected.safetensors")["embedding"]

    got = SpeakerEncoder(folder / "token2wav" / "campplus.onnx").embed_fbank(golden()["fbank_mean_sub"])

    np.testing.assert_allclose(got, expected[0], rtol=0, atol=1e-4)
