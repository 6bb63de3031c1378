"""Voices by name or brought along by a request, registered with token2wav when first needed.

What token2wav answers (voice id, prompt speech tokens) is cached by the content of the prompt's audio or by the
voice's name, never by a transcript, and the cache is bounded. Knows nothing of streams or of the LLM.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np

from gateway.core import FloatArray, InlineVoice, RegisteredVoice, Token2Wav
from gateway.errors import ConfigError, VoiceNotFoundError

DEFAULT_VOICE = "default"
DEFAULT_CACHED_VOICES = 1024
_AUDIO_SUFFIXES = (".wav", ".flac")


@dataclass(frozen=True)
class NamedVoice:
    """A voice of the voices directory."""

    name: str
    audio_path: Path
    transcript: str


@dataclass(frozen=True)
class ReadyVoice:
    """A voice that token2wav knows, with its transcript."""

    registered: RegisteredVoice
    transcript: str


class VoiceRegistry:
    """Finds voices and keeps them registered."""

    def __init__(
        self,
        token2wav: Token2Wav,
        voices: list[NamedVoice] | None = None,
        max_cached: int = DEFAULT_CACHED_VOICES,
    ) -> None:
        """Register nothing yet.

        Args:
            token2wav: where voices are registered.
            voices: the named ones; see `load_voices`.
            max_cached: registrations remembered at most; the least recently used goes first.
        """
        self._token2wav = token2wav
        self._voices = {voice.name: voice for voice in voices or []}
        self._max_cached = max_cached
        self._cache: OrderedDict[str, RegisteredVoice] = OrderedDict()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def names(self) -> list[str]:
        """Names of the voices directory, sorted."""
        return sorted(self._voices)

    def check(self, voice: str | InlineVoice) -> None:
        """Refuse an unknown name without asking any service.

        Raises:
            VoiceNotFoundError: no voice has that name.
        """
        if isinstance(voice, str) and voice not in self._voices:
            raise VoiceNotFoundError(f"got voice {voice!r}, expected one of {self.names}", param="voice")

    async def resolve(self, voice: str | InlineVoice) -> ReadyVoice:
        """Return a voice that token2wav knows, registering it if need be.

        Raises:
            VoiceNotFoundError: no voice has that name.
            InvalidVoicePromptError: token2wav can't use its audio.
            Token2WavError: anything else that went wrong there.
        """
        self.check(voice)
        key = _key(voice)
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            registered = self._cache.pop(key, None) or await self._register(voice)
            self._remember(key, registered)
        return ReadyVoice(registered, self._transcript(voice))

    async def renew(self, voice: str | InlineVoice) -> ReadyVoice:
        """Register again a voice that token2wav has dropped; see `resolve`."""
        self._cache.pop(_key(voice), None)
        return await self.resolve(voice)

    def _remember(self, key: str, registered: RegisteredVoice) -> None:
        self._cache[key] = registered
        while len(self._cache) > self._max_cached:
            self._cache.popitem(last=False)

    async def _register(self, voice: str | InlineVoice) -> RegisteredVoice:
        if isinstance(voice, InlineVoice):
            return await self._token2wav.register_voice(voice.audio)
        path = self._voices[voice].audio_path
        return await self._token2wav.register_voice(await asyncio.to_thread(path.read_bytes))

    def _transcript(self, voice: str | InlineVoice) -> str:
        return voice.transcript if isinstance(voice, InlineVoice) else self._voices[voice].transcript


def load_voices(directory: Path) -> list[NamedVoice]:
    """List a directory's voices: `<name>.wav` (or .flac) with its transcript in `<name>.txt`.

    Raises:
        ConfigError: no such directory, no voice in it, or a voice without transcript.
    """
    if not directory.is_dir():
        raise ConfigError(f"voices directory {directory} does not exist; give one with <name>.wav and <name>.txt files")
    paths = sorted(path for path in directory.iterdir() if path.suffix.lower() in _AUDIO_SUFFIXES)
    if not paths:
        raise ConfigError(f"voices directory {directory} holds no .wav or .flac file; add <name>.wav and <name>.txt")
    return [NamedVoice(path.stem, path, _read_transcript(path.with_suffix(".txt"))) for path in paths]


def _read_transcript(path: Path) -> str:
    try:
        transcript = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"transcript {path} can't be read ({error}); write what the voice says, in UTF-8") from error
    if not transcript:
        raise ConfigError(f"transcript {path} is empty; write what the voice says")
    return transcript


def _key(voice: str | InlineVoice) -> str:
    if isinstance(voice, str):
        return f"name:{voice}"
    return f"content:{_content_hash(voice.audio)}"


def _content_hash(audio: bytes | FloatArray) -> str:
    if isinstance(audio, bytes):
        return "file:" + hashlib.sha256(audio).hexdigest()
    return "samples:" + hashlib.sha256(np.ascontiguousarray(audio, dtype=np.float32).tobytes()).hexdigest()
