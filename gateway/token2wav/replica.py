"""One token2wav replica: its client, the streams that are open there, and what it calls the voices brought to it.

`VoiceFileCache` has voice files by the id that voices have here, so that any replica can be given any voice. A replica
names a voice after what it was made from: the recording, or the file that was imported. So one voice may have several
names; the cache knows it by the first one, and `Token2WavReplica` what its replica calls it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol
from weakref import WeakValueDictionary

from gateway import errors
from gateway.chunking.chunker import TokenChunk
from gateway.core import AudioChunk, VoiceMaker
from gateway.errors import GatewayError
from gateway.routing.fleet import SlotLease
from gateway.routing.replica import LoadReport
from gateway.routing.router import give_back
from servicekit.tasks import cancel, failed, stop
from token2wav_service.contract import ServerStatus

logger = logging.getLogger(__name__)

FETCH_AFTER_S = 0.05
"""Time for the first sound in a new voice, which the fetch of its file would delay."""


class VoiceFileCache:
    """The files used last, under a bound of bytes; those of streams under way stay, also beyond it."""

    def __init__(self, max_bytes: int = 64 * 1024 * 1024) -> None:
        """Begin empty; a voice has 50 to 400 KB."""
        self._max_bytes = max_bytes
        self._files: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0
        self._users: Counter[str] = Counter()
        self._fetches: dict[str, asyncio.Task[None]] = {}
        """Files that are on their way, by voice."""

    async def close(self) -> None:
        """Wait for no file any more."""
        await stop(*self._fetches.values())

    def __len__(self) -> int:
        return len(self._files)

    def put(self, voice_id: str, file: bytes) -> None:
        """Keep a file; the ones used longest ago make room. One that is larger than the cache is not kept."""
        self._remove(voice_id)
        self._files[voice_id] = file
        self._bytes += len(file)
        self._make_room()

    def get(self, voice_id: str) -> bytes | None:
        """Return a voice's file, which is thereby used; None if it is not here."""
        if voice_id in self._files:
            self._files.move_to_end(voice_id)
        return self._files.get(voice_id)

    def fetch(self, voice_id: str, export: Callable[[], Awaitable[bytes]]) -> None:
        """Have a file exported and keep it, beside what goes on meanwhile; a failure is logged."""
        if self.get(voice_id) is not None or voice_id in self._fetches:
            return

        async def keep() -> None:
            await asyncio.sleep(FETCH_AFTER_S)
            try:
                self.put(voice_id, await export())
            except GatewayError as error:
                logger.warning("voice %s can't be kept for other replicas: %s", voice_id, error)

        fetch = self._fetches[voice_id] = asyncio.create_task(keep(), name=f"fetch-{voice_id}")
        fetch.add_done_callback(lambda done: self._forget_fetch(voice_id, done))

    async def wait_for(self, voice_id: str) -> bytes | None:
        """Return a voice's file as `get` does, once one that is on its way has come."""
        while voice_id in self._fetches:
            await asyncio.wait([self._fetches[voice_id]])
        return self.get(voice_id)

    @contextmanager
    def in_use(self, voice_id: str) -> Iterator[None]:
        """Keep a voice's file, from when it comes, for a stream that speaks in it."""
        self._users[voice_id] += 1
        try:
            yield
        finally:
            self._users[voice_id] -= 1
            if not self._users[voice_id]:
                del self._users[voice_id]
                self._make_room()

    def drop(self, voice_id: str) -> None:
        """Forget a file, also one on its way; harmless if there is none."""
        if voice_id in self._fetches:
            cancel(self._fetches.pop(voice_id))
        self._remove(voice_id)

    def _forget_fetch(self, voice_id: str, fetch: asyncio.Task[None]) -> None:
        if self._fetches.get(voice_id) is fetch:
            del self._fetches[voice_id]

    def _remove(self, voice_id: str) -> None:
        file = self._files.pop(voice_id, None)
        self._bytes -= len(file) if file is not None else 0

    def _make_room(self) -> None:
        while self._bytes > self._max_bytes:
            oldest = next((voice_id for voice_id in self._files if voice_id not in self._users), None)
            if oldest is None:
                return
            self._remove(oldest)


MAX_NAMES = 4096
"""Most names of voices that are remembered of one replica."""
MAX_IMPORTS = 3
"""Most imports of one voice for one stream; a replica that restarts meanwhile, or is full, loses it again."""


Settle = Callable[[AudioChunk | BaseException], None]
"""Takes a chunk's audio, or the error that it failed with."""


class ReplicaStream(ABC):
    """One open stream at a replica; implements `core.Token2WavStream`."""

    stream_id: str
    hop_multiple = 1
    """See `Token2WavStream`; the server's status says it, which a stream alone does not ask for."""

    def push(self, chunk: TokenChunk) -> asyncio.Future[AudioChunk]:
        """See `Token2WavStream.push`."""
        future: asyncio.Future[AudioChunk] = asyncio.get_running_loop().create_future()

        def settle(outcome: AudioChunk | BaseException) -> None:
            if isinstance(outcome, BaseException):
                failed(future, outcome)
            elif not future.done():
                future.set_result(outcome)

        self.send(chunk, settle)
        return future

    @abstractmethod
    def send(self, chunk: TokenChunk, settle: Settle) -> None:
        """Do the same without a future; `settle` is called once, maybe at once."""


class Token2WavReplicaClient(VoiceMaker, Protocol):
    """A client of one replica (`gateway.token2wav.client.Token2WavClient`, or a fake)."""

    def open_stream(
        self, voice_id: str, seed: int, priority: int = ..., caller_has_share: bool = ...
    ) -> AbstractAsyncContextManager[ReplicaStream]: ...
    async def status(self) -> ServerStatus: ...
    async def close(self) -> None: ...


@dataclass(eq=False)
class StreamLease:
    """A stream that is open at a replica; closed exactly once."""

    slot: SlotLease
    _context: AbstractAsyncContextManager[ReplicaStream] | None
    stream: ReplicaStream
    hop_multiple: int

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
        self.client = client
        self._voice_file_cache = voice_file_cache
        self._names: dict[str, str] = {}
        """What voices that were imported here are called here."""
        self._hop_multiple = 1
        self._imports: WeakValueDictionary[str, _Import] = WeakValueDictionary()

    async def probe(self) -> LoadReport:
        """Ask how busy it is; see `router.ReplicaClient`."""
        try:
            status = await self.client.status()
        except errors.Token2WavStoppingError:
            return LoadReport(is_draining=True)
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
        name = self._names.get(voice_id, voice_id)
        imports = 0
        while True:
            try:
                context = self.client.open_stream(name, seed, priority, caller_has_share)
                return StreamLease(slot, context, await context.__aenter__(), self._hop_multiple)
            except errors.VoiceEvictedError as error:
                if imports == MAX_IMPORTS:
                    lost = f"{slot.address} lost voice {voice_id} after each of {imports} imports"
                    raise errors.Token2WavBusyError(lost) from error
                name = await self._bring(voice_id)
                imports += 1

    def keep_file(self, voice_id: str) -> None:
        """See to it, beside what goes on, that a voice's file is in the voice file cache."""
        self._voice_file_cache.fetch(voice_id, partial(self.client.export_voice, self._names.get(voice_id, voice_id)))

    async def _bring(self, voice_id: str) -> str:
        """Import a voice from the voice file cache, once however many streams want it; returns its name there."""
        file = await self._voice_file_cache.wait_for(voice_id)
        if file is None:
            raise errors.VoiceEvictedError(f"voice {voice_id} is in no file cache; register it again")
        importing = self._imports.setdefault(voice_id, _Import())
        async with importing.lock:
            if not importing.is_done:
                self._note_name(voice_id, (await self.client.import_voice(file)).voice_id)
                importing.is_done = True
                del self._imports[voice_id]  # NOTE: who finds the voice gone after this must import it again
            return self._names.get(voice_id, voice_id)

    def _note_name(self, voice_id: str, name: str) -> None:
        self._names.pop(voice_id, None)
        if name != voice_id:
            self._names[voice_id] = name
        if len(self._names) > MAX_NAMES:
            del self._names[next(iter(self._names))]
