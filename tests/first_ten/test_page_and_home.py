"""What a newcomer does first in a browser, in Home Assistant, Open WebUI and SillyTavern, and what has to come of it.

The gateway's own application answers, with the bundled voices; both services behind it are faked. The page is opened
where a Chromium is installed.
"""

from __future__ import annotations

import re
import shutil
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
from wyoming.audio import AudioStop
from wyoming.info import Describe, Info
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeVoice

from cosydit.cli.serve import _wyoming_settings, wyoming_line
from demo_voice.unpack import VOICES
from gateway.audio import AudioFormat
from gateway.config import parse_args
from gateway.voices.registry import VoiceAliases, load_voices
from tests import ROOT
from tests.bundled_voices import NAMES, OTHER
from tests.gateway.doors.http_door import opened_door
from tests.gateway.doors.wyoming_door import ask, listen, opened_wyoming
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, speech_deltas
from tests.gateway.web.conftest import browser, visited

__all__ = ["browser"]

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


async def test_home_assistant_finds_the_voices_and_hears_an_announcement() -> None:
    async with opened_wyoming(speaking(), FakeToken2Wav(), load_voices(VOICES)) as door:
        async with door.client() as client:  # as its integration does, a connection for each
            await ask(client, Describe())
            (program,) = Info.from_event((await listen(client, "info")).events[0]).tts
        async with door.client() as client:
            await ask(client, Synthesize("The washing machine has finished.", SynthesizeVoice(OTHER)))
            heard = await listen(client, "audio-stop")
    assert [voice.name for voice in program.voices] == NAMES
    assert all(voice.languages[0].startswith("en") for voice in program.voices)
    assert all(voice.description.startswith(f"{voice.name}: ") for voice in program.voices), "what each is like"
    assert len(heard.pcm) == PCM_BYTES and AudioStop.is_type(heard.events[-1].type)


async def test_home_assistant_hears_an_assistant_while_it_writes() -> None:
    async with opened_wyoming(speaking(), FakeToken2Wav(), load_voices(VOICES)) as door, door.client() as client:
        answer = ["It is ", "nine degrees ", "and raining ", "in the harbour. ", "Take a coat, "]
        await ask(client, SynthesizeStart(), *map(SynthesizeChunk, answer))
        assert (await listen(client, "audio-chunk")).pcm, "before the text is complete"
        await ask(client, SynthesizeChunk("please."), Synthesize("".join(answer)), SynthesizeStop())
        assert (await listen(client, "synthesize-stopped")).kinds[-2:] == ["audio-stop", "synthesize-stopped"]


@pytest.mark.parametrize("program", ["Open WebUI", "SillyTavern"])
async def test_a_desktop_program_is_given_the_address_and_speaks(program: str) -> None:
    pytest.importorskip("av")
    body: dict[str, Any] = {"input": "Good morning!", "voice": "alloy", "model": "tts-1"}
    if program == "SillyTavern":
        body |= {"response_format": "mp3", "speed": 1}
    voices = load_voices(VOICES)
    async with opened_door(speaking(), FakeToken2Wav(), voices, None, AudioFormat.MP3, VoiceAliases()) as door:
        response = await door.http.post("/v1/audio/speech", json=body, headers={"Authorization": "Bearer sk-none"})
    assert (response.status_code, response.headers["content-type"]) == (200, "audio/mpeg")


async def test_the_documented_pipe_into_ffplay_brings_raw_samples(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("no curl on the PATH")
    page = (ROOT / "docs" / "smart-home.md").read_text("utf-8")
    found = re.search(r"curl -sN (\S+) .*?-d '(.*?)'", page, re.DOTALL)
    assert found is not None
    path = found[1].removeprefix("http://127.0.0.1:8080")
    async with opened_door(speaking(), FakeToken2Wav(), load_voices(VOICES)) as door:
        response: httpx.Response = await door.http.post(path, content=found[2])
    assert "-f s16le -ar 24000" in page
    assert (response.headers["x-sample-rate"], len(response.content)) == ("24000", PCM_BYTES)


@pytest.mark.asyncio(loop_scope="session")
async def test_the_page_speaks_the_text_that_stands_there_and_gives_it_away(browser: Any, tmp_path: Path) -> None:
    async with visited(browser, tmp_path, speaking()) as visit:
        await visit.page.click("#play")
        await visit.shows("#status", "Played 1.0 s of audio, no underruns.")
        async with visit.page.expect_download() as download:
            await visit.page.click("#save")
        assert (await download.value).suggested_filename == "speech.wav"
        await visit.shows("#curl", "curl http://127.0.0.1")
        await visit.shows("#history", "The harbour woke slowly.")
        await visit.page.click("#page-language")
        await visit.shows("#play", "播放")
