"""Creates, keeps and loads voices: a recording becomes features once, and its file serves from then on.

Knows the directory of files and what token2wav does with them; knows nothing of HTTP or of streams.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

from gateway.core import RegisteredVoice, VoiceMaker
from gateway.errors import (
    Token2WavProtocolError,
    VoiceEvictedError,
    VoiceExistsError,
    VoiceNotFoundError,
    VoiceOutdatedError,
    VoiceRateError,
    VoiceStoreFullError,
)
from gateway.ledger import CallerLedger
from gateway.voices.directory import EVERYBODY, StoredVoice, Viewer, VoiceDirectory, new_voice_id
from gateway.voices.draft import VoiceDraft, checked_draft, plain_form
from gateway.voices.recordings import readable
from gateway.voices.transcripts import TranscriptCheck
from servicekit.clock import SystemClock
from servicekit.tasks import run_whole
from token2wav_service.contract import TOKEN_RATE_HZ
from token2wav_service.voice_file import VoiceFile, VoiceFormatError, decode_voice_file, encode_voice_file

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class VoiceLimits:
    """What one directory and one caller may take; token2wav bounds a recording's seconds."""

    max_audio_bytes: int = 10 * 1024 * 1024
    """Most bytes of one recording as it is uploaded."""
    max_voices: int = 1000
    creations_per_minute: int = 10
    """Most attempts of one caller in a minute."""


class CreatedVoices:
    """The created voices of one directory; lives in one event loop."""

    def __init__(
        self,
        directory: VoiceDirectory,
        maker: VoiceMaker,
        limits: VoiceLimits | None = None,
        ledger: CallerLedger | None = None,
        unix_time: Callable[[], float] = time.time,
        transcripts: TranscriptCheck | None = None,
    ) -> None:
        """Keep where voices lie and who makes them.

        Args:
            directory: the files.
            maker: token2wav.
            limits: what is allowed.
            ledger: counts the creations of every caller; None: this process is alone.
            unix_time: dates new voices.
            transcripts: judges new voices; None: by their length only.
        """
        self.limits = limits or VoiceLimits()
        self.directory = directory
        """The voices as they lie on disk."""
        self._maker = maker
        self._unix_time = unix_time
        self._ledger = ledger or CallerLedger(SystemClock())
        self._transcripts = transcripts or TranscriptCheck()
        self._names_under_way: set[tuple[str, str]] = set()
        """Owner and name of each voice that is being created."""

    def admit(self, caller: str, viewer: Viewer = EVERYBODY) -> None:
        """Count a caller's attempt to create a voice, before its upload is read.

        Args:
            caller: counts as one.
            viewer: whose voice it will be.

        Raises:
            VoiceRateError: too many within the last minute.
            VoiceStoreFullError: there is no room for another voice of this viewer's.
        """
        allowed = self.limits.creations_per_minute
        if (wait_s := self._ledger.may_in("create", caller, allowed)) > 0:
            got = f"more than {allowed} voices a minute from one caller"
            raise VoiceRateError(f"{got}; try again in {wait_s:.0f} s", retry_after_s=wait_s)
        self._check_room(viewer)

    async def create(
        self, draft: VoiceDraft, reserved: Mapping[str, str] = MappingProxyType({}), viewer: Viewer = EVERYBODY
    ) -> tuple[StoredVoice, RegisteredVoice]:
        """Make a voice's features and keep them with its recording.

        Args:
            draft: what the caller gave.
            reserved: names that callers may not give, by their `plain_form`.
            viewer: whose voice it will be.

        Raises:
            InvalidRequestError: see `checked_draft`.
            VoiceExistsError: the name is reserved, or another voice of the viewer's has it.
            VoiceStoreFullError: as many voices as allowed are kept.
            InvalidVoicePromptError: token2wav can't use the recording, or it can't be made readable, or it says
                something else than its transcript.
            UnsupportedOptionError: PyAV is needed for the recording, and not installed.
            GatewayError: token2wav or the disk failed.
        """
        draft = checked_draft(draft, self.limits.max_audio_bytes)
        if (like := reserved.get(plain_form(draft.name))) is not None:
            got = f"the name {draft.name!r} is kept for the server's own voice {like!r}"
            raise VoiceExistsError(f"{got}; choose another name", param="name")
        with self._held(draft.name, viewer):
            registered, file = await self._make(await readable(draft.audio))
            warning = self._transcripts.warning(draft.transcript, registered)
            voice = StoredVoice(
                id=new_voice_id(),
                name=draft.name,
                transcript=draft.transcript,
                consent=draft.consent,
                created_at=int(self._unix_time()),
                seconds=len(file.prompt_tokens) / TOKEN_RATE_HZ,
                description=draft.description,
                media_type=draft.media_type,
                audio_bytes=len(draft.audio),
                owner=viewer.key or "",
                is_shared=draft.is_shared,
                warning=warning,
            )
            async with self.directory.changing():
                self._check_others(draft.name, viewer)
                await run_whole(self.directory.write, voice, file)
        logger.info("voice %s created: %.2f s, model %s", voice.id, voice.seconds, file.model_version)
        return voice, registered

    async def load(self, voice: StoredVoice) -> RegisteredVoice:
        """Have token2wav take a voice from its file, made again if that is another model's.

        Raises:
            VoiceNotFoundError: it was deleted.
            VoiceOutdatedError: another model made it and its recording was not kept.
            VoiceFileError: its file is damaged.
            GatewayError: token2wav or the disk failed.
        """
        file = await asyncio.to_thread(self.directory.read, voice.id)
        try:
            return await self._maker.import_voice(encode_voice_file(dataclasses.replace(file, audio=b"", notes={})))
        except VoiceOutdatedError as error:
            if not file.audio:
                raise VoiceOutdatedError(
                    f"voice {voice.name!r} was made with model {file.model_version}, which token2wav does not serve, "
                    "and its recording was not kept; create it again"
                ) from error
        return await self._make_again(voice, file)

    async def share(self, voice: StoredVoice, is_shared: bool) -> StoredVoice:
        """Let every key speak in a voice, or its owner alone.

        Raises:
            VoiceNotFoundError: it was deleted.
            VoiceStoreError: its file or the disk fails.
        """
        changed = dataclasses.replace(voice, is_shared=is_shared)
        async with self.directory.changing():
            file = await asyncio.to_thread(self.directory.read, voice.id)
            await run_whole(self.directory.write, changed, file)
        logger.info("voice %s is %s", voice.id, "shared" if is_shared else "its owner's alone")
        return changed

    async def delete(self, voice_id: str) -> None:
        """Remove a voice; streams that speak in it go on.

        Raises:
            VoiceNotFoundError: it is gone already.
            VoiceStoreError: the disk refuses.
        """
        async with self.directory.changing():
            await run_whole(self.directory.remove, voice_id)
        logger.info("voice %s deleted", voice_id)

    async def _make_again(self, voice: StoredVoice, old: VoiceFile) -> RegisteredVoice:
        registered, file = await self._make(old.audio)
        renewed = dataclasses.replace(voice, seconds=len(file.prompt_tokens) / TOKEN_RATE_HZ)
        async with self.directory.changing():
            # NOTE: a voice that was deleted meanwhile must stay deleted.
            if self.directory.find(voice.id) is None:
                raise VoiceNotFoundError(f"voice {voice.id} was deleted", param="voice")
            await run_whole(self.directory.write, renewed, file)
        logger.info("voice %s made again: model %s, was %s", voice.id, file.model_version, old.model_version)
        return registered

    async def _make(self, audio: bytes) -> tuple[RegisteredVoice, VoiceFile]:
        registered = await self._maker.register_voice(audio)
        try:
            data = await self._maker.export_voice(registered.voice_id)
        except VoiceEvictedError:
            # NOTE: under pressure the cache may drop a voice between the two calls.
            registered = await self._maker.register_voice(audio)
            data = await self._maker.export_voice(registered.voice_id)
        try:
            return registered, dataclasses.replace(decode_voice_file(data), audio=audio)
        except VoiceFormatError as error:
            got = f"token2wav's voice file can't be read ({error})"
            raise Token2WavProtocolError(f"{got}; gateway and server are of different versions") from error

    @contextmanager
    def _held(self, name: str, viewer: Viewer) -> Iterator[None]:
        """Hold a name and a place while the voice is made."""
        held = (viewer.key or "", name)
        if held in self._names_under_way:
            raise _name_taken(name)
        self._check_others(name, viewer)
        self._names_under_way.add(held)
        try:
            yield
        finally:
            self._names_under_way.discard(held)

    def _check_others(self, name: str, viewer: Viewer) -> None:
        """See that there is room for a voice of that name, also after another gateway has changed the directory."""
        if self.directory.find(name, viewer) is not None:
            raise _name_taken(name)
        self._check_room(viewer, name)

    def _check_room(self, viewer: Viewer, name: str | None = None) -> None:
        """See that there is room for another voice; one key never has more than it leaves free for others."""
        owners = [voice.owner for voice in self.directory.voices()]
        # NOTE: a voice already written counts as under way until its creation has returned.
        written = {(voice.owner, voice.name) for voice in self.directory.voices()}
        owners += [owner for owner, _ in self._names_under_way - written - {(viewer.key or "", name or "")}]
        kept, own, most = len(owners), owners.count(viewer.key or ""), self.limits.max_voices
        if kept >= most or (viewer.key and own >= most - kept):
            got = f"{kept} created voices are kept, {own} of them yours, and {most} are allowed"
            expected = "one key may have as many as it leaves free" if kept < most else "there is no room"
            raise VoiceStoreFullError(f"{got}; {expected}; delete one")


def _name_taken(name: str) -> VoiceExistsError:
    return VoiceExistsError(f"there is a voice {name!r} already; choose another name", param="name")
