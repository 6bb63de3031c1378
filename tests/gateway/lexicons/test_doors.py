"""Pronunciations at every door: spoken as asked, the operator's default among them, and refused where they can't be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import pytest
from riva.proto import riva_tts_pb2
from tts_api.tts.v1 import speech_pb2, tts_service_pb2

from gateway.voices.registry import NamedVoice
from servicekit.checkpoint_file import CheckpointDeclaration
from tests.gateway.dialects.socket_door import AUTO, SINGLE, STREAM, begin, end
from tests.gateway.doors.grpc_door import failure_of, listen
from tests.gateway.lexicons.door import GRPC_ANNA, lexicons_dir, opened_door

Voices = list[NamedVoice]
TEXT, SPOKEN = "GNU on Xiaomi, in SQL.", ["guh noo on show me, in sequel."]


LOCATOR = {"pronunciation_dictionary_id": "tech", "version_id": "0AbC"}
"""The version is one of ElevenLabs': a file has no others."""


async def test_openai(voices: Voices, tmp_path: Path) -> None:
    async with opened_door(voices, lexicons_dir(tmp_path)) as door:
        body = {"model": "m", "input": TEXT, "voice": "default", "response_format": "pcm"}
        assert (await door.http.post("/v1/audio/speech", json={**body, "lexicons": ["tech"]})).status_code == 200
        assert door.spoken() == SPOKEN
        own = {"pronunciations": {"Xiaomi": "shao mee", "SQL": "squirrel"}, "lexicons": ["tech"]}
        await door.http.post("/v1/audio/speech", json={**body, **own})
        assert door.spoken() == ["guh noo on shao mee, in squirrel."], "a request's own words go first"
        await door.http.post("/v1/audio/speech", json={**body, "normalize": False})
        assert door.spoken() == [TEXT], "read as it is written"
        refused = await door.http.post("/v1/audio/speech", json={**body, "lexicons": ["yours"]})
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "lexicon_not_found")
        refused = await door.http.post("/v1/audio/speech", json={**body, "pronunciations": {"a": ""}})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "alias")
        refused = await door.http.post("/v1/audio/speech", json={**body, "lexicons": ["default"] * 9})
        assert refused.status_code == 400


async def test_elevenlabs_http(voices: Voices, tmp_path: Path) -> None:
    path = "/v1/text-to-speech/default?output_format=pcm_24000"
    async with opened_door(voices, lexicons_dir(tmp_path)) as door:
        asked = {"text": TEXT, "pronunciation_dictionary_locators": [LOCATOR]}
        assert (await door.http.post(path, json=asked)).status_code == 200
        assert door.spoken() == SPOKEN
        asked["pronunciation_dictionary_locators"] = [{"pronunciation_dictionary_id": "21m00Tcm4TlvDq8ikWAM"}]
        stored = await door.http.post(path, json=asked)
        assert (stored.status_code, stored.json()["detail"]["status"]) == (404, "lexicon_not_found")


async def test_elevenlabs_sockets(voices: Voices, tmp_path: Path) -> None:
    async with opened_door(voices, lexicons_dir(tmp_path)) as door:
        locators = [LOCATOR]
        async with door.client(AUTO) as client:
            await client.send(text=" ", context_id="c1", pronunciation_dictionary_locators=locators)
            await client.send(text=f"{TEXT} ", context_id="c1")
            await end(client, "c1")
            await client.until_final("c1")
            assert door.spoken() == SPOKEN
            await begin(client, "c2", f"{TEXT} ")
            await end(client, "c2")
            await client.until_final("c2")
            assert door.spoken() == ["guh noo on Xiaomi, in SQL."], "only the context that asked for it"
            unknown = [{"pronunciation_dictionary_id": "no"}]
            await client.send(text=TEXT, context_id="c3", pronunciation_dictionary_locators=unknown)
            assert (await client.receive())["errorCode"] == "lexicon_not_found"
        async with door.client(SINGLE) as client:
            await client.send(text=" ", pronunciation_dictionary_locators=locators)
            await client.send(text=TEXT)
            await client.send(text="")
            await client.until_closed()
            assert door.spoken() == SPOKEN


async def test_the_socket_of_sentences(voices: Voices, tmp_path: Path) -> None:
    async with opened_door(voices, lexicons_dir(tmp_path)) as door, door.client(STREAM) as client:
        await client.send(type="session.config", lexicons=["yours"])
        assert (await client.receive())["code"] == "lexicon_not_found"
        config = {
            "lexicons": ["tech"],
            "pronunciations": {"in": "within"},
            "response_format": "pcm",
            "stream_audio": True,
        }
        await client.send(type="session.config", word_timestamps=True, **config)
        await client.send(type="input.text", text=TEXT)
        await client.send(type="input.done")
        while (await client.receive())["type"] != "session.done":
            pass
        assert door.spoken() == ["guh noo on show me, within sequel."]


async def test_our_grpc(voices: Voices, tmp_path: Path) -> None:
    async with opened_door(voices, lexicons_dir(tmp_path)) as door:
        lexicons = [speech_pb2.Lexicon(id="tech")]
        config = speech_pb2.SpeechConfig(lexicons=lexicons, pronunciations={"on": "at"})
        asked = tts_service_pb2.SynthesizeRequest(text=TEXT, config=config)
        await listen(door.tts.Synthesize(asked, metadata=GRPC_ANNA))
        assert door.spoken() == ["guh noo at show me, in sequel."]
        for lexicon, code in (({"id": "yours"}, "NOT_FOUND"), ({"id": "tech", "version": "1"}, "INVALID_ARGUMENT")):
            config = speech_pb2.SpeechConfig(lexicons=[speech_pb2.Lexicon(**lexicon)])
            asked = tts_service_pb2.SynthesizeRequest(text=TEXT, config=config)
            failure = await failure_of(door.tts.Synthesize(asked, metadata=GRPC_ANNA))
            assert failure[0].name == code


@pytest.mark.parametrize(
    ("dictionary", "code", "told"),
    [
        ("NVIDIA  ɛnˈvɪdiə", grpc.StatusCode.INVALID_ARGUMENT, "CosyVoice3"),
        ("NVIDIA", grpc.StatusCode.INVALID_ARGUMENT, "two blanks"),
    ],
)
async def test_riva(voices: Voices, tmp_path: Path, dictionary: str, code: grpc.StatusCode, told: str) -> None:
    fields: dict[str, Any] = {"text": TEXT, "language_code": "en-US", "sample_rate_hz": 24000}
    async with opened_door(voices, lexicons_dir(tmp_path)) as door:
        asked = riva_tts_pb2.SynthesizeSpeechRequest(custom_dictionary="Xiaomi  show me, SQL  sequel", **fields)
        await door.riva.Synthesize(asked, metadata=GRPC_ANNA)
        assert door.spoken() == SPOKEN
        bad = riva_tts_pb2.SynthesizeSpeechRequest(custom_dictionary=dictionary, **fields)
        failure = await failure_of(door.riva.Synthesize(bad, metadata=GRPC_ANNA))
    assert failure[0] is code and told in failure[1]


async def test_phonemes_where_the_checkpoint_reads_them(voices: Voices, tmp_path: Path) -> None:
    default = {"type": "phoneme", "string_to_replace": "a", "phoneme": "kæt", "alphabet": "ipa"}
    (tmp_path / "default.json").write_text(json.dumps({"rules": [default]}))
    rules = [
        {"type": "phoneme", "string_to_replace": "SQL", "phoneme": "S IY1 K W AH0 L", "alphabet": "cmu-arpabet"},
        {"type": "phoneme", "string_to_replace": "小米", "phoneme": "xiao3 mi3", "alphabet": "pinyin"},
    ]
    pls = (
        '<lexicon version="1.0" xmlns="http://www.w3.org/2005/01/pronunciation-lexicon" alphabet="ipa" xml:lang="en">'
        "<lexeme><grapheme>GIF</grapheme><phoneme>dʒɪf</phoneme></lexeme></lexicon>"
    )
    (tmp_path / "words.json").write_text(json.dumps({"rules": rules}))
    (tmp_path / "file.pls").write_text(pls, encoding="utf-8")
    declared = CheckpointDeclaration(family="cosyvoice3", phonemes="cosyvoice3")
    async with opened_door(voices, tmp_path, declared) as door:
        path = "/v1/text-to-speech/default?output_format=pcm_24000&language_code=en"
        asked = {
            "text": "A GIF of SQL, 小米.",
            "pronunciation_dictionary_locators": [{"pronunciation_dictionary_id": name} for name in ("words", "file")],
        }
        assert (await door.http.post(path, json=asked)).status_code == 200
        assert door.spoken() == ["A [JH][IH1][F] of [S][IY1][K][W][AH0][L], [x][iǎo][m][ǐ]."]
        fields = {"text": "NVIDIA it is, a.", "encoding": "LINEAR_PCM", "sample_rate_hz": 24000}
        for written in ("ɛnˈvɪdiə", "{@EH0}{@N}{@V}{@IH1}{@D}{@IY0}{@AH0}"):
            asked_riva = riva_tts_pb2.SynthesizeSpeechRequest(custom_dictionary=f"NVIDIA  {written}", **fields)
            await door.riva.Synthesize(asked_riva, metadata=GRPC_ANNA)
            assert door.spoken() == ["[EH0][N][V][IH1][D][IY0][AH0] it is, [K][AE1][T]."]
