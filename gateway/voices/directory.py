"""The directory of created voices on disk: one safetensors file each, with what is known of the voice in its header.

The disk is the truth; what is remembered of it is dropped as soon as the directory changes, so that gateways that
share a directory agree. Knows files, not services: nothing here talks to token2wav.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import safetensors
from pydantic import TypeAdapter, ValidationError

from gateway.errors import ConfigError, VoiceFileError, VoiceNotFoundError, VoiceStoreError
from gateway.voices.profile import VoiceProfile
from servicekit.files import ONLY_OWNER, PART_SUFFIX, locked, write_bytes
from token2wav_service.voice_file import VoiceFile, VoiceFormatError, decode_voice_file, encode_voice_file

logger = logging.getLogger(__name__)

VOICE_ID = re.compile(r"voice_[0-9a-f]{24}")
"""Ids are made here, never taken from a caller: no other name becomes a path."""
SUFFIX = ".safetensors"
NOTE = "voice"
"""Header entry that holds a `StoredVoice` as JSON."""

_ID_BYTES = 12
_PART_LIFE_S = 3600.0
"""A temporary file this old was left behind by a process that died."""
_DIRECTORY_MODE = 0o700
"""Mode of the directory: for this user alone, as it holds recordings of people."""
_MTIME_STEP_NS = 50_000_000
"""Nanoseconds within which a second change may leave the directory's time unchanged."""


def new_voice_id() -> str:
    """Draw the id of a new voice."""
    return f"voice_{secrets.token_hex(_ID_BYTES)}"


@dataclass(frozen=True)
class StoredVoice:
    """What is known of a created voice."""

    id: str
    name: str
    transcript: str
    """Transcript of the recording; empty if unknown."""
    consent: str
    """The caller's note on who allowed the voice to be made."""
    created_at: int
    """Time of creation, seconds since 1970."""
    seconds: float
    """Length of the prompt in seconds."""
    description: str = ""
    media_type: str = ""
    """Media type of the recording as it was uploaded."""
    audio_bytes: int = 0
    """Size of the recording; 0 if it was not kept."""
    owner: str = ""
    """Name of the API key that created it; empty: the operator, or a time when no keys were used."""
    is_shared: bool = False
    """Whether its owner lets every key speak in it."""
    warning: str = ""
    """What may be wrong with its recording or transcript; see `TranscriptCheck`."""

    @property
    def profile(self) -> VoiceProfile:
        """What its creator said of it to listeners."""
        return VoiceProfile(self.description)


@dataclass(frozen=True)
class Viewer:
    """On whose behalf created voices are looked up."""

    key: str | None = None
    """Name of the API key, empty for a call without one; None: no keys are used here, and everyone may do all."""
    sees_all: bool = False
    """Whether the operator shares all created voices."""

    def owns(self, voice: StoredVoice) -> bool:
        """Whether the viewer may read its consent and transcript, share it and delete it."""
        return self.key is None or bool(voice.owner and voice.owner == self.key)

    def knows_by_name(self, voice: StoredVoice) -> bool:
        """Whether the voice's name means this voice: a name of another caller's choice means nothing to the viewer."""
        return self.owns(voice) or not voice.owner

    def sees(self, voice: StoredVoice) -> bool:
        """Whether the viewer may speak in it."""
        return self.knows_by_name(voice) or voice.is_shared or self.sees_all


EVERYBODY = Viewer()
OPERATOR = Viewer(key="", sees_all=True)
"""A viewer that finds any voice by its id, and by name those that no caller can have named."""


_VOICES = TypeAdapter(StoredVoice)


_Seen = tuple[tuple[int, int, int], StoredVoice | None]
"""What tells whether a file is still the one that was read, and its voice; None: it holds none of ours."""


class VoiceDirectory:
    """Finds, reads, writes and removes voices; lookups are for one thread."""

    def __init__(self, path: Path) -> None:
        """Make the directory if it is missing, and read what is there.

        Raises:
            ConfigError: it can't be made, or is not writable.
        """
        self._path = path
        self._seen: dict[str, _Seen] = {}
        self._by_age: list[StoredVoice] = []
        self._by_name: dict[str, list[StoredVoice]] = {}
        self._mtime_ns = -1
        self._scanned_ns = 0
        try:
            path.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
            self._remove_leftovers()
        except OSError as error:
            got = f"voices can't be kept in {path} ({error.strerror})"
            raise ConfigError(f"{got}; name a writable directory") from error
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            raise ConfigError(f"voices can't be kept in {path}: it is not writable; name another directory")
        self.voices()

    def voices(self) -> list[StoredVoice]:
        """List all voices, the oldest first.

        Raises:
            VoiceStoreError: the directory can't be read.
        """
        self._refresh()
        return list(self._by_age)

    def find(self, name: str, viewer: Viewer = EVERYBODY) -> StoredVoice | None:
        """Find a voice by its id or its name; of two with one name, the viewer's own, then the older.

        Raises:
            VoiceStoreError: the directory can't be read.
        """
        self._refresh()
        if name in self._seen:
            seen = self._seen[name][1]
            return seen if seen is not None and viewer.sees(seen) else None
        known = [voice for voice in self._by_name.get(name, ()) if viewer.knows_by_name(voice)]
        return min(known, key=lambda voice: not viewer.owns(voice), default=None)

    def read(self, voice_id: str) -> VoiceFile:
        """Read a voice's file whole.

        Raises:
            VoiceNotFoundError: it is gone.
            VoiceFileError: it is damaged.
        """
        try:
            return decode_voice_file(self._file(voice_id).read_bytes())
        except FileNotFoundError as error:
            raise VoiceNotFoundError(f"voice {voice_id} was deleted", param="voice") from error
        except (OSError, VoiceFormatError) as error:
            raise VoiceFileError(f"the file of voice {voice_id} can't be used: {error}; create it again") from error

    def write(self, voice: StoredVoice, file: VoiceFile) -> None:
        """Write a voice's file, whole or not at all.

        Raises:
            VoiceStoreError: the disk refuses.
        """
        note = _VOICES.dump_json(voice).decode()
        data = encode_voice_file(dataclasses.replace(file, notes={NOTE: note}))
        try:
            write_bytes(self._file(voice.id), data, ONLY_OWNER)
        except OSError as error:
            raise VoiceStoreError(f"the voice can't be written ({error.strerror}); see the disk's space") from error
        self._look_again()

    def remove(self, voice_id: str) -> None:
        """Delete a voice's file; nobody finds the voice from now on.

        Raises:
            VoiceNotFoundError: it was gone already.
            VoiceStoreError: the disk refuses.
        """
        try:
            self._file(voice_id).unlink()
        except FileNotFoundError as error:
            raise VoiceNotFoundError(f"voice {voice_id} was deleted before", param="voice") from error
        except OSError as error:
            raise VoiceStoreError(f"voice {voice_id} can't be deleted ({error.strerror})") from error
        self._look_again()

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Lock the directory against changes by all other processes that share it, until the context is left.

        Raises:
            VoiceStoreError: the disk refuses.
        """
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(locked(self._path))
            except OSError as error:
                raise VoiceStoreError(f"voices can't be changed ({error.strerror}); see the disk's space") from error
            yield

    def _file(self, voice_id: str) -> Path:
        assert VOICE_ID.fullmatch(voice_id), "a voice's id that was not made here"
        return self._path / f"{voice_id}{SUFFIX}"

    def _look_again(self) -> None:
        """Have the next lookup see our own change, however coarse the file system's clock is."""
        self._mtime_ns = -1

    def _refresh(self) -> None:
        """Look at the directory's time, and at its files only when that has moved."""
        try:
            mtime_ns = self._path.stat().st_mtime_ns
            if mtime_ns == self._mtime_ns and self._scanned_ns > mtime_ns + _MTIME_STEP_NS:
                return
            self._mtime_ns, self._scanned_ns = mtime_ns, time.time_ns()
            self._scan()
        except OSError as error:
            got = f"the directory of created voices can't be read ({error.strerror})"
            raise VoiceStoreError(f"{got}; make {self._path} readable again") from error

    def _scan(self) -> None:
        with os.scandir(self._path) as entries:
            files = [entry for entry in entries if _id_of(entry) is not None]
        self._seen = dict(filter(None, map(self._look, files)))
        found = [voice for _, voice in self._seen.values() if voice is not None]
        self._by_age, self._by_name = sorted(found, key=lambda voice: (voice.created_at, voice.id)), {}
        for voice in self._by_age:
            self._by_name.setdefault(voice.name, []).append(voice)

    def _look(self, entry: os.DirEntry[str]) -> tuple[str, _Seen] | None:
        """Read a file's header unless it is known; None if the file has gone meanwhile."""
        voice_id = entry.name.removesuffix(SUFFIX)
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return None
        stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
        known = self._seen.get(voice_id)
        if known is not None and known[0] == stamp:
            return voice_id, known
        return voice_id, (stamp, _read_note(Path(entry.path), voice_id))

    def _remove_leftovers(self) -> None:
        for path in self._path.glob(f".*{PART_SUFFIX}"):
            if path.stat().st_mtime < time.time() - _PART_LIFE_S:
                path.unlink(missing_ok=True)


def _id_of(entry: os.DirEntry[str]) -> str | None:
    stem, is_voice, rest = entry.name.rpartition(SUFFIX)
    is_ours = bool(is_voice) and not rest and VOICE_ID.fullmatch(stem) and entry.is_file(follow_symlinks=False)
    return stem if is_ours else None


def _read_note(path: Path, voice_id: str) -> StoredVoice | None:
    """Read what a file's header says of its voice; a file that can't be used must not hide the others."""
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            note = (file.metadata() or {}).get(NOTE, "")
        voice = _VOICES.validate_json(note)
    except (OSError, safetensors.SafetensorError, ValidationError) as error:
        logger.warning("%s is no voice of ours and is left alone: %s", path, error)
        return None
    if voice.id != voice_id:
        logger.warning("%s holds voice %s and is left alone: files are named after their voices", path, voice.id)
        return None
    return voice
