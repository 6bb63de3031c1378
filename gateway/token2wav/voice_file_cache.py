"""Voice files by the id that voices have here, so that any replica can be given any voice.

A replica names a voice after what it was made from: the recording, or the file that was imported. So one voice may have
several names; the cache knows it by the first one, and `VoiceNames` what each replica calls it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from gateway.errors import GatewayError
from servicekit.tasks import cancel, stop

logger = logging.getLogger(__name__)


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


class VoiceNames:
    """What one replica calls the voices that were imported there; a bounded number is remembered."""

    def __init__(self, max_names: int = 4096) -> None:
        """Begin with none."""
        self._max_names = max_names
        self._names: OrderedDict[str, str] = OrderedDict()

    def get(self, voice_id: str) -> str:
        """Return its name there; its own id if it was not imported."""
        return self._names.get(voice_id, voice_id)

    def put(self, voice_id: str, name: str) -> None:
        """Note a name."""
        self._names.pop(voice_id, None)
        if name != voice_id:
            self._names[voice_id] = name
        while len(self._names) > self._max_names:
            self._names.popitem(last=False)
