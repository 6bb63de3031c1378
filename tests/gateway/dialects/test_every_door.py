"""What holds at every door: breaks, SSML, warnings, styles, dictionaries, a full fleet, and a service that is down."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway import errors
from gateway.access.settings import AccessSettings
from gateway.lexicons import load_lexicons
from gateway.text import TextFrontEnd, load_text_front_end
from gateway.voices.registry import NamedVoice
from servicekit.checkpoint_file import CheckpointDeclaration
from tests.gateway.access.door import Door, opened_door
from tests.gateway.doors.callers import OPENAI, OVER_HTTP, WYOMING, Caller, at_every_door, wishes
from tests.gateway.fakes import FakeLLM, speech_deltas

Voices = list[NamedVoice]
OPEN = AccessSettings(is_insecure=True)
TOKENS = 30
SPEECH, SILENCE = TOKENS * 960, 7200
ROUNDED = 5
"""Samples of a fade that are less than half a step of 16 bits."""


def llm() -> FakeLLM:
    return FakeLLM(speech_deltas(TOKENS))


def spoken(door: Door) -> list[str]:
    """Return what the LLM was asked to speak since the last call."""
    texts = [utterance.text.strip() for utterance in door.llm.utterances]
    door.llm.utterances.clear()
    return texts


@at_every_door
async def test_a_break_is_as_much_silence_and_the_words_behind_it_are_told_as_late(
    voices: Voices, caller: Caller
) -> None:
    async with opened_door(voices, OPEN, llm()) as door:
        heard = await caller(door, 'One.<break time="300ms"/>Two.')
        refused = await caller(door, 'One.<break time="11s"/>Two.')
    silent = np.flatnonzero(heard.samples == 0)
    begins, ends = SPEECH - silent[0], silent[-1] + 1 - SPEECH - SILENCE
    assert len(heard.samples) == 2 * SPEECH + SILENCE and not heard.samples[SPEECH : SPEECH + SILENCE].any()
    assert 0 <= begins < ROUNDED and 0 <= ends < ROUNDED
    tells_no_times = caller in (OPENAI[0], OVER_HTTP[0], *WYOMING)
    assert heard.starts_s.get("Two") == (None if tells_no_times else pytest.approx(1.5))
    assert "the longest is 10s" in refused.told


@wishes(
    openai={"ssml": True},
    elevenlabs={"enable_ssml_parsing": True},
    sentences={"ssml": True},
    ours={"ssml": True},
    riva={},
)
async def test_ssml_is_spoken_and_refused_with_its_place(
    voices: Voices, caller: Caller, fields: dict[str, Any]
) -> None:
    async with opened_door(voices, OPEN, llm()) as door:
        ssml = '<speak>Room <say-as interpret-as="digits">42</say-as>.<break time="100ms"/>Now.</speak>'
        await caller(door, ssml, **fields)
        assert spoken(door) == ["Room four two.", "Now."]
        refused = await caller(door, "<speak>One<phoneme ph='x'>a</phoneme></speak>", **fields)
    assert "line 1, column 11" in refused.told and "CosyVoice3" in refused.told


@at_every_door
async def test_callers_are_warned_of_an_undeclared_language_and_of_nothing_else(voices: Voices, caller: Caller) -> None:
    front_end = load_text_front_end(None, CheckpointDeclaration(languages=("en",), tags=()))
    async with opened_door(voices, OPEN, llm(), front_end=front_end) as door:
        warned, not_warned = await caller(door, "今天天气很好。"), await caller(door, "The weather is fine today.")
    warning = "the text is in zh, which the checkpoint does not declare; its speech may be gibberish"
    assert warning in warned.told and "warning" not in not_warned.told


@at_every_door
async def test_a_full_fleet_says_that_it_is_full_and_when_to_come_back(voices: Voices, caller: Caller) -> None:
    async with opened_door(voices, OPEN, llm()) as door:
        door.token2wav.open_failure = errors.OverloadedError("all replicas are full", retry_after_s=6.3)
        told = (await caller(door, "Hello.")).told
    assert "all replicas are full" in told
    assert "'retry-after': '7'" in told or '_after_s": 6.3' in told or 'AfterS": 6.3' in told or caller in WYOMING


@at_every_door
async def test_no_door_tells_the_address_of_a_service(
    voices: Voices, caller: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "LLM at http://10.0.0.7:8000 can't be reached (ClientConnectorError: token2wav at 10.0.0.8:8001)"
    async with opened_door(voices, OPEN, FakeLLM([], errors.LLMUnavailableError(secret))) as door:
        told = (await caller(door, "Hello.")).told
    assert "no speech LLM can be had now; try again in a moment" in told and "10.0.0" not in told
    assert "llm_unavailable" in told
    assert "http://10.0.0.7:8000" in caplog.text


HAPPY = "Please say a sentence very happily."
styled = wishes(
    openai={"instructions": "happy"},
    elevenlabs={"model_id": "eleven_v3"},
    sentences={"style": "happy"},
    ours={"style": "happy"},
    riva={"voice_name": "anna.Happy"},
)


@lru_cache
def front_end(instruct: str | None, refuses: bool = False) -> TextFrontEnd:
    declared = CheckpointDeclaration(tags=("[laughter]",), instruct=instruct)  # type: ignore[arg-type]
    return load_text_front_end(None, declared, None, refuses)


def asking(caller: Caller) -> str:
    """Return a text; ElevenLabs' callers ask for a style in it."""
    return "[happily] Yes." if caller.__name__.startswith("elevenlabs") else "Yes."


@styled
async def test_the_llm_is_told_the_style_where_the_checkpoint_takes_it(
    voices: Voices, caller: Caller, fields: dict[str, Any]
) -> None:
    async with opened_door(voices, OPEN, llm(), front_end=front_end("endofprompt")) as door:
        told = (await caller(door, asking(caller), **fields)).told
        assert [(each.instruction, each.text.strip()) for each in door.llm.utterances] == [(HAPPY, "Yes.")]
    assert "ignored" not in told


@styled
async def test_a_style_that_is_not_obeyed_is_named_or_refused(
    voices: Voices, caller: Caller, fields: dict[str, Any]
) -> None:
    async with opened_door(voices, OPEN, llm(), front_end=front_end(None)) as door:
        told = (await caller(door, asking(caller), **fields)).told
        assert [(each.instruction, each.text.strip()) for each in door.llm.utterances] == [("", "Yes.")]
    names = {"audio_tags", *fields} if caller in OVER_HTTP else set(fields)
    assert "elevenlabs_" in caller.__name__ or ("ignored" in told and any(name in told for name in names))
    async with opened_door(voices, OPEN, llm(), front_end=front_end(None, True)) as door:
        assert "CosyVoice3" in (await caller(door, asking(caller), **fields)).told
        assert not door.llm.utterances, "before any of it was spoken"


LOCATOR = {"pronunciation_dictionary_id": "tech", "version_id": "0AbC"}
"""The version is one of ElevenLabs': a file has no others."""


def dictionaries(folder: Path) -> dict[str, Any]:
    """Write a default dictionary and one named tech; return the parts of a door that has them."""
    (folder / "default.json").write_text('{"rules": {"GNU": "guh noo"}}')
    sql = {"string_to_replace": "sql", "alias": "sequel", "case_sensitive": False}
    rules = [{"string_to_replace": "Xiaomi", "alias": "show me"}, sql]
    (folder / "tech.json").write_text(json.dumps({"rules": rules}))
    book = load_lexicons(folder)
    return {"lexicons": book, "front_end": TextFrontEnd({}, lambda text: None, lexicons=book.lexicons_for)}


@wishes(
    openai={"lexicons": ["tech"]},
    elevenlabs={"pronunciation_dictionary_locators": [LOCATOR]},
    sentences={"lexicons": ["tech"]},
    ours={"lexicons": [{"id": "tech"}]},
    riva={"custom_dictionary": "Xiaomi  show me, SQL  sequel"},
)
async def test_words_are_spoken_as_the_dictionaries_say_that_are_asked_for(
    voices: Voices, tmp_path: Path, caller: Caller, fields: dict[str, Any]
) -> None:
    async with opened_door(voices, OPEN, llm(), **dictionaries(tmp_path)) as door:
        await caller(door, "GNU on Xiaomi, in SQL.", **fields)
        assert spoken(door) == ["guh noo on show me, in sequel."]
        await caller(door, "GNU on Xiaomi, in SQL.")
        assert spoken(door) == ["guh noo on Xiaomi, in SQL."], "only for who asked"


@wishes(
    openai={"lexicons": ["yours"]},
    elevenlabs={"pronunciation_dictionary_locators": [{"pronunciation_dictionary_id": "yours"}]},
    sentences={"lexicons": ["yours"]},
    ours={"lexicons": [{"id": "yours"}]},
)
async def test_a_dictionary_that_is_not_there_is_not_found(
    voices: Voices, tmp_path: Path, caller: Caller, fields: dict[str, Any]
) -> None:
    async with opened_door(voices, OPEN, llm(), **dictionaries(tmp_path)) as door:
        assert "lexicon_not_found" in (await caller(door, "Hello.", **fields)).told


@wishes(
    openai={"pronunciations": {"Xiaomi": "shao mee"}, "lexicons": ["tech"]},
    sentences={"pronunciations": {"Xiaomi": "shao mee"}, "lexicons": ["tech"]},
    ours={"pronunciations": {"Xiaomi": "shao mee"}, "lexicons": [{"id": "tech"}]},
)
async def test_a_request_s_own_words_go_before_dictionaries(
    voices: Voices, tmp_path: Path, caller: Caller, fields: dict[str, Any]
) -> None:
    async with opened_door(voices, OPEN, llm(), **dictionaries(tmp_path)) as door:
        await caller(door, "GNU on Xiaomi, in SQL.", **fields)
        assert spoken(door) == ["guh noo on shao mee, in sequel."]
        assert "can't" in (await caller(door, "Hello.", pronunciations={"a": ""})).told or not spoken(door)


@wishes(
    ours={"lexicons": [{"id": "tech", "version": "1"}]},
    openai={"lexicons": ["default"] * 9},
    riva={"custom_dictionary": "NVIDIA"},
)
async def test_what_can_be_no_dictionary_is_the_callers_mistake(
    voices: Voices, tmp_path: Path, caller: Caller, fields: dict[str, Any]
) -> None:
    async with opened_door(voices, OPEN, llm(), **dictionaries(tmp_path)) as door:
        told = (await caller(door, "Hello.", **fields)).told
    assert "INVALID_ARGUMENT" in told or "invalid_request_error" in told
    assert not door.llm.utterances


@wishes(
    elevenlabs={"pronunciation_dictionary_locators": [{"pronunciation_dictionary_id": "words"}]},
    riva={"custom_dictionary": "GIF  dʒɪf"},
)
async def test_phonemes_reach_a_checkpoint_that_reads_them_and_are_refused_elsewhere(
    voices: Voices, tmp_path: Path, caller: Caller, fields: dict[str, Any]
) -> None:
    declared = CheckpointDeclaration(family="cosyvoice3", phonemes="cosyvoice3")
    rules = [
        {"type": "phoneme", "string_to_replace": "GIF", "phoneme": "JH IH1 F", "alphabet": "cmu-arpabet"},
        {"type": "phoneme", "string_to_replace": "小米", "phoneme": "xiao3 mi3", "alphabet": "pinyin"},
    ]
    (tmp_path / "words.json").write_text(json.dumps({"rules": rules}))
    book = load_lexicons(tmp_path, takes_phonemes=True)
    parts: dict[str, Any] = {"lexicons": book, "front_end": load_text_front_end(None, declared, book.lexicons_for)}
    async with opened_door(voices, OPEN, llm(), **parts) as door:
        await caller(door, "A GIF of them.", **fields)
        assert spoken(door) == ["A [JH][IH1][F] of them."]
    if "custom_dictionary" in fields:
        async with opened_door(voices, OPEN, llm()) as door:
            assert "CosyVoice3" in (await caller(door, "A GIF.", **fields)).told
