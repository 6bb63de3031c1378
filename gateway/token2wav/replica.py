"""One token2wav replica: its client, the streams that are open there, and what it calls the voices brought to it."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Protocol
from weakref import WeakValueDictionary

from gateway import errors
from gateway.core import FloatArray, RegisteredVoice, Token2WavStream
from gateway.routing.fleet import SlotLease
from gateway.routing.replica import LoadReport
from gateway.routing.router import give_back
from gateway.token2wav.voice_file_cache import VoiceFileCache, VoiceNames
from token2wav_service.contract import ServerStatus

MAX_IMPORTS = 3
"""Most imports of one voice for one stream; a replica that restarts meanwhile, or is full, loses it again."""


class Token2WavReplicaClient(Protocol):
    """A client of one replica (`gateway.token2wav.client.Token2WavClient`, or a fake)."""

    async def register_voice(self, audio: bytes | FloatArray) -> RegisteredVoice: ...
    async def export_voice(self, voice_id: str) -> bytes: ...
    async def import_voice(self, voice_file: bytes) -> RegisteredVoice: ...
    def open_stream(
        self, voice_id: str, seed: int, priority: int = ..., caller_has_share: bool = ...
    ) -> AbstractAsyncContextManager[Token2WavStream]: ...
    async def status(self) -> ServerStatus: ...
    async def is_ready(self) -> bool: ...
    async def close(self) -> None: ...


class StreamLease:
    """A stream that is open at a replica; closed exactly once."""

    def __init__(
        self,
        slot: SlotLease,
        context: AbstractAsyncContextManager[Token2WavStream],
        stream: Token2WavStream,
        hop_multiple: int,
    ) -> None:
        """Own the slot and the entered context that gave the stream."""
        self.hop_multiple = hop_multiple
        self.slot = slot
        self.stream = stream
        self._context: AbstractAsyncContextManager[Token2WavStream] | None = context

    async def close(self, fault: errors.GatewayError | None, is_cut: bool) -> None:
        """Free the stream at the replica and its slot; harmless the second time.

        Args:
            fault: what the replica did wrong, if it did.
            is_cut: the stream is dropped; else its summary is waited for, but not for long.
        """
        context, self._context = self._context, None
        if context is None:
            return
        reason = fault if fault is not None or not is_cut else errors.Token2WavInterruptedError("the caller left")
        try:
            # NOTE: the context raises the error that it is given.
            with contextlib.suppress(errors.GatewayError):
                await context.__aexit__(None if reason is None else type(reason), reason, None)
        finally:
            give_back(self.slot, fault, is_begun=True)


class _Import:
    """One import of a voice, and the streams that wait for it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.is_done = False


class Token2WavReplica:
    """Opens streams at one replica, bringing the voice along where it lacks it."""

    def __init__(self, client: Token2WavReplicaClient, voice_file_cache: VoiceFileCache) -> None:
        """Own the client; the cache of voice files is shared by all replicas."""
        self.client = client
        self._voice_file_cache = voice_file_cache
        self._names = VoiceNames()
        self._hop_multiple = 1
        self._imports: WeakValueDictionary[str, _Import] = WeakValueDictionary()

    async def probe(self) -> LoadReport:
        """Ask how busy it is; see `router.ReplicaClient`."""
        try:
            status = await self.client.status()
        except errors.Token2WavStoppingError:
            return LoadReport(is_draining=True)
        except errors.Token2WavRejectedError:
            # A server of a version without a status: it serves, and refuses streams itself when it is full.
            return LoadReport()
        self._hop_multiple = status.hop_multiple
        return LoadReport(
            is_draining=status.is_draining,
            slots=status.max_streams,
            open_streams=status.open_streams,
            step_s=status.step_seconds,
            steps=status.steps,
            next_end_s=status.next_end_s,
        )

    async def close(self) -> None:
        """Drop its connection."""
        await self.client.close()

    async def open(
        self, slot: SlotLease, voice_id: str, seed: int, priority: int, caller_has_share: bool
    ) -> StreamLease:
        """Open a stream in a slot there.

        Raises:
            VoiceEvictedError: it lacks the voice, and no file of it is in the voice file cache.
            VoiceOutdatedError, VoiceFileError: it can't use the file.
            Token2WavBusyError: it lost the voice after each of a few imports.
            Token2WavError: anything the service did wrong.
        """
        name = self._names.get(voice_id)
        imports = 0
        while True:
            try:
                return await self._open(slot, name, seed, priority, caller_has_share)
            except errors.VoiceEvictedError as error:
                if imports == MAX_IMPORTS:
                    lost = f"{slot.address} lost voice {voice_id} after each of {imports} imports"
                    raise errors.Token2WavBusyError(lost) from error
                name = await self._bring(voice_id)
                imports += 1

    def keep_file(self, voice_id: str) -> None:
        """See to it, beside what goes on, that a voice's file is in the voice file cache."""
        self._voice_file_cache.fetch(voice_id, partial(self.client.export_voice, self._names.get(voice_id)))

    async def _open(self, slot: SlotLease, name: str, seed: int, priority: int, caller_has_share: bool) -> StreamLease:
        context = self.client.open_stream(name, seed, priority, caller_has_share)
        return StreamLease(slot, context, await context.__aenter__(), self._hop_multiple)

    async def _bring(self, voice_id: str) -> str:
        """Import a voice from the voice file cache, once however many streams want it; returns its name there."""
        file = await self._voice_file_cache.wait_for(voice_id)
        if file is None:
            raise errors.VoiceEvictedError(f"voice {voice_id} is in no file cache; register it again")
        importing = self._imports.setdefault(voice_id, _Import())
        async with importing.lock:
            if not importing.is_done:
                self._names.put(voice_id, (await self.client.import_voice(file)).voice_id)
                importing.is_done = True
                del self._imports[voice_id]  # NOTE: who finds the voice gone after this must import it again
            return self._names.get(voice_id)
