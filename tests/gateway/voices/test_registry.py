"""Named and inline voices: what is registered when, and under which key."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from demo_voice.unpack import VOICES
from gateway.core import FloatArray, InlineVoice, RegisteredVoice
from gateway.errors import ConfigError, Token2WavFailedError
from gateway.ledger import CallerLedger
from gateway.voices.profile import Gender, VoiceProfile, read_profile
from gateway.voices.registry import NamedVoice, VoiceRegistry, load_voices
from tests.gateway.fakes import FakeToken2Wav, ManualClock


def tone(level: float) -> np.ndarray:  # type: ignore[type-arg]
    return np.full(4000, level, np.float32)


async def test_a_named_voice_is_registered_once_even_when_asked_for_at_once(voices: list[NamedVoice]) -> None:
    token2wav = FakeToken2Wav()
    registry = VoiceRegistry(token2wav, voices)
    ready = await asyncio.gather(*(registry.resolve("anna") for _ in range(5)))
    assert token2wav.registrations == [b"RIFFanna"]
    assert {voice.registered.voice_id for voice in ready} == {"voice-1"}


async def test_inline_voices_are_told_apart_by_content_never_by_transcript() -> None:
    token2wav = FakeToken2Wav()
    registry = VoiceRegistry(token2wav)
    one = await registry.resolve(InlineVoice(tone(0.1), "same words"))
    other = await registry.resolve(InlineVoice(tone(0.2), "same words"))
    again = await registry.resolve(InlineVoice(tone(0.1), "other words"))
    assert one.registered.voice_id != other.registered.voice_id
    assert (again.registered, again.transcript) == (one.registered, "other words")
    assert len(token2wav.registrations) == 2


async def test_the_memory_is_bounded_and_drops_the_first_registered() -> None:
    token2wav, ledger = FakeToken2Wav(), CallerLedger(ManualClock())
    ledger.max_voices = 2
    registry = VoiceRegistry(token2wav, ledger=ledger)
    for level in (0.1, 0.2, 0.1, 0.3, 0.2):
        await registry.resolve(InlineVoice(tone(level)))
    assert len(token2wav.registrations) == 3
    await registry.resolve(InlineVoice(tone(0.1)))
    assert len(token2wav.registrations) == 4


async def test_what_one_process_registers_or_renews_all_know(tmp_path: Path, voices: list[NamedVoice]) -> None:
    services = [FakeToken2Wav(), FakeToken2Wav()]
    first, second = (
        VoiceRegistry(service, voices, ledger=CallerLedger(ManualClock(), tmp_path / "ledger", number))
        for number, service in enumerate(services, 1)
    )
    made, heard = await first.resolve("anna"), await second.resolve("anna")
    assert (heard.registered, made.is_new, heard.is_new) == (made.registered, True, False)
    assert (again := await second.renew("anna")).is_new and (await first.resolve("anna")).registered == again.registered
    assert [len(service.registrations) for service in services] == [1, 1]


def test_a_directory_gives_names_audio_transcripts_and_profiles(tmp_path: Path) -> None:
    (tmp_path / "eva.wav").write_bytes(b"x")
    (tmp_path / "eva.txt").write_text("Grüß Gott.\n", encoding="utf-8")
    (voice,) = load_voices(tmp_path)
    assert voice == NamedVoice("eva", tmp_path / "eva.wav", "Grüß Gott.", file_state=voice.file_state)
    (tmp_path / "eva.json").write_text('{"description": "A woman, warm.", "gender": "female", "language": "de-CH"}')
    assert load_voices(tmp_path)[0].profile == VoiceProfile("A woman, warm.", Gender.FEMALE, "de-CH")
    (tmp_path / "eva.json").write_text('{"gender": "neutral"}')
    assert load_voices(tmp_path)[0].profile == VoiceProfile(gender=Gender.NEUTRAL)


@pytest.mark.parametrize("transcript", [None, b"", b"\xff\xfe"], ids=["missing", "empty", "not UTF-8"])
def test_a_voice_without_a_usable_transcript_stops_the_start(tmp_path: Path, transcript: bytes | None) -> None:
    (tmp_path / "eva.wav").write_bytes(b"x")
    if transcript is not None:
        (tmp_path / "eva.txt").write_bytes(transcript)
    with pytest.raises(ConfigError, match=r"eva\.txt"):
        load_voices(tmp_path)


@pytest.mark.parametrize(
    ("profile", "word"),
    [
        pytest.param("{", "JSON", id="not JSON"),
        pytest.param("[]", "expected JSON such as", id="no object"),
        pytest.param('{"gender": "man"}', "gender", id="gender"),
        pytest.param('{"language": "plain English"}', "language", id="language"),
        pytest.param('{"sex": "female"}', "sex", id="unknown field"),
        pytest.param('{"description": "%s"}' % ("x" * 501), "description", id="too long"),
    ],
)
def test_a_profile_that_cant_be_read_stops_the_start(tmp_path: Path, profile: str, word: str) -> None:
    (tmp_path / "eva.json").write_text(profile)
    with pytest.raises(ConfigError, match=rf"eva\.json.*{word}"):
        read_profile(tmp_path / "eva.json")


def test_every_bundled_voice_says_who_speaks() -> None:
    for voice in load_voices(VOICES):
        known = voice.profile
        assert known.gender is not None and known.language.startswith("en"), voice.name
        assert known.description.startswith("A man" if known.gender is Gender.MALE else "A woman"), voice.name


@pytest.mark.parametrize("name", ["", "missing"])
def test_a_directory_without_voices_stops_the_start(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="voices directory"):
        load_voices(tmp_path / name)


async def test_all_who_wait_for_a_voice_share_how_its_registration_ends(voices: list[NamedVoice]) -> None:
    token2wav = GatedToken2Wav()
    registry = VoiceRegistry(token2wav, voices)
    waiting = [asyncio.create_task(registry.resolve("anna")) for _ in range(5)]
    await token2wav.is_asked.wait()
    token2wav.error = Token2WavFailedError("no memory")
    token2wav.gate.set()
    assert {type(error) for error in await asyncio.gather(*waiting, return_exceptions=True)} == {Token2WavFailedError}
    assert len(token2wav.registrations) == 1
    token2wav.error = None
    assert (await registry.resolve("anna")).registered.voice_id == "voice-2"


async def test_whoever_leaves_takes_the_voice_from_nobody(voices: list[NamedVoice]) -> None:
    token2wav = GatedToken2Wav()
    registry = VoiceRegistry(token2wav, voices)
    first, second = (asyncio.create_task(registry.resolve("anna")) for _ in range(2))
    await token2wav.is_asked.wait()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    token2wav.gate.set()
    assert (await second).registered.voice_id == "voice-1"
    assert first.cancelled()
    assert len(token2wav.registrations) == 1


class GatedToken2Wav(FakeToken2Wav):
    """Registers nothing before the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.is_asked = asyncio.Event(), asyncio.Event()
        self.error: Token2WavFailedError | None = None

    async def register_voice(self, audio: bytes | FloatArray) -> RegisteredVoice:
        self.is_asked.set()
        await self.gate.wait()
        voice = await super().register_voice(audio)
        if self.error is not None:
            raise self.error
        return voice
