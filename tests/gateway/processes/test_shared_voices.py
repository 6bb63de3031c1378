"""What the processes of one gateway tell each other of voices: one asks token2wav, and all open streams."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from gateway.core import InlineVoice, RegisteredVoice
from gateway.errors import VoiceNotFoundError
from gateway.ledger import CallerLedger
from gateway.speech.request import SpeechRequest
from gateway.speech.speaker import Speaker
from gateway.voices.directory import Viewer
from gateway.voices.registry import NamedVoice, VoiceRegistry, load_voices
from servicekit.clock import SystemClock
from tests.gateway.fakes import FakeToken2Wav
from tests.gateway.processes.group import Group, Process
from tests.gateway.routing.fakes import ScriptedToken2Wav, audio_of, chunks, until
from tests.gateway.voices.fakes import FakeVoiceMaker, draft, make_store

Voices = list[NamedVoice]
BROUGHT = InlineVoice(b"RIFFbrought", "Words.")


def registry_of(process: Process, voices: Voices) -> VoiceRegistry:
    return VoiceRegistry(process.token2wav, voices, known=process.known)


async def speak(process: Process, voices: Voices, voice: str | InlineVoice = "anna") -> list[float]:
    """Return the samples of a whole answer."""
    pipeline = Speaker(process.llm, process.token2wav, registry_of(process, voices))
    heard = [chunk async for chunk in pipeline.synthesize(SpeechRequest("Hello.", voice, seed=1))]
    assert heard[-1].is_last
    return np.concatenate([chunk.samples for chunk in heard]).tolist()


@pytest.mark.parametrize("voice", ["anna", BROUGHT], ids=["of the operator", "of a request"])
async def test_a_voice_that_one_process_has_registered_is_spoken_in_by_another_without_asking(
    tmp_path: Path, voice: str | InlineVoice, voices: Voices
) -> None:
    group = Group(tmp_path)
    async with group.two() as (first, second):
        heard = await speak(first, voices, voice)
        assert await speak(second, voices, voice) == heard
        assert len(group.token2wav.registered) == 1


async def test_the_others_know_the_whole_voice(tmp_path: Path, voices: Voices) -> None:
    async with Group(tmp_path).two() as (first, second):
        ready = await registry_of(first, voices).resolve("anna")
        assert await registry_of(second, voices).resolve("anna") == ready
        assert len(ready.registered.prompt_speech_tokens) > 0


async def test_a_process_that_comes_later_knows_the_voices_too(tmp_path: Path, voices: Voices) -> None:
    group = Group(tmp_path)
    async with group.process(1) as first:
        await speak(first, voices)
    async with group.process(2) as later:
        await speak(later, voices)
    assert len(group.token2wav.registered) == 1


async def test_a_voice_that_token2wav_has_dropped_meanwhile_is_registered_again_once(
    tmp_path: Path, voices: Voices
) -> None:
    group = Group(tmp_path)
    async with group.two() as (first, second):
        heard = await speak(first, voices)
        group.token2wav.voices.clear()
        assert await speak(second, voices) == heard
        assert len(group.token2wav.registered) == 2
        assert await speak(first, voices) == heard == await speak(second, voices)
        assert len(group.token2wav.registered) == 2


async def test_at_a_replica_that_lacks_a_voice_a_process_that_was_told_of_it_registers_it_and_goes_on(
    tmp_path: Path, voices: Voices
) -> None:
    group = Group(tmp_path)
    async with group.process(1) as first:
        heard = await speak(first, voices)
        group.token2wav.is_draining = True
        group.more_token2wav = [ScriptedToken2Wav("b")]
        async with group.process(2) as second:
            assert await speak(second, voices) == heard
            assert await speak(second, voices) == heard
    assert [len(each.registered) for each in (group.token2wav, *group.more_token2wav)] == [1, 1]


async def test_a_stream_in_a_voice_that_another_process_registered_outlives_its_replica(
    tmp_path: Path, voices: Voices
) -> None:
    group = Group(tmp_path)
    group.more_token2wav = [ScriptedToken2Wav("b", is_draining=True)]
    async with group.process(1) as first, group.process(2) as second:
        voice = (await registry_of(first, voices).resolve("anna")).registered.voice_id
        group.token2wav.answers = 1
        async with second.token2wav.open_stream(voice, 1) as stream:
            await until(lambda: len(second.token2wav.voice_file_cache) == 1, "the copy")
            group.more_token2wav[0].is_draining = False
            pushes = [stream.push(chunk) for chunk in chunks(4)]
            await pushes[0]
            group.token2wav.die()
            assert [len((await push).samples) for push in pushes] == [len(audio_of(each, 1)) for each in chunks(4)]
    assert [len(each.registered) for each in (group.token2wav, *group.more_token2wav)] == [1, 0]


async def test_a_created_voice_stays_out_of_reach_of_other_keys_in_every_process(tmp_path: Path) -> None:
    async with Group(tmp_path).two() as (first, second):
        makers = [FakeVoiceMaker(), FakeVoiceMaker()]
        by_anna, by_bob, of_anna = (
            VoiceRegistry(
                makers[process is second],
                store=make_store(tmp_path, makers[process is second]),
                viewer=lambda key=key: Viewer(key),  # type: ignore[misc]
                known=process.known,
            )
            for process, key in ((first, "anna"), (second, "bob"), (second, "anna"))
        )
        voice = await by_anna.create(draft())
        for name in (voice.id, voice.name, f"created:{voice.id}"):
            with pytest.raises(VoiceNotFoundError):
                await by_bob.resolve(name)
        assert by_bob.names == []
        assert (await of_anna.resolve("eva")).transcript == "I am Eva."
        assert makers[1].imports == []
        await of_anna.delete("eva")
        with pytest.raises(VoiceNotFoundError):
            await by_anna.resolve("eva")


async def test_a_voice_of_a_request_has_no_name_and_only_the_same_recording_means_it(
    tmp_path: Path, voices: Voices
) -> None:
    group = Group(tmp_path)
    async with group.two() as (first, second):
        await registry_of(first, voices).resolve(BROUGHT)
        registry = registry_of(second, voices)
        key, told = sqlite3.connect(group.path).execute("SELECT key, voice FROM voices").fetchone()
        voice_id = json.loads(told)[0]
        for name in (key, voice_id):
            with pytest.raises(VoiceNotFoundError):
                await registry.resolve(name)
        assert registry.names == sorted(voice.name for voice in voices)
        await registry.resolve(InlineVoice(b"RIFFother", "Words."))
        assert len(group.token2wav.registered) == 2


async def test_a_recording_that_was_replaced_is_another_voice_to_a_process_that_found_it_later(tmp_path: Path) -> None:
    (tmp_path / "eva.wav").write_bytes(b"RIFFold")
    (tmp_path / "eva.txt").write_text("Old words.")
    group = Group(tmp_path)
    async with group.two() as (first, second):
        await registry_of(first, load_voices(tmp_path)).resolve("eva")
        (tmp_path / "eva.wav").write_bytes(b"RIFFnewer")
        (tmp_path / "eva.txt").write_text("New words.")
        ready = await registry_of(second, load_voices(tmp_path)).resolve("eva")
        assert (ready.registered.voice_id, ready.transcript) == ("voice-of-RIFFnewer", "New words.")
        assert len(group.token2wav.registered) == 2


async def test_one_process_alone_tells_nobody(voices: Voices) -> None:
    token2wav = FakeToken2Wav()
    for registry in (VoiceRegistry(token2wav, voices), VoiceRegistry(token2wav, voices)):
        await registry.resolve("anna")
    assert len(token2wav.registrations) == 2


def test_processes_remember_a_bounded_number_of_told_voices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.ledger.MAX_VOICES", 2)
    first, second = (CallerLedger(SystemClock(), tmp_path / "ledger", number) for number in (1, 2))
    for key in ("a", "b", "a", "c"):
        first.tell_voice(key, RegisteredVoice(f"id-{key}", (1, 2), 0.5))
    assert [second.told_voice(key) for key in ("a", "b")] == [RegisteredVoice("id-a", (1, 2), 0.5), None]
    first.forget_voice("a")
    assert second.told_voice("a") is None
