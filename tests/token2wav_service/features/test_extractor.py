"""The way from samples to voice features: golden vectors, spectra, and the whole on small stand-in models."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from onnx import TensorProto, helper, save_model

from tests.token2wav_service.features.helpers import ASSETS, golden, noise, tone
from token2wav_service.checkpoint.make_random import make_speaker_encoder, make_speech_tokenizer
from token2wav_service.errors import CheckpointError
from token2wav_service.features.audio import resample, resample_16k_to_24k
from token2wav_service.features.mel import (
    flow_mel_24k,
    flow_mel_filters,
    kaldi_fbank,
    s3_log_mel,
    s3_mel_filters,
    slaney_mel_filters,
    speaker_fbank,
)
from token2wav_service.features.prompt_models import PromptFeatureExtractor, SpeakerEncoder, voice_id_of
from token2wav_service.types import FloatArray, VoicePrompt


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models")
    make_speaker_encoder(directory / "campplus.onnx", seed=0)
    make_speech_tokenizer(directory / "speech_tokenizer_v2_25hz.onnx", seed=0)
    return directory


@pytest.mark.parametrize(
    ("samples", "tokens"),
    [(1920, 3), (16_000, 25), (16_160, 25), (16_320, 25), (16_700, 26), (288_000, 450)],
)
def test_tokens_and_mel_are_cut_to_the_same_time(model_dir: Path, samples: int, tokens: int) -> None:
    features = PromptFeatureExtractor(model_dir).extract(VoicePrompt(noise(18.0)[:samples]))

    assert features.prompt_tokens.shape == (tokens,)
    assert features.prompt_tokens.dtype == np.int64
    assert features.prompt_mel.shape == (2 * tokens, 80)
    assert features.prompt_mel.dtype == np.float32
    assert features.speaker_embedding.shape == (192,)


def test_tokens_are_told_before_the_rest_is_there(model_dir: Path) -> None:
    extractor, told = PromptFeatureExtractor(model_dir), Event()
    extractor.speaker_embedding = lambda samples: np.full(192, told.wait(10.0), np.float32)  # type: ignore[method-assign]

    features = extractor.extract(VoicePrompt(tone(1.0)), lambda tokens: told.set())

    assert features.speaker_embedding.all()


def test_voice_id_is_the_content_of_the_samples() -> None:
    samples = tone(1.0)
    changed = samples.copy()
    changed[-1] += 1e-6

    assert voice_id_of(samples) == voice_id_of(samples.copy())
    assert voice_id_of(np.repeat(samples, 2)[::2]) == voice_id_of(samples)  # whatever the memory layout
    assert voice_id_of(samples) != voice_id_of(changed)
    assert len(voice_id_of(samples)) == 64


@pytest.mark.parametrize("name", ["campplus.onnx", "speech_tokenizer_v2_25hz.onnx"])
def test_missing_or_damaged_model_is_named(model_dir: Path, tmp_path: Path, name: str) -> None:
    for path in model_dir.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / name).write_bytes(b"not ONNX")
    with pytest.raises(CheckpointError, match=f"{name} does not load"):
        PromptFeatureExtractor(tmp_path)

    (tmp_path / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        PromptFeatureExtractor(tmp_path)


@pytest.mark.parametrize("token_id", [-1, 6561])
def test_token_outside_the_vocabulary_is_an_error(model_dir: Path, tmp_path: Path, token_id: int) -> None:
    (tmp_path / "campplus.onnx").write_bytes((model_dir / "campplus.onnx").read_bytes())
    constant = helper.make_tensor("ids", TensorProto.INT64, [1, 2], [5, token_id])
    graph = helper.make_graph(
        [helper.make_node("Constant", [], ["ids"], value=constant)],
        "constant",
        [
            helper.make_tensor_value_info("mel", TensorProto.FLOAT, [1, 128, "T"]),
            helper.make_tensor_value_info("length", TensorProto.INT32, [1]),
        ],
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, 2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    save_model(model, tmp_path / "speech_tokenizer_v2_25hz.onnx")

    with pytest.raises(CheckpointError, match=r"expected 0\.\.6560"):
        PromptFeatureExtractor(tmp_path).tokens(tone(1.0))


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


@pytest.mark.parametrize("samples", [1920, 1921, 1922, 1923, 16_001])
def test_resampled_length_is_three_halves_rounded_up(samples: int) -> None:
    assert len(resample_16k_to_24k(noise(2.0)[:samples])) == ceil(3 * samples / 2)


@pytest.mark.parametrize("samples", [1920, 2079, 2080, 16_000])
def test_frame_counts_follow_the_hops(samples: int) -> None:
    audio = noise(1.0)[:samples]

    assert flow_mel_24k(resample_16k_to_24k(audio)).shape == (ceil(samples * 3 / 2) // 480, 80)
    assert s3_log_mel(audio).shape == (128, samples // 160)
    assert kaldi_fbank(audio).shape == (1 + (samples - 400) // 160, 80)


def test_a_shared_filter_bank_can_not_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        slaney_mel_filters(sample_rate_hz=24_000, n_fft=1920, n_mels=80)[0, 0] = 1


@pytest.mark.parametrize("rate_hz", [8_000, 22_050, 44_100, 48_000, 96_000])
def test_a_tone_keeps_its_pitch_and_level_at_16_khz(rate_hz: int) -> None:
    resampled = resample(tone(1.0, rate_hz), rate_hz, 16_000)

    assert len(resampled) == 16_000
    inner = slice(800, -800)  # the filter rings at both ends
    np.testing.assert_allclose(resampled[inner], tone(1.0)[inner], atol=1e-5)


def test_what_16_khz_can_not_carry_is_filtered_out() -> None:
    resampled = resample(tone(1.0, 48_000, frequency_hz=12_000.0), 48_000, 16_000)

    assert np.abs(resampled[800:-800]).max() < 1e-5
