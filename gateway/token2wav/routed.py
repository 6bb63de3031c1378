"""All token2wav replicas as one `core.Token2Wav`: slots, voices, failover.

A stream stays at its replica until it ends or the replica is lost. A voice is registered at one replica; its file goes
in the voice file cache, and is imported wherever a stream in it opens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from gateway import errors
from gateway.core import FloatArray, RegisteredVoice, Token2WavStream
from gateway.routing.discovery import Source
from gateway.routing.faults import is_replica_fault, is_sickness
from gateway.routing.fleet import Fleet, SlotLease
from gateway.routing.replica import ReplicaStatus
from gateway.routing.replicas import NOBODY
from gateway.routing.waiting import wait_for_replica, wait_for_slot
from gateway.routing.watch import Watch
from gateway.token2wav.failover_stream import FailoverStream
from gateway.token2wav.lease import Lease, give_back
from gateway.token2wav.replica import Token2WavReplica, Token2WavReplicaClient
from gateway.token2wav.voice_file_cache import VoiceFileCache
from servicekit.clock import Clock
from token2wav_service.contract import DEFAULT_PRIORITY

logger = logging.getLogger(__name__)

T = TypeVar("T")
FIRST_PAUSE_S = 0.05
MAX_PAUSE_S = 1.0


class RoutedToken2Wav:
    """Implements `core.Token2Wav` and `core.VoiceMaker` over all replicas."""

    def __init__(
        self, fleet: Fleet, sources: list[Source], make_client: Callable[[str], Token2WavReplicaClient], clock: Clock
    ) -> None:
        """Know the replicas that the sources name; `start` finds and probes the others."""
        self.fleet = fleet
        self._clock = clock
        self.voice_file_cache = VoiceFileCache(fleet.settings.voice_shelf_bytes)
        self._watch = Watch(
            fleet, sources, lambda address: Token2WavReplica(make_client(address), self.voice_file_cache)
        )
        self._caching_tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to look for replicas and to probe them."""
        self._watch.start()

    async def close(self) -> None:
        """Drop all connections; open streams end."""
        for task in self._caching_tasks:
            task.cancel()
        await asyncio.gather(*self._caching_tasks, return_exceptions=True)
        await self._watch.close()

    def snapshot(self) -> tuple[ReplicaStatus, ...]:
        """Return the facts of every replica."""
        return self.fleet.replicas.snapshot()

    async def is_ready(self) -> bool:
        """Tell whether any replica takes streams; asks them all if none is known to."""
        if not self.fleet.replicas.is_ready:
            await self._watch.probe_once()
        return self.fleet.replicas.is_ready

    async def until_usable(self) -> None:
        """Wait for a replica that takes work, but not for long.

        Raises:
            Token2WavUnavailableError: there is none.
        """
        await wait_for_replica(self.fleet, self.fleet.settings.admission_wait_s, self._clock)

    async def register_voice(self, audio: bytes | FloatArray) -> RegisteredVoice:
        """See `Token2Wav.register_voice`; any replica does it."""

        async def register(replica: Token2WavReplica) -> RegisteredVoice:
            voice = await replica.client.register_voice(audio)
            # NOTE: a file of an earlier model must not stay.
            self.voice_file_cache.drop(voice.voice_id)
            await _cache_voice_file(replica, voice.voice_id)
            return voice

        return await self._unslotted_call(register)

    async def export_voice(self, voice_id: str) -> bytes:
        """See `VoiceMaker.export_voice`."""
        file = self.voice_file_cache.get(voice_id)
        return (
            file
            if file is not None
            else await self._unslotted_call(lambda replica: replica.client.export_voice(voice_id))
        )

    async def import_voice(self, voice_file: bytes) -> RegisteredVoice:
        """See `VoiceMaker.import_voice`; any replica does it."""
        voice = await self._unslotted_call(lambda replica: replica.client.import_voice(voice_file))
        self.voice_file_cache.put(voice.voice_id, voice_file)
        return voice

    @asynccontextmanager
    async def open_stream(
        self, voice_id: str, seed: int, priority: int = DEFAULT_PRIORITY
    ) -> AsyncIterator[Token2WavStream]:
        """Lease a stream; see `Token2Wav.open_stream`.

        Raises:
            OverloadedError: no slot is free, and none will be in time.
        """

        async def relet(avoid: frozenset[str], lost: errors.GatewayError) -> Lease:
            return await self._lease(voice_id, seed, priority, avoid, lost)

        with self.voice_file_cache.in_use(voice_id):
            lease = await self._lease(voice_id, seed, priority)
            stream = FailoverStream(lease, relet, self.fleet.settings.max_failovers)
            failure: BaseException | None = None
            try:
                yield stream
            except BaseException as error:
                failure = error
                raise
            finally:
                await stream.close(failure)

    async def _lease(
        self,
        voice_id: str,
        seed: int,
        priority: int,
        avoid: frozenset[str] = NOBODY,
        lost: errors.GatewayError | None = None,
    ) -> Lease:
        """Open a stream at the best replica that takes it; `lost` is why one that was open must move."""
        settings = self.fleet.settings
        ends_s = self._clock.now() + (settings.admission_wait_s if lost is None else settings.failover_s)
        trouble, pause_s = lost, FIRST_PAUSE_S
        while True:
            slot = await self._wait_for_slot(priority, avoid, ends_s, trouble, is_begun=lost is not None)
            replica = self._watch.client(slot.address)
            try:
                lease = await replica.open(slot, voice_id, seed, priority)
            except BaseException as error:
                give_back(slot, error)
                if not isinstance(error, errors.GatewayError) or not _may_go_elsewhere(error):
                    raise
                if _is_voice_trouble(error) and slot.address in avoid:
                    raise errors.VoiceEvictedError(f"{error}; the voice must be registered again") from error
                may_try_others = slot.address not in avoid
                trouble, avoid = error, avoid | {slot.address}
            else:
                self._keep_file(replica, voice_id)
                return lease
            # NOTE: a replica that stood still may have used up the time; the others are asked nevertheless, once.
            may_try_others = may_try_others and self.fleet.replicas.has_other(than=avoid)
            if self._clock.now() >= ends_s and not may_try_others:
                raise (self.fleet.overloaded(priority) if _is_full(trouble) else trouble) from trouble
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    async def _wait_for_slot(
        self, priority: int, avoid: frozenset[str], ends_s: float, trouble: errors.GatewayError | None, is_begun: bool
    ) -> SlotLease:
        try:
            wait_s = max(0.0, ends_s - self._clock.now())
            return await wait_for_slot(self.fleet, priority, wait_s, avoid, is_begun)
        except (errors.OverloadedError, errors.Token2WavUnavailableError):
            # NOTE: what went wrong first says more than that nothing else was to be had.
            if trouble is not None and not _is_full(trouble):
                raise trouble from None
            raise

    def _keep_file(self, replica: Token2WavReplica, voice_id: str) -> None:
        """See to it, beside the stream, that the voice can follow it elsewhere."""
        if self.voice_file_cache.get(voice_id) is None:
            task = asyncio.create_task(_cache_voice_file(replica, voice_id))
            self._caching_tasks.add(task)
            task.add_done_callback(self._caching_tasks.discard)

    async def _unslotted_call(self, do: Callable[[Token2WavReplica], Awaitable[T]]) -> T:
        """Have some replica do what needs no slot; the next one if it has no room or fails through its own fault."""
        avoid: frozenset[str] = NOBODY
        ends_s = self._clock.now() + self.fleet.settings.admission_wait_s
        while True:
            wait_s = max(0.0, ends_s - self._clock.now())
            chosen = await wait_for_replica(self.fleet, wait_s, self._clock, avoid)
            try:
                with self.fleet.replicas.unslotted_call(chosen):
                    done = await do(self._watch.client(chosen.address))
            except errors.GatewayError as error:
                if is_sickness(error):
                    self.fleet.note_failure(chosen.address, str(error))
                if not _is_full(error) and not is_replica_fault(error):
                    raise
                if chosen.address in avoid:
                    raise (self.fleet.overloaded(DEFAULT_PRIORITY) if _is_full(error) else error) from error
                avoid |= {chosen.address}
            else:
                chosen.health.succeeded()
                return done


def _may_go_elsewhere(error: errors.GatewayError) -> bool:
    return is_replica_fault(error) or _is_full(error) or _is_voice_trouble(error)


def _is_full(error: errors.GatewayError) -> bool:
    return isinstance(error, errors.Token2WavBusyError)


def _is_voice_trouble(error: errors.GatewayError) -> bool:
    """Say whether a replica can't use the voice's file; another one of another model may."""
    return isinstance(error, (errors.VoiceOutdatedError, errors.VoiceFileError))


async def _cache_voice_file(replica: Token2WavReplica, voice_id: str) -> None:
    try:
        await replica.cache_voice_file(voice_id)
    except errors.GatewayError as error:
        logger.warning("voice %s can't be kept for other replicas: %s", voice_id, error)
