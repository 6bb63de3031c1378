"""`cosydit say` refuses what can't be spoken before it starts a service, and leaves no half file."""

from __future__ import annotations

import wave
from pathlib import Path

import pytest

from cosydit.cli import main as cli
from cosydit.cli import say
from cosydit.stack import stack
from tests.workers import demo_checkpoint


@pytest.fixture
def no_services(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: stack.LocalStack) -> None:
        raise AssertionError("a service was started")

    monkeypatch.setattr(stack.LocalStack, "start", start)


@pytest.mark.usefixtures("no_services")
@pytest.mark.parametrize("text", ["", "  ", " ... ", "🙂"])
def test_a_text_with_nothing_to_say_is_refused_before_anything_starts(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["say", text]) == 1
    assert "give at least one word" in capsys.readouterr().err


@pytest.mark.usefixtures("no_services")
def test_an_unknown_voice_is_refused_with_those_that_there_are(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = demo_checkpoint(tmp_path_factory)
    assert cli.main(["say", "Hello.", "--voice", "bob", "--checkpoint", str(checkpoint)]) == 1
    assert "got the voice 'bob'" in (said := capsys.readouterr().err) and "awb, default, slt" in said


def test_a_file_is_whole_or_is_as_it_was(tmp_path: Path) -> None:
    out = tmp_path / "speech.wav"
    with say._written_whole(out) as file:
        file.writeframes(b"\0\0" * 10)
    with pytest.raises(RuntimeError), say._written_whole(out) as file:
        file.writeframes(b"\0\0" * 20)
        raise RuntimeError("the LLM is gone")
    with wave.open(str(out)) as kept:
        assert (kept.getnframes(), kept.getframerate(), kept.getsampwidth()) == (10, 24_000, 2)
    assert list(tmp_path.iterdir()) == [out]


def test_the_command_tells_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("cosydit 0.")
