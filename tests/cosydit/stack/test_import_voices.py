"""The original's spk2info.pt: what is taken over, what is left out and why, and that no code in it runs."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from cosydit.cli.main import main
from gateway.voices.directory import VoiceDirectory
from token2wav_service.checkpoint.family import Family, voice_model_version
from token2wav_service.checkpoint.spk2info import read_spk2info
from token2wav_service.errors import CheckpointError

TOKENS = 20


def features(frames: int = 2 * TOKENS) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(frames)
    tokens = torch.randint(0, 6561, (1, TOKENS), generator=generator, dtype=torch.int32)
    return tokens, torch.randn(1, frames, 80, generator=generator), torch.randn(1, 192, generator=generator)


def triton_entry(**changes: Any) -> dict[str, Any]:
    tokens, mel, embedding = features()
    return {"prompt_text": "You hear me.", "speech_token": tokens, "speech_feat": mel, "embedding": embedding} | changes


def python_entry() -> dict[str, Any]:
    tokens, mel, embedding = features(frames=2 * TOKENS + 1)
    entry = {"prompt_text": torch.tensor([[1, 0]]), "prompt_text_len": torch.tensor([2])}
    entry |= {"llm_prompt_speech_token": tokens, "flow_prompt_speech_token": tokens.to(torch.int64)}
    return entry | {"prompt_speech_feat": mel.half(), "llm_embedding": embedding, "flow_embedding": embedding.half()}


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """A checkpoint to name, and a tokenizer of two words."""
    (tmp_path / "token2wav").mkdir()
    for name in Family.STEP_AUDIO2.files.voice_models:
        (tmp_path / "token2wav" / name).write_bytes(name.encode())
    (tmp_path / "llm").mkdir()
    Tokenizer(WordLevel({"me": 0, "Hear": 1}, unk_token="me")).save(str(tmp_path / "llm" / "tokenizer.json"))
    return tmp_path


def import_voices(folder: Path, entries: object, *options: str) -> int:
    torch.save(entries, folder / "spk2info.pt")
    command = ["import-voices", str(folder / "spk2info.pt"), "--out", str(folder / "out")]
    return main([*command, "--model-dir", str(folder / "token2wav"), *options])


def test_both_layouts_become_created_voices(folders: Path) -> None:
    entries = {"001": triton_entry(), "中文女": python_entry()}
    assert import_voices(folders, entries, "--tokenizer-dir", str(folders / "llm"), "--consent", "ours") == 0
    directory = VoiceDirectory(folders / "out")
    one, other = directory.find("001"), directory.find("中文女")
    assert one is not None and other is not None
    assert (one.transcript, other.transcript) == ("You hear me.", "Hear me")
    assert (one.consent, one.seconds, one.audio_bytes) == ("ours", TOKENS / 25, 0)
    file = directory.read(one.id)
    assert file.model_version == voice_model_version(folders / "token2wav")
    np.testing.assert_array_equal(file.prompt_tokens, features()[0][0].numpy())
    np.testing.assert_array_equal(file.prompt_mel, features()[1][0].numpy())
    assert directory.read(other.id).prompt_mel.shape == (2 * TOKENS, 80)


def test_a_voice_without_a_transcript_is_taken_and_said(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert import_voices(folders, {"eva": python_entry()}) == 0
    assert "no transcript" in capsys.readouterr().out
    assert VoiceDirectory(folders / "out").voices()[0].transcript == ""


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        pytest.param(
            {"embedding": torch.zeros(1, 192)}, "lacks a tensor flow_prompt_speech_token", id="embedding alone"
        ),
        pytest.param(triton_entry(speech_feat=torch.zeros(1, 40, 40)), "another model's", id="mel bins"),
        pytest.param(triton_entry(embedding=torch.zeros(1, 256)), "another model's", id="embedding"),
        pytest.param(triton_entry(speech_token=torch.full((1, 9), 151663)), "outside 0..6560", id="LLM ids"),
        pytest.param(triton_entry(speech_token=torch.zeros(1, 9)), "outside 0..6560", id="tokens that are no integers"),
        pytest.param(triton_entry(speech_token=torch.zeros(1, 2, dtype=torch.int32)), "2 tokens", id="too short"),
        pytest.param(
            triton_entry(speech_token=torch.zeros(1, 451, dtype=torch.int32), speech_feat=torch.zeros(1, 902, 80)),
            "451 tokens",
            id="too long",
        ),
        pytest.param(triton_entry(speech_feat=torch.full((1, 40, 80), torch.nan)), "NaN", id="not finite"),
        pytest.param(triton_entry(speech_feat=torch.tensor(1.0)), "lacks a tensor prompt_speech_feat", id="a number"),
        pytest.param(triton_entry(prompt_text="x" * 2001), "2001 characters", id="a long transcript"),
    ],
)
def test_what_cant_be_spoken_in_is_left_out_and_named(
    folders: Path, capsys: pytest.CaptureFixture[str], entry: dict[str, Any], reason: str
) -> None:
    assert import_voices(folders, {"bad": entry, "good": triton_entry()}) == 1
    printed = capsys.readouterr().out
    assert "FAIL  bad: " in printed
    assert reason in printed
    assert [voice.name for voice in VoiceDirectory(folders / "out").voices()] == ["good"]


def test_names_that_are_paths_or_taken_are_left_out(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert import_voices(folders, {"../x": triton_entry(), "eva": triton_entry()}) == 1
    assert import_voices(folders, {"eva": triton_entry()}) == 1
    assert "already" in capsys.readouterr().out
    assert len(VoiceDirectory(folders / "out").voices()) == 1


class Hostile:
    """Writes a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.target,))


@pytest.mark.parametrize("save", [torch.save, lambda entries, path: path.write_bytes(pickle.dumps(entries))])
def test_code_in_the_file_is_refused_and_never_run(folders: Path, save: Any) -> None:
    target = folders / "was here"
    save({"eva": triton_entry(prompt_text=Hostile(target))}, folders / "spk2info.pt")
    with pytest.raises(CheckpointError, match="is never run"):
        read_spk2info(folders / "spk2info.pt")
    assert not target.exists()


@pytest.mark.parametrize("content", [None, b"", b"rubbish"], ids=["missing", "empty", "rubbish"])
def test_a_file_that_cant_be_read_ends_with_status_2(
    folders: Path, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    path = folders / "voices.pt"
    if content is not None:
        path.write_bytes(content)
    command = ["import-voices", str(path), "--out", str(folders / "out"), "--model-dir", str(folders / "token2wav")]
    assert main(command) == 1
    assert "voices.pt" in capsys.readouterr().err


def test_a_file_of_another_kind_is_refused(folders: Path) -> None:
    torch.save({"weights": torch.zeros(3)}, folders / "flow.pt")
    with pytest.raises(CheckpointError, match="mapping of names to voices"):
        read_spk2info(folders / "flow.pt")
