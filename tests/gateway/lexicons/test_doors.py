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
from tests.gateway.lexicons.door import BOB, GRPC_ANNA, Door, created_settings, opened_door

Voices = list[NamedVoice]
API = "/v1/pronunciation-dictionaries"
TEXT, SPOKEN = "GNU on Xiaomi, in SQL.", ["guh noo on show me, in sequel."]
RULES = [
    {"type": "alias", "string_to_replace": "Xiaomi", "alias": "show me"},
    {"type": "alias", "string_to_replace": "sql", "alias": "sequel", "case_sensitive": False, "word_boundaries": True},
]
PHONEME = {"type": "phoneme", "string_to_replace": "a", "phoneme": "x", "alphabet": "ipa"}


async def create(door: Door, **changes: Any) -> dict[str, Any]:
    answer = await door.http.post(f"{API}/add-from-rules", json={"name": "mine", "rules": RULES, **changes})
    assert answer.status_code == 200, answer.text
    created: dict[str, Any] = answer.json()
    return created


def locator(created: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"pronunciation_dictionary_id": created["id"], "version_id": created["version_id"], **changes}


async def test_openai(voices: Voices, tmp_path: Path) -> None:
    async with opened_door(voices, created_settings(tmp_path)) as door:
        created = await create(door)
        body = {"model": "m", "input": TEXT, "voice": "default", "response_format": "pcm"}
        for lexicons in ([created["id"]], ["mine"], [{"id": "mine", "version": created["version_id"]}]):
            assert (await door.http.post("/v1/audio/speech", json={**body, "lexicons": lexicons})).status_code == 200
            assert door.spoken() == SPOKEN
        own = {"pronunciations": {"Xiaomi": "shao mee", "SQL": "squirrel"}, "lexicons": ["mine"]}
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
    async with opened_door(voices, created_settings(tmp_path)) as door:
        created = await create(door)
        asked = {"text": TEXT, "pronunciation_dictionary_locators": [locator(created)]}
        assert (await door.http.post(path, json=asked)).status_code == 200
        assert door.spoken() == SPOKEN
        await door.http.post(f"{API}/{created['id']}/remove-rules", json={"rule_strings": ["sql"]})
        for version, expected in ((created["version_id"], SPOKEN), (None, ["guh noo on show me, in SQL."])):
            asked["pronunciation_dictionary_locators"] = [locator(created, version_id=version)]
            await door.http.post(path, json=asked)
            assert door.spoken() == expected
        stolen = await door.http.post(path, json=asked, headers=BOB)
        assert (stolen.status_code, stolen.json()["detail"]["status"]) == (404, "lexicon_not_found")
        asked["pronunciation_dictionary_locators"] = [locator(created, version_id="version_0")]
        assert (await door.http.post(path, json=asked)).status_code == 404


async def test_elevenlabs_sockets(voices: Voices, tmp_path: Path) -> None:
    async with opened_door(voices, created_settings(tmp_path)) as door:
        locators = [locator(await create(door))]
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
            await client.send(
                text=TEXT,
                context_id="c3",
                pronunciation_dictionary_locators=[locator({"id": "no", "version_id": None})],
            )
            assert (await client.receive())["errorCode"] == "lexicon_not_found"
        async with door.client(SINGLE) as client:
            await client.send(text=" ", pronunciation_dictionary_locators=locators)
            await client.send(text=TEXT)
            await client.send(text="")
            await client.until_closed()
            assert door.spoken() == SPOKEN


async def test_the_socket_of_sentences(voices: Voices, tmp_path: Path) -> None:
    async with opened_door(voices, created_settings(tmp_path)) as door, door.client(STREAM) as client:
        await create(door)
        await client.send(type="session.config", lexicons=["yours"])
        assert (await client.receive())["code"] == "lexicon_not_found"
        config = {
            "lexicons": ["mine"],
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
    async with opened_door(voices, created_settings(tmp_path)) as door:
        created = await create(door)
        lexicons = [speech_pb2.Lexicon(id=created["id"], version=created["version_id"])]
        config = speech_pb2.SpeechConfig(lexicons=lexicons, pronunciations={"on": "at"})
        asked = tts_service_pb2.SynthesizeRequest(text=TEXT, config=config)
        await listen(door.tts.Synthesize(asked, metadata=GRPC_ANNA))
        assert door.spoken() == ["guh noo at show me, in sequel."]
        config = speech_pb2.SpeechConfig(lexicons=[speech_pb2.Lexicon(id="yours")])
        asked = tts_service_pb2.SynthesizeRequest(text=TEXT, config=config)
        failure = await failure_of(door.tts.Synthesize(asked, metadata=GRPC_ANNA))
        assert failure[0] is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("dictionary", "code", "told"),
    [
        ("NVIDIA  ɛnˈvɪdiə", grpc.StatusCode.INVALID_ARGUMENT, "CosyVoice3"),
        ("NVIDIA", grpc.StatusCode.INVALID_ARGUMENT, "two blanks"),
    ],
)
async def test_riva(voices: Voices, tmp_path: Path, dictionary: str, code: grpc.StatusCode, told: str) -> None:
    fields: dict[str, Any] = {"text": TEXT, "language_code": "en-US", "sample_rate_hz": 24000}
    async with opened_door(voices, created_settings(tmp_path)) as door:
        asked = riva_tts_pb2.SynthesizeSpeechRequest(custom_dictionary="Xiaomi  show me, SQL  sequel", **fields)
        await door.riva.Synthesize(asked, metadata=GRPC_ANNA)
        assert door.spoken() == SPOKEN
        bad = riva_tts_pb2.SynthesizeSpeechRequest(custom_dictionary=dictionary, **fields)
        failure = await failure_of(door.riva.Synthesize(bad, metadata=GRPC_ANNA))
    assert failure[0] is code and told in failure[1]


async def test_a_dictionary_is_created_shown_changed_listed_and_downloaded(voices: Voices, tmp_path: Path) -> None:
    async with opened_door(voices, created_settings(tmp_path)) as door:
        created = await create(door, description="words of ours")
        assert (created["name"], created["created_by"], created["version_rules_num"]) == ("mine", "anna", 2)
        path = f"{API}/{created['id']}"
        shown = (await door.http.get(path)).json()
        assert (shown["latest_version_id"], shown["description"]) == (created["version_id"], "words of ours")
        assert [rule["alias"] for rule in shown["rules"]] == ["show me", "sequel"]
        again = [{"type": "alias", "string_to_replace": "Xiaomi", "alias": "shao mee"}]
        added = (await door.http.post(f"{path}/add-rules", json={"rules": again})).json()
        assert added["version_rules_num"] == 2, "a new rule for a word takes the place of the old one"
        pls = await door.http.get(f"{path}/{added['version_id']}/download")
        assert "<grapheme>Xiaomi</grapheme><alias>shao mee</alias>" in pls.text
        file = {"file": ("words.pls", pls.content, "application/pls+xml")}
        copied = await door.http.post(f"{API}/add-from-file", data={"name": "copy"}, files=file)
        assert copied.json()["version_rules_num"] == 2
        changed = await door.http.patch(path, json={"name": "renamed", "archived": True})
        assert (changed.json()["name"], changed.json()["archived_time_unix"] is None) == ("renamed", False)
        assert (await door.http.post(f"{path}/set-rules", json={"rules": []})).json()["version_rules_num"] == 0
        page = (await door.http.get(API, params={"page_size": 1})).json()
        rest = (await door.http.get(API, params={"cursor": page["next_cursor"]})).json()
        assert [each["name"] for each in page["pronunciation_dictionaries"]] == ["default"]
        assert [each["name"] for each in rest["pronunciation_dictionaries"]] == ["copy"], "archived ones are not listed"
        assert (page["has_more"], rest["has_more"]) == (True, False)


async def test_what_belongs_to_others_is_neither_seen_nor_changed(voices: Voices, tmp_path: Path) -> None:
    async with opened_door(voices, created_settings(tmp_path)) as door:
        created = await create(door)
        path = f"{API}/{created['id']}"
        assert (await door.http.get(path, headers=BOB)).status_code == 404
        assert (await door.http.post(f"{path}/add-rules", json={"rules": RULES}, headers=BOB)).status_code == 404
        assert (await door.http.patch(path, json={"name": "x"}, headers=BOB)).status_code == 404
        assert (await door.http.get(f"{path}/{created['version_id']}/download", headers=BOB)).status_code == 404
        listed = (await door.http.get(API, headers=BOB)).json()["pronunciation_dictionaries"]
        assert [each["name"] for each in listed] == ["default"]
        assert (await door.http.get(API, headers={"xi-api-key": "wrong"})).status_code == 401
        for refused in (
            await door.http.post(f"{API}/default/set-rules", json={"rules": []}),
            await door.http.patch(f"{API}/default", json={"archived": True}),
        ):
            assert (refused.status_code, refused.json()["detail"]["status"]) == (403, "lexicon_protected")
        assert (await door.http.get(f"{API}/default")).json()["permission_on_resource"] == "viewer"


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ({"name": "x"}, 400, "rules"),
        ({"name": "", "rules": []}, 400, "1 to 100 printable"),
        ({"name": "x", "rules": [PHONEME]}, 400, "CosyVoice3"),
        ({"name": "x", "rules": [{"string_to_replace": "a"}]}, 400, "has no alias"),
        ({"name": "x", "rules": [{"string_to_replace": "a" * 201, "alias": "b"}]}, 400, "the limit is 200"),
    ],
)
async def test_rules_that_can_not_be_had_are_refused(
    voices: Voices, tmp_path: Path, body: dict[str, Any], status: int, told: str
) -> None:
    async with opened_door(voices, created_settings(tmp_path)) as door:
        refused = await door.http.post(f"{API}/add-from-rules", json=body)
        assert refused.status_code == status and told in json.dumps(refused.json())
        file = {"file": ("words.pls", b"<lexicon><lexeme/></lexicon>", "text/xml")}
        refused = await door.http.post(f"{API}/add-from-file", data={"name": "x"}, files=file)
        assert refused.status_code == 400 and "line 1, column 19" in refused.json()["detail"]["message"]
        assert (await door.http.post(f"{API}/add-from-file", data={"name": "x"})).status_code == 400


async def test_phonemes_where_the_checkpoint_reads_them(voices: Voices, tmp_path: Path) -> None:
    settings = created_settings(tmp_path)
    (tmp_path / "operator" / "default.json").write_text(json.dumps({"rules": [{**PHONEME, "phoneme": "kæt"}]}))
    rules = [
        {"type": "phoneme", "string_to_replace": "SQL", "phoneme": "S IY1 K W AH0 L", "alphabet": "cmu-arpabet"},
        {"type": "phoneme", "string_to_replace": "小米", "phoneme": "xiao3 mi3", "alphabet": "pinyin"},
    ]
    pls = (
        '<lexicon version="1.0" xmlns="http://www.w3.org/2005/01/pronunciation-lexicon" alphabet="ipa" xml:lang="en">'
        "<lexeme><grapheme>GIF</grapheme><phoneme>dʒɪf</phoneme></lexeme></lexicon>"
    )
    declared = CheckpointDeclaration(family="cosyvoice3", phonemes="cosyvoice3")
    async with opened_door(voices, settings, declared) as door:
        created = await create(door, rules=rules)
        shown = (await door.http.get(f"{API}/{created['id']}")).json()["rules"]
        assert [each["phoneme"] for each in shown] == ["S IY1 K W AH0 L", "xiao3 mi3"]
        form = {"name": (None, "pls"), "file": ("a.pls", pls)}
        file = (await door.http.post(f"{API}/add-from-file", files=form)).json()
        loaded = (await door.http.get(f"{API}/{file['id']}/{file['version_id']}/download")).text
        assert '<phoneme alphabet="ipa">dʒɪf</phoneme>' in loaded
        path = "/v1/text-to-speech/default?output_format=pcm_24000&language_code=en"
        asked = {"text": "A GIF of SQL, 小米.", "pronunciation_dictionary_locators": [locator(created), locator(file)]}
        assert (await door.http.post(path, json=asked)).status_code == 200
        assert door.spoken() == ["A [JH][IH1][F] of [S][IY1][K][W][AH0][L], [x][iǎo][m][ǐ]."]
        fields = {"text": "NVIDIA it is, a.", "encoding": "LINEAR_PCM", "sample_rate_hz": 24000}
        for written in ("ɛnˈvɪdiə", "{@EH0}{@N}{@V}{@IH1}{@D}{@IY0}{@AH0}"):
            asked_riva = riva_tts_pb2.SynthesizeSpeechRequest(custom_dictionary=f"NVIDIA  {written}", **fields)
            await door.riva.Synthesize(asked_riva, metadata=GRPC_ANNA)
            assert door.spoken() == ["[EH0][N][V][IH1][D][IY0][AH0] it is, [K][AE1][T]."]
        bad = await door.http.post(f"{API}/add-from-rules", json={"name": "b", "rules": [{**PHONEME, "phoneme": "ʁ"}]})
        assert bad.status_code == 400 and "no sound of English" in bad.json()["detail"]["message"]
