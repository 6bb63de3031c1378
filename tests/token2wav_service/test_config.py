"""Settings that would fail later are refused at the edge; a voice file and its version."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from token2wav_service.checkpoint.family import Family, voice_model_version
from token2wav_service.config import Token2WavConfig
from token2wav_service.errors import CheckpointError
from token2wav_service.voice_file import VoiceFile, VoiceFormatError, decode_voice_file, encode_voice_file


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("idle_timeout_s", value) for value in ("0", "-1", "nan", "inf", "soon")],
        *[("conformer_recent_frames", value) for value in ("-1", "0", "1")],
    ],
)
def test_a_value_that_can_not_work_is_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError):
        Token2WavConfig.from_mapping({"model_dir": ".", name: value})


def test_the_least_values_are_taken() -> None:
    config = Token2WavConfig.from_mapping(
        {"model_dir": ".", "idle_timeout_s": "0.5", "conformer_recent_frames": "2", "estimator_recent_frames": "0"}
    )
    assert config.idle_timeout_s == 0.5
    assert (config.synthesis.conformer_recent_frames, config.synthesis.estimator_recent_frames) == (2, 0)


def checkpoint(folder: Path) -> Path:
    folder.mkdir()
    for name in (*Family.STEP_AUDIO2.files.voice_models, "hift.pt"):
        (folder / name).write_bytes(name.encode())
    return folder


@pytest.mark.parametrize("name", Family.STEP_AUDIO2.files.voice_models)
def test_every_file_that_voices_depend_on_changes_the_version(tmp_path: Path, name: str) -> None:
    folder = checkpoint(tmp_path / "a")
    before = voice_model_version(folder)
    (folder / name).write_bytes(b"other weights")
    assert voice_model_version(folder) != before


def test_the_vocoder_does_not_change_the_version(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "a")
    before = voice_model_version(folder)
    (folder / "hift.pt").write_bytes(b"other weights")
    assert voice_model_version(folder) == before


def test_an_incomplete_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"flow\.yaml"):
        voice_model_version(tmp_path)


def voice(tokens: int = 5) -> VoiceFile:
    rng = np.random.default_rng(tokens)
    return VoiceFile(
        "model-1",
        rng.integers(0, 6561, tokens, dtype=np.int32),
        rng.standard_normal((2 * tokens, 80), dtype=np.float32),
        rng.standard_normal(192, dtype=np.float32),
        b"RIFF",
        {"voice": '{"name": "Änne"}'},
    )


def test_what_is_written_is_read_again() -> None:
    written = voice()
    read = decode_voice_file(encode_voice_file(written))
    assert (read.model_version, read.audio, read.notes) == ("model-1", b"RIFF", written.notes)
    for name in ("prompt_tokens", "prompt_mel", "speaker_embedding"):
        np.testing.assert_array_equal(getattr(read, name), getattr(written, name))
        assert getattr(read, name).dtype == getattr(written, name).dtype


def test_the_keepers_notes_cant_pass_for_the_files_own() -> None:
    read = decode_voice_file(encode_voice_file(replace(voice(), notes={"model_version": "forged", "format": "x"})))
    assert (read.model_version, read.notes) == ("model-1", {})


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        pytest.param(replace(voice(), prompt_mel=np.zeros((9, 80), np.float32)), "2 frames a token", id="frames"),
        pytest.param(replace(voice(), prompt_mel=np.full((10, 80), np.nan, np.float32)), "NaN", id="NaN"),
        pytest.param(replace(voice(), speaker_embedding=np.full(192, np.inf, np.float32)), "infinity", id="infinity"),
        pytest.param(replace(voice(), prompt_mel=np.zeros(10, np.float32)), "2 dimensions", id="dimensions"),
    ],
)
def test_features_that_are_no_voices_are_refused(changed: VoiceFile, word: str) -> None:
    with pytest.raises(VoiceFormatError, match=word):
        decode_voice_file(encode_voice_file(changed))


@pytest.mark.parametrize(
    ("data", "word"),
    [
        pytest.param(b"", "no safetensors", id="nothing"),
        pytest.param(encode_voice_file(voice())[:-1], "damaged", id="cut"),
        pytest.param(save({"weights": np.zeros(3, np.float32)}), "format None", id="another file"),
        pytest.param(encode_voice_file(voice()).replace(b'version":"1"', b'version":"9"'), "'9'", id="version"),
        pytest.param(encode_voice_file(voice()).replace(b"speaker_emb", b"speaker_EMB"), "speaker_EMB", id="name"),
        pytest.param(encode_voice_file(voice()).replace(b'"I32"', b'"F32"'), "expected I32", id="dtype"),
    ],
)
def test_a_file_of_another_kind_is_refused(data: bytes, word: str) -> None:
    with pytest.raises(VoiceFormatError, match=word):
        decode_voice_file(data)


def test_a_file_without_a_tensor_is_refused() -> None:
    header = {"__metadata__": {"format": "cosydit.voice", "format_version": "1", "model_version": "m"}}
    text = json.dumps(header).encode()
    with pytest.raises(VoiceFormatError, match="lacks the tensors"):
        decode_voice_file(len(text).to_bytes(8, "little") + text)


@given(st.data())
def test_a_damaged_file_is_read_or_refused_and_nothing_else(data: st.DataObject) -> None:
    good = encode_voice_file(voice(1))
    at = data.draw(st.integers(0, 700))
    damage = data.draw(st.binary(min_size=1, max_size=8))
    try:
        decode_voice_file(good[:at] + damage + good[at + len(damage) :])
    except VoiceFormatError:
        pass
