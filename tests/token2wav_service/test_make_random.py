"""The small random checkpoint: layout, official names, repeatability, and that it makes sound."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from cosydit.cli.main import main
from tests import ASSETS
from token2wav_service.checkpoint.loader import load_flow, load_vocoder, read_config
from token2wav_service.checkpoint.make_random import make_random_token2wav
from token2wav_service.errors import CheckpointError
from token2wav_service.features.audio import load_prompt_audio
from token2wav_service.features.prompt_models import PromptFeatureExtractor
from token2wav_service.models.config import FlowConfig, HiFTConfig
from token2wav_service.models.flow.flow import Flow
from token2wav_service.models.vocoder.hift import HiFT
from token2wav_service.types import VoicePrompt

MANIFESTS = ASSETS / "checkpoint_manifests"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("made") / "checkpoint"
    assert run_command("make-random", str(directory), "--seed", "3") == 0
    return directory


def run_command(*arguments: str) -> int:
    return main(["checkpoint", *arguments])


def hashes(directory: Path) -> dict[str, str]:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_the_whole_official_layout_is_written(checkpoint: Path) -> None:
    token2wav = {
        "flow.yaml",
        "flow.pt",
        "hift.pt",
        "hift_config.json",
        "campplus.onnx",
        "speech_tokenizer_v2_25hz.onnx",
    }

    assert {path.name for path in (checkpoint / "token2wav").iterdir()} == token2wav
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= {p.name for p in (checkpoint / "llm").iterdir()}
    assert {p.name for p in (checkpoint / "voices").iterdir()} == {
        "default.wav",
        "default.txt",
        "second.wav",
        "second.txt",
    }
    assert "random weights" in (checkpoint / "checkpoint.json").read_text("utf-8")
    assert [path.name for path in checkpoint.parent.iterdir()] == ["checkpoint"]  # no scratch left behind


@pytest.mark.slow
def test_equal_seeds_give_equal_files_and_others_differ(checkpoint: Path, tmp_path: Path) -> None:
    assert run_command("make-random", str(tmp_path / "same"), "--seed", "3") == 0
    assert run_command("make-random", str(tmp_path / "other"), "--seed", "4") == 0

    first, other = hashes(checkpoint), hashes(tmp_path / "other")

    assert hashes(tmp_path / "same") == first
    seeded = ("token2wav/flow.pt", "token2wav/hift.pt", "token2wav/campplus.onnx", "llm/model.safetensors")
    assert all(other[name] != first[name] for name in (*seeded, "token2wav/speech_tokenizer_v2_25hz.onnx"))


def test_official_sizes_give_the_official_shapes() -> None:
    flow, hift = (json.loads((MANIFESTS / f"{name}.pt.json").read_text("utf-8")) for name in ("flow", "hift"))

    with torch.device("meta"):
        modules = (Flow(FlowConfig.from_mapping(flow["config"])), HiFT(HiFTConfig.from_mapping(hift["config"])))

    for module, manifest in zip(modules, (flow, hift), strict=True):
        assert {key: list(value.shape) for key, value in module.state_dict().items()} == manifest["shapes"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["flow: " + "[" * 20_000, "flow:\n" + "".join(" " * n + "a:\n" for n in range(1, 3000))]
)
def test_a_description_nested_thousands_of_levels_deep_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "flow.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"flow\.yaml is nested too deeply"):
        read_config(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_it_makes_audible_unclipped_voiced_noise(tmp_path: Path, seed: int) -> None:
    make_random_token2wav(tmp_path, seed)
    flow, hift = load_flow(tmp_path), load_vocoder(tmp_path)
    assert isinstance(flow, Flow) and isinstance(hift, HiFT)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 6561, (1, 40), generator=generator)
    speaker, noise = torch.randn(1, 192, generator=generator), torch.randn(1, 80, 80, generator=generator)

    with torch.inference_mode():
        mel, _ = flow(tokens, torch.tensor([40]), torch.tensor([True]), speaker, noise, 10)
        f0 = hift.f0_predictor(mel)
        phase, _ = hift.m_source.phase(f0, is_reference=True)
        source_noise = torch.randn(1, phase.shape[2], 9, generator=generator)
        samples = hift(mel, hift.m_source(f0, source_noise, phase))[0]

    assert samples.shape == (40 * 960,)
    assert 0.02 < float(samples.pow(2).mean().sqrt()) < 0.3
    assert float(samples.abs().max()) < 0.99
    assert float(((f0 > 60) & (f0 < 300)).float().mean()) > 0.5


def test_speech_tokens_span_the_vocabulary_and_follow_the_audio(checkpoint: Path) -> None:
    extractor = PromptFeatureExtractor(checkpoint / "token2wav")
    voices = [load_prompt_audio((checkpoint / "voices" / f"{name}.wav").read_bytes()) for name in ("default", "second")]

    first, second = (extractor.extract(VoicePrompt(samples)) for samples in voices)

    assert len(first.prompt_tokens) == 75
    assert len(set(first.prompt_tokens.tolist())) > 30
    assert (first.prompt_tokens != second.prompt_tokens).mean() > 0.5
    for features in (first, second):
        digits = features.prompt_tokens[:, None] // 3 ** np.arange(8) % 3
        assert set(np.unique(digits)) == {0, 1, 2}
        assert digits.std(axis=0).min() > 0.2  # every digit varies


@pytest.mark.slow
def test_a_directory_in_use_is_kept_unless_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("mine", "utf-8")

    assert run_command("make-random", str(tmp_path)) == 1
    assert "--force" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]

    assert run_command("make-random", str(tmp_path), "--force") == 0
    assert (tmp_path / "mine.txt").read_text("utf-8") == "mine"
    assert (tmp_path / "token2wav" / "flow.pt").is_file()


@pytest.mark.slow
def test_verify_accepts_what_make_random_wrote(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("verify", str(checkpoint)) == 0
    assert run_command("verify", str(checkpoint / "token2wav")) == 0
    assert "FAIL" not in capsys.readouterr().out


def test_verify_names_every_damaged_part(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (path for path in checkpoint.rglob("*") if path.is_file()):
        target = tmp_path / path.relative_to(checkpoint)
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(path.read_bytes())
    (tmp_path / "token2wav" / "hift.pt").unlink()
    (tmp_path / "token2wav" / "campplus.onnx").write_bytes(b"no")
    (tmp_path / "voices" / "default.wav").write_bytes(b"RIFF")
    (tmp_path / "llm" / "model.safetensors").write_bytes(b"no")

    assert run_command("verify", str(tmp_path)) == 1

    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAIL")]
    broken = ["token2wav/hift.pt", "token2wav/campplus.onnx", "llm/config.json", "voices/default.wav"]
    assert [next(name for name in broken if f"  {name}" in line) for line in lines] == broken
