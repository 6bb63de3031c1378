"""`cosydit say` refuses what can't be spoken or written before it starts a service, and leaves no half file."""

from __future__ import annotations

import io
import sys
import time
import wave
from pathlib import Path

import pytest

from cosydit.cli import client, say
from cosydit.cli import main as cli
from cosydit.cli.client import speech_progress, with_default_door, written_whole
from cosydit.stack import stack
from cosydit.stack.checkpoint.checkpoints import CheckpointLayout
from gateway.chunking.policies import ExponentialChunks
from gateway.speech.request import SpeechRequest
from tests.bundled_voices import NAMES
from tests.workers import demo_checkpoint


@pytest.fixture
def no_services(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: stack.LocalStack) -> None:
        raise AssertionError("a service was started")

    monkeypatch.setattr(stack.LocalStack, "start", start)


@pytest.mark.usefixtures("no_services")
@pytest.mark.parametrize("command", [["say", "Hello.", "--out"], ["client", "--text", "Hello.", "--out"]])
@pytest.mark.parametrize(
    ("out", "reason"),
    [
        ("speech.mp3", "got speech.mp3, and a WAV file is written; name it speech.wav"),
        ("nowhere/speech.wav", "got nowhere/speech.wav, and there is no directory nowhere"),
        (".", "got ., which is a directory"),
    ],
)
def test_a_file_that_cant_be_written_is_refused_by_the_name_that_was_typed(
    command: list[str], out: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main([*command, out])
    assert reason in capsys.readouterr().err


@pytest.mark.usefixtures("no_services")
@pytest.mark.parametrize("command", [["say"], ["client", "--out", "a.wav", "--text"]])
def test_a_text_without_quotes_is_refused_with_how_to_give_it(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main([*command, "Hello", "world."])
    assert "unrecognized arguments: world.; put a text of several words in quotes" in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["--verbose"]])
@pytest.mark.parametrize("command", [["serve"], ["say", "Hello."]])
def test_a_wrong_directory_costs_one_line_and_a_traceback_only_where_asked_for(
    command: list[str], options: list[str], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert cli.main([*options, *command, "--checkpoint", "nowhere", "--device", "cpu"]) == 1
    assert f"cosydit {command[0]}: nowhere is not a checkpoint" in capsys.readouterr().err
    assert any(record.exc_info for record in caplog.records) == bool(options)


@pytest.mark.parametrize(
    ("words", "whole"),
    [
        ("client --text Hi.", "client http --text Hi."),
        ("--verbose client --text Hi.", "--verbose client http --text Hi."),
        ("client grpc --text Hi.", "client grpc --text Hi."),
        ("client --help", "client --help"),
        ("client", "client"),
        ("say client --seed 1", "say client --seed 1"),
    ],
)
def test_a_client_that_names_no_door_uses_the_gateways(words: str, whole: str) -> None:
    assert with_default_door(words.split()) == whole.split()


@pytest.mark.slow
@pytest.mark.usefixtures("no_services")
def test_an_unknown_voice_is_refused_with_those_that_there_are(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = demo_checkpoint(tmp_path_factory)
    assert cli.main(["say", "Hello.", "--voice", "bob", "--checkpoint", str(checkpoint)]) == 1
    assert "got the voice 'bob'" in (said := capsys.readouterr().err) and ", ".join(NAMES) in said


@pytest.mark.usefixtures("no_services")
@pytest.mark.parametrize(("words", "reason"), [([""], "the text is empty"), (["Hello.", "--seed=-1"], "got seed -1")])
def test_what_cant_be_spoken_is_refused(words: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["say", *words]) == 1
    assert reason in capsys.readouterr().err


def test_a_file_is_whole_or_is_as_it_was(tmp_path: Path) -> None:
    out = tmp_path / "speech.wav"
    with written_whole(out) as file:
        file.writeframes(b"\0\0" * 10)
    with pytest.raises(RuntimeError), written_whole(out) as file:
        file.writeframes(b"\0\0" * 20)
        raise RuntimeError("the LLM is gone")
    with wave.open(str(out)) as kept:
        assert (kept.getnframes(), kept.getframerate(), kept.getsampwidth()) == (10, 24_000, 2)
    assert list(tmp_path.iterdir()) == [out]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("kind", "is_shown"), [(Terminal, True), (io.StringIO, False)])
def test_long_speech_shows_how_much_there_is_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, kind: type[io.StringIO], is_shown: bool
) -> None:
    monkeypatch.setattr(client, "PROGRESS_AFTER_S", 0.0)
    monkeypatch.setattr(sys, "stderr", kind())
    with speech_progress("speaking a.wav") as progress:
        for _ in range(1, 200):
            progress(24_000)
            time.sleep(0.002)
    shown = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert ("speaking a.wav: " in shown and "s of audio in 00:00" in shown) is is_shown


def test_an_equal_seed_gives_an_equal_file_whatever_the_machines_speed(tmp_path: Path) -> None:
    options = stack.StackOptions(CheckpointLayout.under(tmp_path), tmp_path)
    config = say._gateway_config(options, SpeechRequest("Hello.", "default", 7))
    assert config.chunks.policy() == ExponentialChunks()
