"""What a newcomer types at the HTTP door first, with curl, and what has to come of it.

The gateway's own application answers, with the bundled voices; both services behind it are faked.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from demo_voice.unpack import VOICES
from gateway.voices.profile import VoiceAliases
from gateway.voices.registry import load_voices
from tests.bundled_voices import BUNDLED, MEN, NAMES, OTHER, WOMEN
from tests.gateway.doors.http_door import Door, opened_door
from tests.gateway.fakes import FakeLLM, speech_deltas
from tests.gateway.voices.fakes import UNREADABLE, FakeVoiceMaker, make_store

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")

HERE = "http://127.0.0.1:8080"
"""Where the documentation's commands find a gateway."""
JSON = "-H 'content-type: application/json'"
SECONDS = 1
"""The fake LLM's answer to anything."""


@dataclass
class Newcomer:
    """Types commands in a folder of its own."""

    door: Door
    folder: Path

    async def types(self, command: str) -> str:
        """Run a command that is meant for the usual address; return what it prints."""
        words = shlex.split(command.replace(HERE, self.door.url))
        curl = await asyncio.create_subprocess_exec(
            *words, "-sS", cwd=self.folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        printed, _ = await asyncio.wait_for(curl.communicate(), 20)
        assert curl.returncode == 0, printed.decode()
        return printed.decode("utf-8", "replace")

    async def reads(self, command: str) -> Any:
        return json.loads(await self.types(command))

    async def says(self, **fields: object) -> str:
        """Ask OpenAI's route; the audio goes into a file."""
        body = json.dumps({"model": "tts-1", "input": "Hello there.", "voice": "alloy", **fields})
        return await self.types(f"curl {HERE}/v1/audio/speech {JSON} -d '{body}' -o speech -w '%{{http_code}}'")

    @property
    def file(self) -> bytes:
        return (self.folder / "speech").read_bytes()

    @property
    def spoken_in(self) -> str:
        """The name of the bundled voice that spoke last."""
        heard = self.door.llm.utterances[-1].reference_text
        return next(name for name, voice in BUNDLED.items() if voice.transcript == heard)


@asynccontextmanager
async def arrived(folder: Path) -> AsyncIterator[Newcomer]:
    llm, maker = FakeLLM(speech_deltas(25 * SECONDS)), FakeVoiceMaker()
    store = make_store(folder / "created", maker)
    async with opened_door(llm, maker, load_voices(VOICES), store, aliases=VoiceAliases()) as door:
        await door.until_ready()
        yield Newcomer(door, folder)


# Row 8: voices


async def test_the_list_of_voices_says_who_they_are(tmp_path: Path) -> None:
    async with arrived(tmp_path) as newcomer:
        listed = await newcomer.reads(f"curl {HERE}/v1/audio/voices")
        elevenlabs = await newcomer.reads(f"curl {HERE}/v1/voices -H 'xi-api-key: any'")
    told = {voice["name"]: voice for voice in listed["details"]}
    assert sorted(told) == NAMES
    assert {name: told[name]["gender"] for name in NAMES} == dict.fromkeys(WOMEN, "female") | dict.fromkeys(MEN, "male")
    assert "alloy" in told["default"]["aliases"]
    assert [name for name in NAMES if "nova" in told[name]["aliases"]] in [[name] for name in WOMEN]
    assert all(voice["description"] and voice["labels"]["language"] for voice in elevenlabs["voices"])


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [("alloy", ["default"]), ("nova", WOMEN), ("Shimmer", WOMEN), ("onyx", MEN), (OTHER, [OTHER])],
)
async def test_openais_names_speak_in_voices_of_their_kind(tmp_path: Path, asked: str, wanted: list[str]) -> None:
    async with arrived(tmp_path) as newcomer:
        assert await newcomer.says(voice=asked) == "200"
        assert newcomer.spoken_in in wanted


async def test_a_voice_that_is_not_there_is_answered_with_those_that_are(tmp_path: Path) -> None:
    async with arrived(tmp_path) as newcomer:
        assert await newcomer.says(voice="Rachel") == "404"
        message = json.loads(newcomer.file)["error"]["message"]
    assert all(name in message for name in (*NAMES, "alloy", "nova", "cedar", "ryan"))


# Row 9: HTTP for people


async def test_the_server_describes_itself(tmp_path: Path) -> None:
    async with arrived(tmp_path) as newcomer:
        api = await newcomer.reads(f"curl {HERE}/openapi.json")
        page = await newcomer.types(f"curl {HERE}/docs")
    assert api["openapi"].startswith("3.") and {"/v1/audio/speech", "/v1/voices/{voice}"} <= set(api["paths"])
    assert "<html" in page and not re.search(r"https?://", page)


async def test_the_health_of_the_server_is_asked_by_its_usual_name(tmp_path: Path) -> None:
    async with arrived(tmp_path) as newcomer:
        assert await newcomer.types(f"curl -o answer -w '%{{http_code}}' {HERE}/health") == "200"


@pytest.mark.parametrize("language", ["English", "english", "Chinese", "Auto", "en"])
async def test_a_language_may_have_its_name(tmp_path: Path, language: str) -> None:
    async with arrived(tmp_path) as newcomer:
        assert await newcomer.says(language=language) == "200"


async def test_the_public_benchmark_is_answered_without_an_option(tmp_path: Path) -> None:
    model = "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice"
    common = {"model": model, "voice": "Ryan", "language": "English", "stream": True, "non_streaming_mode": False}
    async with arrived(tmp_path) as newcomer:
        for fields in ({"response_format": "pcm", "stream_format": "audio"}, {"response_format": "pcm"}):
            assert await newcomer.says(**common, **fields) == "200"
            assert len(newcomer.file) == SECONDS * 24_000 * 2
        assert await newcomer.says(**common, response_format="wav") == "200"
        assert newcomer.file[:4] == b"RIFF"


async def test_what_elevenlabs_sdk_asks_for_is_there(tmp_path: Path) -> None:
    key = "-H 'xi-api-key: any'"
    async with arrived(tmp_path) as newcomer:
        voice = await newcomer.reads(f"curl {HERE}/v1/voices/{OTHER} {key}")
        user = await newcomer.reads(f"curl {HERE}/v1/user {key}")
        subscription = await newcomer.reads(f"curl {HERE}/v1/user/subscription {key}")
        body = f"""{JSON} {key} -d '{{"text": "Hi."}}'"""
        spoken = f"{HERE}/v1/text-to-speech/{OTHER}/with-timestamps?output_format=pcm_8000"
        timed = await newcomer.reads(f"curl {spoken} {body}")
    assert (voice["voice_id"], voice["labels"]["gender"]) == (OTHER, "female" if OTHER in WOMEN else "male")
    assert user["subscription"]["status"] == subscription["status"] == "active"
    assert "".join(timed["alignment"]["characters"]) == "Hi."


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        pytest.param("/v1/audio/speach", "error", id="OpenAI"),
        pytest.param(f"/v1/text-to-speech/{OTHER}/streem", "detail", id="ElevenLabs"),
        pytest.param("/v1/voices/Rachel", "detail", id="ElevenLabs, a voice"),
        pytest.param("/v1/audio/voices/Rachel", "error", id="a voice"),
    ],
)
async def test_a_slip_is_answered_in_the_shape_of_its_door(tmp_path: Path, path: str, shape: str) -> None:
    async with arrived(tmp_path) as newcomer:
        answer = await newcomer.reads(f"curl {HERE}{path}")
    assert set(answer) == {shape} and answer[shape]["message"]


# Row 10: telephony and files


@pytest.mark.parametrize(
    ("fields", "wanted_bytes"),
    [
        pytest.param({"response_format": "pcm_mulaw"}, 8000, id="mu-law"),
        pytest.param({"response_format": "mulaw", "sample_rate": 8000}, 8000, id="mu-law with its rate"),
        pytest.param({"response_format": "pcm_alaw"}, 8000, id="A-law"),
        pytest.param({"response_format": "pcm", "sample_rate": 16_000}, 32_000, id="16 kHz"),
    ],
)
async def test_audio_for_telephones_comes_as_it_is_asked_for(
    tmp_path: Path, fields: dict[str, object], wanted_bytes: int
) -> None:
    async with arrived(tmp_path) as newcomer:
        assert await newcomer.says(**fields) == "200"
        assert len(newcomer.file) == SECONDS * wanted_bytes


async def test_a_wav_file_says_the_rate_that_was_asked_for(tmp_path: Path) -> None:
    async with arrived(tmp_path) as newcomer:
        assert await newcomer.says(response_format="wav", sample_rate=8000) == "200"
        assert struct.unpack("<I", newcomer.file[24:28]) == (8000,)
        assert await newcomer.says(response_format="wav", sample_rate=4000) == "400"
        assert "8000 to 48000" in newcomer.file.decode()


@pytest.mark.slow  # a recording is decoded in a process of its own
@pytest.mark.parametrize("name", ["m4a", "webm"])
async def test_a_recording_of_a_telephone_or_a_browser_becomes_a_voice(tmp_path: Path, name: str) -> None:
    pytest.importorskip("av", reason="the audio extra is not installed")
    from tests.gateway.voices.recorded import recording

    (tmp_path / f"me.{name}").write_bytes(recording(name))
    async with arrived(tmp_path) as newcomer:
        form = f"-F audio_sample=@me.{name} -F name=eva -F consent='Eva, 3 May'"
        assert (await newcomer.reads(f"curl {form} {HERE}/v1/audio/voices"))["success"] is True
        assert await newcomer.says(voice="eva") == "200"


@pytest.mark.slow
async def test_a_file_that_is_no_recording_is_refused_in_plain_words(tmp_path: Path) -> None:
    (tmp_path / "me.m4a").write_bytes(b"\x00\x00\x00\x20ftypM4A " + UNREADABLE * 20)
    async with arrived(tmp_path) as newcomer:
        form = "-F audio_sample=@me.m4a -F name=eva -F consent=yes"
        answer = await newcomer.types(f"curl {form} {HERE}/v1/audio/voices")
    assert json.loads(answer)["error"]["code"] == "invalid_voice_prompt"
    assert "m4a" in answer and "0x" not in answer
