"""The requests that programs send, as they send them: Open WebUI, SillyTavern and the harness `tts_bench`.

Read in their sources: Open WebUI, backend/open_webui/routers/audio.py; SillyTavern, src/endpoints/openai.js;
nari-labs/benchmarks at commit a2d65e1, tts_bench/targets.py. The programs themselves don't run here.
"""

from __future__ import annotations

import pytest

from gateway.audio import AudioFormat
from gateway.voices.registry import NamedVoice, VoiceAliases
from tests.gateway.doors.http_door import Door, opened_door
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, speech_deltas

Voices = list[NamedVoice]
OPEN_WEBUI_FALLBACK_VOICES = ("alloy", "echo", "fable", "onyx", "nova", "shimmer")
MP3_FRAME = (b"\xff\xf3", b"ID3")


async def open_webui_says(door: Door, **changes: object) -> bytes:
    """Send what its server sends for a sentence of a chat; the model is of its settings, the rest the browser's."""
    headers = {
        "Content-Type": "application/json",
        "Authorization": "Bearer sk-none",
        "User-Agent": "Python/3.11 aiohttp/3.12.15",
        "X-OpenWebUI-User-Name": "Ada%20L",
        "X-OpenWebUI-User-Role": "admin",
    }
    body = {"input": "Here is *your* answer.", "voice": "alloy", "model": "tts-1", **changes}
    response = await door.http.post("/v1/audio/speech", json=body, headers=headers)
    assert response.status_code == 200, response.text
    # What it takes for MP3, it keeps as it is; the rest it would have to convert.
    assert response.headers["content-type"] == "audio/mpeg"
    return response.content


@pytest.mark.parametrize("voice", [*OPEN_WEBUI_FALLBACK_VOICES, "anna"])
async def test_open_webui_hears_an_mp3_in_every_voice_that_it_offers(voices: Voices, voice: str) -> None:
    pytest.importorskip("av")
    llm = FakeLLM(speech_deltas(20))
    async with opened_door(
        llm, FakeToken2Wav(), voices, default_format=AudioFormat.MP3, aliases=VoiceAliases()
    ) as door:
        assert (await open_webui_says(door, voice=voice)).startswith(MP3_FRAME)
    assert llm.utterances[-1].text == "Here is your answer."


async def test_open_webui_asks_for_voices_and_models_without_a_key_and_falls_back(voices: Voices) -> None:
    async with opened_door(FakeLLM(speech_deltas(20)), FakeToken2Wav(), voices, aliases=VoiceAliases()) as door:
        listed = (await door.http.get("/v1/audio/voices")).json()
        models = await door.http.get("/v1/audio/models")
    # It takes a list of objects; anything else makes it offer OpenAI's names, which are all here.
    assert set(OPEN_WEBUI_FALLBACK_VOICES) <= {*listed["aliases"], *listed["voices"]}
    assert models.status_code == 404


@pytest.mark.parametrize("key", ["", "secret"])
async def test_sillytavern_hears_an_mp3_with_a_key_and_without(voices: Voices, key: str) -> None:
    pytest.importorskip("av")
    body = {"input": "“Well met,” she said.", "response_format": "mp3", "voice": "anna", "speed": 1, "model": "tts-1"}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}".strip(), "User-Agent": "node"}
    async with opened_door(FakeLLM(speech_deltas(20)), FakeToken2Wav(), voices) as door:
        response = await door.http.post("/v1/audio/speech", json=body, headers=headers)
    assert (response.status_code, response.headers["content-type"]) == (200, "audio/mpeg")
    assert response.content.startswith(MP3_FRAME)


@pytest.mark.parametrize(("form", "kind"), [("pcm", "audio/pcm"), ("wav", "audio/wav")])
async def test_tts_bench_hears_what_it_measures(voices: Voices, form: str, kind: str) -> None:
    asked = {"model": "Qwen3-TTS", "input": "So.", "voice": "Ryan", "language": "English", "response_format": form}
    async with opened_door(FakeLLM(speech_deltas(20)), FakeToken2Wav(), voices, aliases=VoiceAliases()) as door:
        await door.until_ready()
        assert (await door.http.get("/health")).status_code == 200
        answer = await door.http.post("/v1/audio/speech", json={**asked, "stream": True, "non_streaming_mode": False})
    assert (answer.status_code, answer.headers["content-type"]) == (200, kind)
    assert answer.headers["x-sample-rate"] == "24000"
