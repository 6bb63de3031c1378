"""Voices by name or brought along by a request, registered with token2wav when first needed.

A name is that of a voice in the operator's directory, else an alias, else that of a voice which a caller created. With
API keys a created voice is its creator's: other callers neither see nor use it unless it is shared, and its name means
nothing to them.
What token2wav answers (voice id, prompt speech tokens) is remembered by the content of the prompt's audio or by the
voice, never by a transcript, and for all processes: a voice that token2wav knows costs nothing. Knows nothing of
streams or of the LLM.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gateway.core import FloatArray, InlineVoice, RegisteredVoice, Token2Wav
from gateway.errors import (
    ConfigError,
    InvalidVoicePromptError,
    UnsupportedOptionError,
    VoiceNotFoundError,
    VoiceProtectedError,
    VoiceStoreError,
)
from gateway.ledger import CallerLedger
from gateway.voices.directory import EVERYBODY, OPERATOR, StoredVoice, Viewer
from gateway.voices.draft import VoiceDraft, plain_form
from gateway.voices.inline_budget import InlineVoiceBudget
from gateway.voices.profile import DEFAULT_VOICE, NO_ALIASES, NO_PROFILE, VoiceAliases, VoiceProfile, read_profile
from gateway.voices.recordings import readable
from gateway.voices.store import CreatedVoices, VoiceLimits
from gateway.voices.transcripts import TranscriptCheck
from servicekit.clock import SystemClock

logger = logging.getLogger(__name__)

_AUDIO_SUFFIXES = (".wav", ".flac")
_NAMES_IN_MESSAGE = 20
_ALIASES_IN_MESSAGE = 24


@dataclass(frozen=True)
class NamedVoice:
    """A voice of the voices directory."""

    name: str
    audio_path: Path
    transcript: str
    profile: VoiceProfile = NO_PROFILE
    file_state: str = ""
    """Size and time of the recording's file when it was found: a process that is started later may find another."""

    @property
    def id(self) -> str:
        """What stands for it wherever created voices have an id of their own."""
        return self.name


@dataclass(frozen=True)
class ReadyVoice:
    """A voice that token2wav knows, with its transcript."""

    registered: RegisteredVoice
    transcript: str
    warning: str = ""
    """What may be wrong with its recording or transcript; empty: nothing."""
    is_new: bool = False
    """Whether token2wav has just got it, and may still be making it."""


class VoiceRegistry:
    """Finds voices, the operator's and created ones, and keeps them registered at token2wav."""

    def __init__(
        self,
        token2wav: Token2Wav,
        voices: list[NamedVoice] | None = None,
        store: CreatedVoices | None = None,
        aliases: VoiceAliases = NO_ALIASES,
        viewer: Callable[[], Viewer] = lambda: EVERYBODY,
        budget: InlineVoiceBudget | None = None,
        transcripts: TranscriptCheck | None = None,
        ledger: CallerLedger | None = None,
    ) -> None:
        """Register nothing yet.

        Args:
            token2wav: where voices are registered.
            voices: the operator's; see `load_voices`.
            store: the callers'; None if they may create none.
            aliases: other names; callers can't give them to their voices.
            viewer: tells on whose behalf the call under way looks created voices up.
            budget: of voices that come with requests; None: there is no bound.
            transcripts: judges the operator's voices and those of requests; None: by their length only.
            ledger: keeps what token2wav answered, for all processes; None: this one is alone.
        """
        self._budget = budget
        self._token2wav = token2wav
        self._voices = {voice.name: voice for voice in voices or []}
        self._store = store
        self.limits = store.limits if store is not None else VoiceLimits(0, 0, 0)
        """What callers may create; 0 of everything if voices can't be created here."""
        self._aliases = aliases.table({voice.name: voice.profile.gender for voice in self._voices.values()})
        self._folded_aliases = {alias.casefold(): alias for alias in self._aliases}
        self._reserved = {plain_form(name): name for name in (DEFAULT_VOICE, *self._voices, *self._aliases)}
        self._viewer = viewer
        self._transcripts = transcripts or TranscriptCheck()
        self._ledger = ledger or CallerLedger(SystemClock())
        self._registrations: dict[str, asyncio.Task[RegisteredVoice]] = {}
        """Registrations under way; all requests that wait for a voice share one and its result."""

    @property
    def names(self) -> list[str]:
        """What the caller can call voices, sorted: names, and ids of what others share; aliases are not among them."""
        viewer = self._viewer()
        return sorted(
            {*self._voices, *(voice.name if viewer.knows_by_name(voice) else voice.id for voice in self.created)}
        )

    @property
    def listed(self) -> list[NamedVoice | StoredVoice]:
        """The voices that `names` names, in its order."""
        return [voice for name in self.names if (voice := self._find(name, self._viewer())) is not None]

    @property
    def created(self) -> list[StoredVoice]:
        """Voices that callers created and this one may speak in, the oldest first."""
        viewer, kept = self._viewer(), self._store.directory.voices() if self._store is not None else []
        return [voice for voice in kept if viewer.sees(voice)]

    @property
    def aliases(self) -> dict[str, str]:
        """Alias -> voice, without those that a name of the operator's hides."""
        return {alias: name for alias, name in self._aliases.items() if alias not in self._voices}

    def is_owned(self, voice: StoredVoice) -> bool:
        """Tell whether the caller may read a created voice's consent and transcript, share it and delete it."""
        return self._viewer().owns(voice)

    def check(self, voice: str | InlineVoice) -> NamedVoice | StoredVoice | InlineVoice:
        """Find what a request speaks in, without asking any service.

        Raises:
            VoiceNotFoundError: no voice has that name.
        """
        if isinstance(voice, InlineVoice):
            return voice
        alias = self._alias(voice)
        return self.find(voice) if alias is None else self._behind(alias)

    def find(self, name: str) -> NamedVoice | StoredVoice:
        """Find a voice by its own name or id; aliases don't count.

        Raises:
            VoiceNotFoundError: there is none.
        """
        found = self._find(name, self._viewer()) if self._alias(name) is None else None
        if found is None:
            raise VoiceNotFoundError(f"got voice {name!r}, expected {self._some_names()}", param="voice")
        return found

    async def resolve(self, voice: str | InlineVoice) -> ReadyVoice:
        """Return a voice that token2wav knows, registering it if need be.

        Raises:
            VoiceNotFoundError: no voice has that name, or it was deleted just now.
            InvalidVoicePromptError: token2wav can't use its audio, or it says something else than its transcript.
            VoiceRateError: the caller brings new voices too fast.
            VoiceStoreError: its file can't be used.
            Token2WavError: anything else that went wrong there.
        """
        source = self.check(voice)
        key = _key(source)
        known = self._ledger.voice(key)
        registered = known if known is not None else await asyncio.shield(self._registration(key, source))
        if isinstance(source, StoredVoice) and self._creating().directory.find(source.id) is None:
            raise VoiceNotFoundError(f"voice {source.id} was deleted", param="voice")
        # An operator's voice is warned of in its log alone.
        warning = source.warning if isinstance(source, StoredVoice) else ""
        if isinstance(source, InlineVoice):
            warning = self._transcripts.warning(source.transcript, registered)
        return ReadyVoice(registered, source.transcript, warning, is_new=known is None)

    async def renew(self, voice: str | InlineVoice) -> ReadyVoice:
        """Register again a voice that token2wav has dropped; see `resolve`."""
        self._ledger.tell_voice(_key(self.check(voice)), None)
        return await self.resolve(voice)

    def admit_creation(self, caller: str) -> None:
        """Count a caller's attempt to create a voice, before its upload is read.

        Raises:
            UnsupportedOptionError: voices can't be created here.
            VoiceStoreError: too many, or too fast; see `CreatedVoices.admit`.
        """
        self._creating().admit(caller, self._viewer())

    async def create(self, draft: VoiceDraft) -> StoredVoice:
        """Create a voice; it can be spoken in at once.

        Raises:
            UnsupportedOptionError: voices can't be created here.
            GatewayError: see `CreatedVoices.create`.
        """
        voice, registered = await self._creating().create(draft, self._reserved, self._viewer())
        self._ledger.tell_voice(_key(voice), registered)
        return voice

    async def share(self, name: str, is_shared: bool) -> StoredVoice:
        """Let every key speak in a created voice, or its owner alone.

        Raises:
            VoiceNotFoundError: there is none.
            VoiceProtectedError: it is not the caller's.
            VoiceStoreError: the disk refuses.
        """
        return await self._creating().share(self._owned(name), is_shared)

    async def delete(self, name: str) -> StoredVoice:
        """Delete a created voice: no new stream speaks in it, running ones go on.

        Raises:
            VoiceNotFoundError: there is none.
            VoiceProtectedError: it is one of the voices directory, or not the caller's.
            VoiceStoreError: the disk refuses.
        """
        voice = self._owned(name)
        await self._creating().delete(voice.id)
        self._ledger.tell_voice(_key(voice), None)
        return voice

    def _owned(self, name: str) -> StoredVoice:
        voice = self.find(name)
        if isinstance(voice, NamedVoice):
            got = f"voice {name!r} is one of the server's own"
            raise VoiceProtectedError(f"{got}; its operator can remove it from the voices directory", param="voice")
        if not self.is_owned(voice):
            got = f"voice {name!r} is not yours"
            raise VoiceProtectedError(f"{got}; only its owner or the operator can change it", param="voice")
        return voice

    def _creating(self) -> CreatedVoices:
        if self._store is None:
            raise UnsupportedOptionError("voices can't be created here; start the gateway with --created-voices-dir")
        return self._store

    def _alias(self, name: str) -> str | None:
        """Return the alias that a name is, in any case of letters; None for the name of an operator's voice."""
        if name in self._voices:
            return None
        return name if name in self._aliases else self._folded_aliases.get(name.casefold())

    def _find(self, name: str, viewer: Viewer) -> NamedVoice | StoredVoice | None:
        named = self._voices.get(name)
        if named is None and self._store is not None:
            return self._store.directory.find(name, viewer)
        return named

    def _behind(self, alias: str) -> NamedVoice | StoredVoice:
        name = self._aliases[alias]
        found = self._find(name, OPERATOR)
        if found is None:
            got = f"got voice {alias!r}, an alias of {name!r}, which is not there"
            raise VoiceNotFoundError(f"{got}, expected {self._some_names()}", param="voice")
        return found

    def _some_names(self) -> str:
        aliases = list(self.aliases)
        return f"one of {_some(self.names, _NAMES_IN_MESSAGE)}" + (
            f", or one of the aliases {_some(aliases, _ALIASES_IN_MESSAGE)}" if aliases else ""
        )

    def _registration(self, key: str, source: NamedVoice | StoredVoice | InlineVoice) -> asyncio.Task[RegisteredVoice]:
        """Return the registration of a voice that is under way, or begin it; it goes on even if no request waits."""

        def note_end(task: asyncio.Task[RegisteredVoice]) -> None:
            del self._registrations[key]
            if not task.cancelled():
                task.exception()  # those who waited have it

        if key not in self._registrations:
            if self._budget is not None and isinstance(source, InlineVoice):
                audio = source.audio
                self._budget.take(key, len(audio) if isinstance(audio, bytes) else audio.nbytes)
            task = asyncio.create_task(self._register(key, source), name=f"register-{key}")
            task.add_done_callback(note_end)
            self._registrations[key] = task
        return self._registrations[key]

    async def _register(self, key: str, source: NamedVoice | StoredVoice | InlineVoice) -> RegisteredVoice:
        if isinstance(source, InlineVoice):
            # A voice that a caller brings waits for its caller's others.
            async with nullcontext() if self._budget is None else self._budget.turn():
                audio = await readable(source.audio) if isinstance(source.audio, bytes) else source.audio
                registered = await self._token2wav.register_voice(audio)
        elif isinstance(source, StoredVoice):
            registered = await self._creating().load(source)
        else:
            registered = await self._token2wav.register_voice(await asyncio.to_thread(_read_audio, source))
            self._tell_operator(source, registered)
        self._ledger.tell_voice(key, registered)
        return registered

    def _tell_operator(self, voice: NamedVoice, registered: RegisteredVoice) -> None:
        try:
            told = self._transcripts.warning(voice.transcript, registered)
        except InvalidVoicePromptError as error:
            told = str(error)
        if told:
            logger.warning("voice %s: %s", voice.name, told)


def load_voices(directory: Path) -> list[NamedVoice]:
    """List a directory's voices: `<name>.wav` (or .flac), its transcript in `<name>.txt`, its profile in `<name>.json`.

    Raises:
        ConfigError: no such directory, no voice in it, a voice without transcript, or a profile that can't be read.
    """
    if not directory.is_dir():
        raise ConfigError(f"voices directory {directory} does not exist; give one with <name>.wav and <name>.txt files")
    paths = sorted(path for path in directory.iterdir() if path.suffix.lower() in _AUDIO_SUFFIXES)
    if not paths:
        raise ConfigError(f"voices directory {directory} holds no .wav or .flac file; add <name>.wav and <name>.txt")
    return [
        NamedVoice(
            path.stem,
            path,
            _read_transcript(path.with_suffix(".txt")),
            read_profile(path.with_suffix(".json")),
            _file_state(path),
        )
        for path in paths
    ]


def _some(names: list[str], limit: int) -> str:
    more = f" or {len(names) - limit} more" if len(names) > limit else ""
    return f"{names[:limit]}{more}"


def _read_transcript(path: Path) -> str:
    try:
        transcript = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"transcript {path} can't be read ({error}); write what the voice says, in UTF-8") from error
    if not transcript:
        raise ConfigError(f"transcript {path} is empty; write what the voice says")
    return transcript


def _file_state(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return ""  # whoever speaks in the voice is told
    return f"{status.st_size}:{status.st_mtime_ns}"


def _read_audio(voice: NamedVoice) -> bytes:
    try:
        return voice.audio_path.read_bytes()
    except OSError as error:
        got = f"voice {voice.name!r} can't be read ({error.strerror})"
        raise VoiceStoreError(f"{got}; see its file in the voices directory") from error


def _key(source: NamedVoice | StoredVoice | InlineVoice) -> str:
    if isinstance(source, NamedVoice):
        return f"name:{source.name}:{source.file_state}"
    if isinstance(source, StoredVoice):
        return f"created:{source.id}"
    return f"content:{_content_hash(source.audio)}"


def _content_hash(audio: bytes | FloatArray) -> str:
    if isinstance(audio, bytes):
        return "file:" + hashlib.sha256(audio).hexdigest()
    return "samples:" + hashlib.sha256(np.ascontiguousarray(audio, dtype=np.float32).tobytes()).hexdigest()
