"""Created voices through the registry, beside the operator's own: which is meant, what stays, what delete does."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from gateway import errors
from gateway.ledger import CallerLedger
from gateway.speech.request import SpeechRequest
from gateway.speech.speaker import Speaker
from gateway.token2wav.client import Token2WavClient
from gateway.voices.profile import OPENAI_VOICES, QWEN_VOICES, Gender, VoiceAliases
from gateway.voices.registry import NamedVoice, VoiceRegistry
from gateway.voices.settings import VoiceSettings, open_registry
from gateway.voices.store import VoiceLimits
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, ManualClock, speech_deltas
from tests.gateway.voices.fakes import FakeVoiceMaker, draft, make_store


@pytest.fixture
def maker() -> FakeVoiceMaker:
    return FakeVoiceMaker()


@pytest.fixture
def registry(tmp_path: Path, maker: FakeVoiceMaker, voices: list[NamedVoice]) -> VoiceRegistry:
    return VoiceRegistry(maker, voices, store=make_store(tmp_path / "created", maker), aliases=VoiceAliases())


async def test_a_created_voice_costs_no_prompt_work_when_it_is_first_spoken_in(
    registry: VoiceRegistry, maker: FakeVoiceMaker
) -> None:
    voice = await registry.create(draft())
    ready = [await registry.resolve(name) for name in ("eva", voice.id)]
    assert [(each.registered.voice_id, each.transcript) for each in ready] == [(*maker.voices, "I am Eva.")] * 2
    assert (len(maker.registrations), maker.imports) == (1, [])


async def test_a_created_voice_that_token2wav_dropped_comes_back_from_its_file(
    registry: VoiceRegistry, maker: FakeVoiceMaker
) -> None:
    await registry.create(draft())
    maker.voices.clear()
    ready = await registry.renew("eva")
    assert ready.registered.voice_id in maker.voices
    assert (len(maker.registrations), len(maker.imports)) == (1, 1)


async def test_a_deleted_voice_is_refused_at_once_and_its_running_stream_goes_on(
    registry: VoiceRegistry, maker: FakeVoiceMaker
) -> None:
    voice = await registry.create(draft())
    llm = FakeLLM(speech_deltas(60), gate=asyncio.Event(), ungated=30)
    pipeline = Speaker(llm, maker, registry, clock=ManualClock())
    async with aclosing(pipeline.synthesize(SpeechRequest("hello", "eva"))) as audio:
        heard = len((await anext(audio)).samples)
        await registry.delete("eva")
        for name in ("eva", voice.id):
            with pytest.raises(errors.VoiceNotFoundError):
                registry.check(name)
        llm.gate.set()
        heard += sum([len(chunk.samples) async for chunk in audio])
    assert heard == 60 * 960


async def test_a_voice_that_is_deleted_while_it_is_loaded_is_not_spoken_in(
    tmp_path: Path, maker: FakeVoiceMaker
) -> None:
    await make_store(tmp_path, maker).create(draft())
    newer = FakeVoiceMaker(model="model-1")
    registry = VoiceRegistry(newer, store=make_store(tmp_path, newer))
    gate, importing = asyncio.Event(), newer.import_voice

    async def held(voice_file: bytes):  # type: ignore[no-untyped-def]
        await gate.wait()
        return await importing(voice_file)

    newer.import_voice = held  # type: ignore[method-assign]
    resolving = asyncio.create_task(registry.resolve("eva"))
    await asyncio.sleep(0.01)
    await registry.delete("eva")
    gate.set()
    with pytest.raises(errors.VoiceNotFoundError):
        await resolving


async def test_the_operators_voices_cant_be_deleted_or_named_again(registry: VoiceRegistry) -> None:
    with pytest.raises(errors.VoiceProtectedError, match="operator"):
        await registry.delete("anna")
    with pytest.raises(errors.VoiceExistsError):
        await registry.create(draft("anna"))
    assert registry.names == ["anna", "default"]


async def test_without_a_directory_for_them_no_voice_is_created(voices: list[NamedVoice]) -> None:
    registry = VoiceRegistry(FakeToken2Wav(), voices)
    with pytest.raises(errors.UnsupportedOptionError, match="--created-voices-dir"):
        registry.admit_creation("anybody")
    with pytest.raises(errors.VoiceNotFoundError):
        await registry.delete("eva")


async def test_an_unknown_voices_message_stays_short(tmp_path: Path, maker: FakeVoiceMaker) -> None:
    registry = VoiceRegistry(maker, [NamedVoice(f"v{n:03d}", tmp_path, "") for n in range(500)])
    with pytest.raises(errors.VoiceNotFoundError, match="or 480 more") as refusal:
        registry.check("nobody")
    assert len(str(refusal.value)) < 400


async def test_the_settings_open_both_kinds_of_voices(tmp_path: Path, maker: FakeVoiceMaker) -> None:
    await make_store(tmp_path / "made", maker).create(draft())
    (tmp_path / "anna.wav").write_bytes(b"RIFF")
    (tmp_path / "anna.txt").write_text("I am anna.")
    settings = VoiceSettings(tmp_path / "made", VoiceLimits(max_audio_bytes=77))
    opened = open_registry(tmp_path, settings, Token2WavClient("127.0.0.1:1"), CallerLedger(ManualClock()))
    assert (opened.names, opened.limits.max_audio_bytes, opened.aliases["cedar"]) == (["anna", "eva"], 77, "anna")
    without = open_registry(tmp_path, VoiceSettings(), Token2WavClient("127.0.0.1:1"), CallerLedger(ManualClock()))
    assert (without.names, without.limits.max_audio_bytes) == (["anna"], 0)


def test_openais_names_go_round_the_operators_voices_in_order_the_default_one_first() -> None:
    for others, first in ((["zoe", "anna", "mia"], "anna"), (["zoe", "default", "mia"], "default")):
        table = VoiceAliases().table(dict.fromkeys(others))
        assert list(table) == [*OPENAI_VOICES, *QWEN_VOICES]
        assert [table[name] for name in list(OPENAI_VOICES)[:4]] == [first, "mia", "zoe", first]


@pytest.mark.parametrize("names", [OPENAI_VOICES, QWEN_VOICES])
def test_a_mans_name_is_a_mans_voice_and_a_womans_a_womans(names: dict[str, Gender | None]) -> None:
    genders = {"awb": Gender.MALE, "default": Gender.MALE, "slt": Gender.FEMALE, "x": None}
    table = VoiceAliases().table(genders)
    assert {name: genders[table[name]] for name in names if name != "alloy"} == {
        name: gender for name, gender in names.items() if name != "alloy"
    }
    assert (table["alloy"], table["ash"], table["ballad"], table["ryan"]) == ("default", "default", "awb", "default")


def test_names_of_a_kind_that_no_voice_is_go_round_all_voices() -> None:
    table = VoiceAliases().table({"awb": Gender.MALE, "default": Gender.MALE})
    assert {table["coral"], table["nova"], table["sage"], table["shimmer"]} == {"awb", "default"}


def test_a_given_alias_replaces_the_dealt_one_and_moves_no_other() -> None:
    voices = dict.fromkeys(["anna", "mia"])
    dealt = VoiceAliases().table(voices)
    given = VoiceAliases({"ash": "anna", "boss": "mia"}).table(voices)
    assert given == {**dealt, "ash": "anna", "boss": "mia"}


def test_openais_names_can_be_switched_off() -> None:
    assert VoiceAliases({"boss": "mia"}, has_openai_names=False).table({"mia": None}) == {"boss": "mia"}
    assert VoiceAliases().table({}) == {}


async def test_a_refused_voice_is_told_the_names_and_the_aliases(registry: VoiceRegistry) -> None:
    with pytest.raises(errors.VoiceNotFoundError) as refusal:
        registry.check("nobody")
    assert "one of ['anna', 'default'], or one of the aliases ['alloy', 'ash'," in str(refusal.value)
    assert all(name in str(refusal.value) for name in (*OPENAI_VOICES, *QWEN_VOICES))


async def test_the_case_of_an_alias_does_not_matter(registry: VoiceRegistry) -> None:
    assert (await registry.resolve("Ryan")).transcript == (await registry.resolve("ryan")).transcript


async def test_an_alias_speaks_in_the_voice_behind_it_and_registers_it_once(
    registry: VoiceRegistry, maker: FakeVoiceMaker
) -> None:
    ready = [await registry.resolve(name) for name in ("ash", "anna", "coral")]
    assert {each.transcript for each in ready} == {"I am anna."}
    assert maker.registrations == [b"RIFFanna"]


async def test_an_alias_may_stand_for_a_created_voice_and_says_when_it_is_gone(
    tmp_path: Path, maker: FakeVoiceMaker, voices: list[NamedVoice]
) -> None:
    aliases = VoiceAliases({"boss": "eva"})
    registry = VoiceRegistry(maker, voices, store=make_store(tmp_path / "created", maker), aliases=aliases)
    with pytest.raises(errors.VoiceNotFoundError, match="'boss', an alias of 'eva', which is not there"):
        registry.check("boss")
    await registry.create(draft("eva"))
    assert (await registry.resolve("boss")).transcript == "I am Eva."


async def test_an_alias_is_no_voice_to_delete_or_show(registry: VoiceRegistry) -> None:
    with pytest.raises(errors.VoiceNotFoundError):
        await registry.delete("alloy")
    with pytest.raises(errors.VoiceNotFoundError):
        registry.find("alloy")
