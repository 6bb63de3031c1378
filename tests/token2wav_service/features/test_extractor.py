"""The whole way from samples to voice features, on the small stand-in models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, save_model

from tests.token2wav_service.features.helpers import noise, tone
from token2wav_service.checkpoint.make_onnx import make_speaker_encoder, make_speech_tokenizer
from token2wav_service.errors import CheckpointError, InvalidPromptError
from token2wav_service.features.extractor import PromptFeatureExtractor, voice_id_of
from token2wav_service.types import VoicePrompt


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


def test_voice_id_is_the_content_of_the_samples() -> None:
    samples = tone(1.0)
    changed = samples.copy()
    changed[-1] += 1e-6

    assert voice_id_of(samples) == voice_id_of(samples.copy())
    assert voice_id_of(np.repeat(samples, 2)[::2]) == voice_id_of(samples)  # whatever the memory layout
    assert voice_id_of(samples) != voice_id_of(changed)
    assert len(voice_id_of(samples)) == 64


def test_different_audio_gives_different_features(model_dir: Path) -> None:
    extractor = PromptFeatureExtractor(model_dir)

    one, other = (extractor.extract(VoicePrompt(noise(1.0, seed))) for seed in (0, 1))

    assert not np.array_equal(one.prompt_tokens, other.prompt_tokens)
    assert not np.allclose(one.speaker_embedding, other.speaker_embedding)


def test_unusable_prompt_is_refused(model_dir: Path) -> None:
    with pytest.raises(InvalidPromptError, match="20 ms"):
        PromptFeatureExtractor(model_dir).extract(VoicePrompt(tone(0.02)))


def test_tokenizer_takes_thirty_seconds_and_no_more(model_dir: Path) -> None:
    extractor = PromptFeatureExtractor(model_dir)

    assert len(extractor.tokens(noise(30.0))) == 750
    with pytest.raises(InvalidPromptError, match="at most 30 s"):
        extractor.tokens(noise(30.01))


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


@pytest.mark.slow
def test_features_import_neither_torch_nor_torchaudio() -> None:
    import subprocess
    import sys

    code = (
        "import sys, token2wav_service.features.extractor, token2wav_service.features.audio;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'torchaudio', 's3tokenizer')))"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
