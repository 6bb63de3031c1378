"""Created voices belong to the key that created them, and no caller's name stands for a voice of another's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from riva.proto import riva_tts_pb2, riva_tts_pb2_grpc

from gateway import errors
from gateway.access.settings import AccessSettings
from gateway.ledger import CallerLedger
from gateway.voices.directory import Viewer
from gateway.voices.registry import NamedVoice, VoiceAliases, VoiceRegistry
from gateway.voices.settings import VoiceSettings, open_registry
from servicekit.clock import SystemClock
from tests.gateway.access.door import BEARER, OTHER_KEY, Door, opened_door
from tests.gateway.fakes import FakeToken2Wav
from tests.gateway.voices.fakes import FakeVoiceMaker, draft, make_store

PATH = "/v1/audio/voices"
ANNA, BOB = BEARER, {"authorization": f"Bearer {OTHER_KEY}"}
FORM = {"name": "eva", "consent": "cons_1234", "transcript": "I am Eva."}
KEYLESS = AccessSettings(is_insecure=True)

Voices = list[NamedVoice]


async def create(door: Door, headers: dict[str, str] | None, **changes: str) -> httpx.Response:
    files: dict[str, Any] = {"audio_sample": ("eva.wav", b"RIFF-" + repr(headers).encode(), "audio/wav")}
    return await door.http.post(PATH, data=FORM | changes, files=files, headers=headers)


async def listed(door: Door, headers: dict[str, str] | None) -> dict[str, Any]:
    answer: dict[str, Any] = (await door.http.get(PATH, headers=headers)).json()
    return answer


async def test_another_keys_voice_is_not_listed_shown_spoken_in_or_deleted(voices: Voices, tmp_path: Path) -> None:
    async with opened_door(voices, created_voices=tmp_path) as door:
        voice_id = (await create(door, ANNA)).json()["id"]
        seen = await listed(door, BOB)
        named = (await door.http.get("/v1/voices", headers=BOB)).json()
        for voice in (voice_id, "eva"):
            tries = [
                await door.http.get(f"{PATH}/{voice}", headers=BOB),
                await door.http.delete(f"{PATH}/{voice}", headers=BOB),
                await door.http.post(f"{PATH}/{voice}/share", headers=BOB),
                await door.speak(BOB, voice=voice),
                await door.http.post(f"/v1/text-to-speech/{voice}", json={"text": "hello"}, headers=BOB),
            ]
            assert [answer.status_code for answer in tries] == [404] * 5
        own = await door.speak(ANNA, voice="eva")
    assert (seen["voices"], seen["uploaded_voices"]) == (["anna", "default"], [])
    assert "eva" not in str(named) and own.status_code == 200


async def test_riva_names_no_created_voice_to_those_without_a_key(voices: Voices, tmp_path: Path) -> None:
    async with opened_door(voices, created_voices=tmp_path) as door:
        await create(door, ANNA)
        riva = riva_tts_pb2_grpc.RivaSpeechSynthesisStub(door.channel)
        answer = await riva.GetRivaSynthesisConfig(riva_tts_pb2.RivaSynthesisConfigRequest())
    assert answer.model_config[0].parameters["subvoices"] == "anna:0,default:1"


async def test_two_keys_may_each_have_a_voice_of_one_name(voices: Voices, tmp_path: Path) -> None:
    async with opened_door(voices, created_voices=tmp_path) as door:
        ids = [(await create(door, headers)).json()["id"] for headers in (ANNA, BOB)]
        shown = [(await door.http.get(f"{PATH}/eva", headers=headers)).json()["id"] for headers in (ANNA, BOB)]
        await door.http.delete(f"{PATH}/eva", headers=BOB)
        left = [(await door.http.get(f"{PATH}/eva", headers=headers)).status_code for headers in (ANNA, BOB)]
    assert shown == ids and left == [200, 404]


async def test_a_shared_voice_is_used_by_its_id_without_consent_and_transcript(voices: Voices, tmp_path: Path) -> None:
    async with opened_door(voices, created_voices=tmp_path) as door:
        voice_id = (await create(door, ANNA, shared="true")).json()["id"]
        shown = (await door.http.get(f"{PATH}/{voice_id}", headers=BOB)).json()
        seen = await listed(door, BOB)
        spoken = [(await door.speak(BOB, voice=voice)).status_code for voice in (voice_id, "eva")]
        deleted = await door.http.delete(f"{PATH}/{voice_id}", headers=BOB)
    assert shown["shared"] is True and not {"consent", "ref_text"} & shown.keys()
    assert "cons_1234" not in str(seen) and "I am Eva" not in str(seen)
    assert spoken == [200, 404] and voice_id in seen["voices"]
    assert (deleted.status_code, deleted.json()["error"]["code"]) == (403, "voice_protected")


async def test_an_owner_shares_a_voice_and_takes_it_back(voices: Voices, tmp_path: Path) -> None:
    async with opened_door(voices, created_voices=tmp_path) as door:
        voice_id = (await create(door, ANNA)).json()["id"]
        statuses = []
        for change in (door.http.post, door.http.delete):
            assert (await change(f"{PATH}/{voice_id}/share", headers=ANNA)).status_code == 200
            statuses.append((await door.speak(BOB, voice=voice_id)).status_code)
    assert statuses == [200, 404]


async def test_without_keys_everyone_sees_and_deletes_every_voice(voices: Voices, tmp_path: Path) -> None:
    async with opened_door(voices, KEYLESS, created_voices=tmp_path) as door:
        await create(door, None)
        shown = (await door.http.get(f"{PATH}/eva")).json()
        statuses = [(await door.speak(voice="eva")).status_code, (await door.http.delete(f"{PATH}/eva")).status_code]
    assert (shown["consent"], shown["ref_text"], statuses) == ("cons_1234", "I am Eva.", [200, 200])


async def test_the_operator_shares_all_voices_and_consents_stay_their_owners(voices: Voices, tmp_path: Path) -> None:
    settings = VoiceSettings(tmp_path / "created", is_shared=True)
    key = "anna"
    maker, own, ledger = FakeVoiceMaker(), voices[0].audio_path.parent, CallerLedger(SystemClock())
    for voice in voices:
        voice.audio_path.with_suffix(".txt").write_text(voice.transcript)
    registry, other = (open_registry(own, settings, maker, ledger, lambda: key) for _ in range(2))
    created = await registry.create(draft())
    key = "bob"
    assert created in registry.created and not registry.is_owned(created)
    with pytest.raises(errors.VoiceProtectedError):
        await registry.delete(created.id)
    assert ((await registry.resolve("anna")).is_new, (await other.resolve("anna")).is_new) == (True, False)


async def test_voices_of_nobody_are_the_operators(voices: Voices, tmp_path: Path) -> None:
    viewer = Viewer()
    registry = VoiceRegistry(
        FakeVoiceMaker(), voices, store=make_store(tmp_path, FakeVoiceMaker()), viewer=lambda: viewer
    )
    await registry.create(draft())
    viewer = Viewer("bob")
    assert registry.find("eva") and "eva" in registry.names
    with pytest.raises(errors.VoiceProtectedError):
        await registry.delete("eva")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("alloy", id="an alias of OpenAI's"),
        pytest.param("boss", id="an alias of the operator's"),
        pytest.param("default", id="a voice of the operator's"),
        pytest.param("Default", id="in other letters"),
        pytest.param("ｄｅｆａｕｌｔ", id="in full width"),
        pytest.param("defa\u034fult", id="with a mark that is not seen"),
    ],
)
async def test_a_name_that_reads_as_the_operators_is_refused(name: str, voices: Voices, tmp_path: Path) -> None:
    store = make_store(tmp_path, FakeVoiceMaker())
    registry = VoiceRegistry(FakeToken2Wav(), voices, store=store, aliases=VoiceAliases({"boss": "anna"}))
    with pytest.raises(errors.VoiceExistsError, match="the server's own voice"):
        await registry.create(draft(name))


async def test_an_alias_comes_before_a_created_voice_that_had_its_name_already(voices: Voices, tmp_path: Path) -> None:
    maker = FakeVoiceMaker()
    store = make_store(tmp_path, maker)
    old, _ = await store.create(draft("alloy"))
    registry = VoiceRegistry(maker, voices, store=store, aliases=VoiceAliases())
    assert (await registry.resolve("alloy")).transcript == "I am default."
    assert (await registry.resolve(old.id)).transcript == "I am Eva."


async def test_an_alias_of_the_operators_shares_a_callers_voice_by_its_id_alone(voices: Voices, tmp_path: Path) -> None:
    maker, store = FakeVoiceMaker(), make_store(tmp_path, FakeVoiceMaker())
    created, _ = await store.create(draft(), viewer=Viewer("anna"))
    aliases = VoiceAliases({"boss": created.id, "chief": "eva"})
    registry = VoiceRegistry(maker, voices, store=store, aliases=aliases, viewer=lambda: Viewer("bob"))
    registry.check("boss")
    with pytest.raises(errors.VoiceNotFoundError):
        registry.check("chief")
