"""Random checkpoints of any size, with as many voices as a load test needs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from safetensors import safe_open

from cosydit.cli.main import main
from gateway.voices.registry import load_voices
from llm_service.checkpoint import NEVER_LOGIT, LLMShape, make_random_llm
from tests.file_modes import assert_all_have_the_usual_mode
from token2wav_service.checkpoint.make_voices import make_numbered_voices

TINY = LLMShape(hidden=32, layers=3, heads=4, key_value_heads=1, feed_forward=48, end_logit=NEVER_LOGIT)


def test_numbered_voices_are_usable_and_all_different(tmp_path: Path) -> None:
    make_numbered_voices(tmp_path, seed=3, count=4, seconds=1.0)
    voices = load_voices(tmp_path)
    samples = [soundfile.read(voice.audio_path)[0] for voice in voices]
    assert [voice.name for voice in voices] == ["voice-000", "voice-001", "voice-002", "voice-003"]
    assert len({voice.transcript for voice in voices}) == 4
    assert {len(each) for each in samples} == {16_000}
    assert all(not np.allclose(one, other) for i, one in enumerate(samples) for other in samples[:i])


def test_an_llm_has_the_sizes_it_was_given_every_user_can_read_it_and_its_index_names_every_weight(
    tmp_path: Path,
) -> None:
    make_random_llm(tmp_path, seed=0, shape=TINY)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["hidden_size"], config["num_hidden_layers"], config["intermediate_size"]) == (32, 3, 48)
    assert_all_have_the_usual_mode(tmp_path)
    # So that no server reads the speech head as one.
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    with safe_open(tmp_path / "model.safetensors", "pt") as weights:
        assert weights.get_slice("model.layers.2.self_attn.k_proj.weight").get_shape() == [8, 32]
        assert set(index) == set(weights.keys())
    assert set(index.values()) == {"model.safetensors"}


@pytest.mark.slow
def test_the_command_makes_more_voices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "made"
    command = ["checkpoint", "make-random", str(out), "--numbered-voices", "2"]
    assert main(command) == 0
    assert sorted(path.stem for path in (out / "voices").glob("*.wav")) == [
        "default",
        "second",
        "voice-000",
        "voice-001",
    ]
