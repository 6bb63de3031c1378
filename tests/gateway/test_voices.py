"""Named and inline voices: what is registered when, and under which key."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from gateway.core import InlineVoice
from gateway.errors import ConfigError, VoiceNotFoundError
from gateway.voices import NamedVoice, VoiceRegistry, load_voices
from tests.gateway.fakes import FakeToken2Wav


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


async def test_the_cache_is_bounded_and_drops_the_least_recently_used() -> None:
    token2wav = FakeToken2Wav()
    registry = VoiceRegistry(token2wav, max_cached=2)
    for level in (0.1, 0.2, 0.1, 0.3, 0.1):
        await registry.resolve(InlineVoice(tone(level)))
    assert len(token2wav.registrations) == 3
    await registry.resolve(InlineVoice(tone(0.2)))
    assert len(token2wav.registrations) == 4


async def test_an_unknown_voice_names_the_known_ones(voices: list[NamedVoice]) -> None:
    with pytest.raises(VoiceNotFoundError, match="'anna', 'default'"):
        await VoiceRegistry(FakeToken2Wav(), voices).resolve("nobody")


def test_a_directory_gives_names_audio_and_transcripts(tmp_path: Path) -> None:
    (tmp_path / "eva.wav").write_bytes(b"x")
    (tmp_path / "eva.txt").write_text("Grüß Gott.\n", encoding="utf-8")
    assert load_voices(tmp_path) == [NamedVoice("eva", tmp_path / "eva.wav", "Grüß Gott.")]


@pytest.mark.parametrize("transcript", [None, b"", b"\xff\xfe"], ids=["missing", "empty", "not UTF-8"])
def test_a_voice_without_a_usable_transcript_stops_the_start(tmp_path: Path, transcript: bytes | None) -> None:
    (tmp_path / "eva.wav").write_bytes(b"x")
    if transcript is not None:
        (tmp_path / "eva.txt").write_bytes(transcript)
    with pytest.raises(ConfigError, match=r"eva\.txt"):
        load_voices(tmp_path)


@pytest.mark.parametrize("name", ["", "missing"])
def test_a_directory_without_voices_stops_the_start(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="voices directory"):
        load_voices(tmp_path / name)
