"""What a newcomer is told of Home Assistant, of ffplay and of the bundled voices; both services are faked."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import httpx
import pytest

from cosydit.cli.serve import _wyoming_settings, wyoming_line
from demo_voice.unpack import VOICES
from gateway.config import parse_args
from gateway.voices.registry import VoiceAliases, load_voices
from tests import ROOT
from tests.bundled_voices import MEN, NAMES, WOMEN
from tests.gateway.doors.http_door import opened_door
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, speech_deltas

TOKENS = 25
PCM_BYTES = TOKENS * 960 * 2
REQUIRED = ["--tokenizer-dir", "llm", "--voices-dir", "voices"]


def speaking() -> FakeLLM:
    return FakeLLM(speech_deltas(TOKENS))


def test_serve_opens_the_port_that_home_assistant_asks_for_and_says_so() -> None:
    wyoming = parse_args(REQUIRED).wyoming
    assert wyoming is not None and (wyoming.port, wyoming.shut_because) == (10200, None)
    assert wyoming_line(wyoming) == "Home Assistant: add the integration Wyoming Protocol with 127.0.0.1, port 10200"
    assert wyoming_line(parse_args([*REQUIRED, "--wyoming-port", "0"]).wyoming) == "Home Assistant: off"
    everywhere = wyoming_line(parse_args([*REQUIRED, "--wyoming-host", "0.0.0.0", "--insecure-wyoming"]).wyoming)
    assert everywhere.endswith("with this machine's address, port 10200")


def test_serve_goes_on_where_another_program_has_the_port(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as piper:
        port = piper.getsockname()[1]
        monkeypatch.setattr("gateway.dialects.wyoming.settings.DEFAULT_WYOMING_PORT", port)
        assert _wyoming_settings() == {"wyoming_port": "0"}
    assert f"something listens on port {port}; --wyoming-port names another" in caplog.text


def test_with_keys_serve_says_why_home_assistant_is_not_let_in(tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    keys.touch()
    line = wyoming_line(parse_args([*REQUIRED, "--keys-file", str(keys)]).wyoming)
    assert line == ("Home Assistant: off, API keys are set, and Wyoming has no keys; --insecure-wyoming opens it")


async def test_the_documented_pipe_into_ffplay_brings_raw_samples() -> None:
    page = (ROOT / "docs" / "smart-home.md").read_text("utf-8")
    found = re.search(r"curl -sN (\S+) .*?-d '(.*?)'", page, re.DOTALL)
    assert found is not None
    path = found[1].removeprefix("http://127.0.0.1:8080")
    async with opened_door(speaking(), FakeToken2Wav(), load_voices(VOICES)) as door:
        response: httpx.Response = await door.http.post(path, content=found[2])
    assert "-f s16le -ar 24000" in page
    assert (response.headers["x-sample-rate"], len(response.content)) == ("24000", PCM_BYTES)


async def test_the_list_of_the_bundled_voices_says_who_they_are() -> None:
    voices = load_voices(VOICES)
    async with opened_door(speaking(), FakeToken2Wav(), voices, aliases=VoiceAliases()) as door:
        listed = (await door.http.get("/v1/audio/voices")).json()
    told = {voice["name"]: voice for voice in listed["details"]}
    assert sorted(told) == NAMES
    assert {name: told[name]["gender"] for name in NAMES} == dict.fromkeys(WOMEN, "female") | dict.fromkeys(MEN, "male")
    assert "alloy" in told["default"]["aliases"]
    assert [name for name in NAMES if "nova" in told[name]["aliases"]] in [[name] for name in WOMEN]
