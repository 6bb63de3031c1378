"""All token2wav replicas as one `core.Token2Wav`: slots, voices, failover.

A stream stays at its replica until it ends or the replica is lost. A voice is registered at one replica; its file goes
into the voice file cache, and is imported wherever a stream in it opens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from gateway import errors
from gateway.core import FloatArray, RegisteredVoice, Token2WavStream
from gateway.routing.discovery import Places
from gateway.routing.fleet import NOBODY, NOWHERE, Fleet, SlotLease
from gateway.routing.replica import LOOK_AGAIN_S
from gateway.routing.router import Router, failure_of, give_back, is_replica_fault
from gateway.token2wav.failover_stream import FailoverStream
from gateway.token2wav.replica import StreamLease, Token2WavReplica, Token2WavReplicaClient, VoiceFileCache
from servicekit.clock import Clock
from token2wav_service.contract import DEFAULT_PRIORITY

logger = logging.getLogger(__name__)

T = TypeVar("T")


class RoutedToken2Wav(Router[Token2WavReplica]):
    """Implements `core.Token2Wav` and `core.VoiceMaker` over all replicas."""

    def __init__(
        self,
        fleet: Fleet,
        places: Places,
        make_client: Callable[[str], Token2WavReplicaClient],
        clock: Clock,
        voice_file_cache: VoiceFileCache | None = None,
    ) -> None:
        self.voice_file_cache = cache = VoiceFileCache() if voice_file_cache is None else voice_file_cache
        super().__init__(fleet, places, lambda address: Token2WavReplica(make_client(address), cache), clock)

    async def close(self) -> None:
        """Drop all connections; open streams end."""
        await self.voice_file_cache.close()
        await super().close()

    async def register_voice(self, audio: bytes | FloatArray) -> RegisteredVoice:
        """See `Token2Wav.register_voice`; any replica does it."""

        async def register(replica: Token2WavReplica) -> RegisteredVoice:
            voice = await replica.client.register_voice(audio)
            # NOTE: a file of an earlier model must not stay.
            self.voice_file_cache.drop(voice.voice_id)
            self.voice_file_cache.fetch(voice.voice_id, lambda: export(replica, voice.voice_id))
            return voice

        async def export(maker: Token2WavReplica, voice_id: str) -> bytes:
            """Fetch the voice's file; if its maker is lost or has lost it meanwhile, any replica makes it."""
            try:
                return await maker.client.export_voice(voice_id)
            except errors.GatewayError as error:
                if not (is_replica_fault(error) or isinstance(error, errors.VoiceEvictedError)):
                    raise
            return await self._unslotted_call(make_again)

        async def make_again(replica: Token2WavReplica) -> bytes:
            return await replica.client.export_voice((await replica.client.register_voice(audio)).voice_id)

        return await self._unslotted_call(register)

    async def export_voice(self, voice_id: str) -> bytes:
        file = await self.voice_file_cache.wait_for(voice_id)
        if file is not None:
            return file
        return await self._unslotted_call(lambda replica: replica.client.export_voice(voice_id))

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
            OverloadedError: no slot came free in time.
        """

        async def lease_again(lost_at: SlotLease, error: errors.GatewayError) -> StreamLease:
            return await self._lease(voice_id, seed, priority, lost_at, error)

        with self.voice_file_cache.in_use(voice_id):
            lease = await self._lease(voice_id, seed, priority)
            stream = FailoverStream(lease, lease_again, self.fleet.settings.max_failovers)
            try:
                yield stream
            except BaseException as error:
                await stream.close(error)
                raise
            await stream.close(None)

    async def _lease(
        self,
        voice_id: str,
        seed: int,
        priority: int,
        lost_at: SlotLease | None = None,
        lost: errors.GatewayError | None = None,
    ) -> StreamLease:
        """Open a stream at the best replica that takes it; `lost` is why one that was open must move."""
        wait_s = self.fleet.settings.admission_wait_s if lost is None else self.fleet.rescue_s
        search = _LeaseSearch(self._clock.now() + wait_s, lost_at, lost)
        has_streams = lost is None and self.caller_has_share()
        while True:
            slot = await self._wait_for_slot(search, ignores_limit=not has_streams)
            replica = self.client(slot.address)
            try:
                lease = await replica.open(slot, voice_id, seed, priority, has_streams)
            except BaseException as error:
                give_back(slot, error)
                search.note_refusal(error, slot.address)
            else:
                replica.keep_file(voice_id)
                return lease
            self._check_time(search)
            with self.fleet.looked(search.trouble is not None and _is_full(search.trouble)):
                await asyncio.sleep(LOOK_AGAIN_S)

    async def _wait_for_slot(self, search: _LeaseSearch, ignores_limit: bool) -> SlotLease:
        wait_s = max(0.0, search.ends_s - self._clock.now())
        try:
            return await self.wait_for_slot(wait_s, search.avoid, search.spared, ignores_limit)
        except (errors.OverloadedError, errors.Token2WavUnavailableError):
            # NOTE: the first error says more than that no other replica was free.
            if search.trouble is not None and not _is_full(search.trouble):
                raise search.trouble from None
            raise

    def _check_time(self, search: _LeaseSearch) -> None:
        """Give the search up if its time is over and no other replica is left to ask."""
        # NOTE: a blocked replica may have used up the time; the others are still asked once.
        may_ask_others = search.was_new and self.fleet.has_other(than=search.avoid)
        if search.trouble is None or may_ask_others or self._clock.now() < search.ends_s:
            return
        if _is_full(search.trouble):
            raise self.fleet.overloaded() from search.trouble
        raise search.trouble

    async def _unslotted_call(self, do: Callable[[Token2WavReplica], Awaitable[T]]) -> T:
        """Have some replica do what needs no slot; the next one if it has no room or fails through its own fault."""
        avoid: frozenset[str] = NOBODY
        ends_s = self._clock.now() + self.fleet.settings.admission_wait_s
        while True:
            wait_s = max(0.0, ends_s - self._clock.now())
            chosen = await self.wait_for_replica(wait_s, avoid)
            try:
                with self.fleet.unslotted_call(chosen):
                    done = await do(self.client(chosen.address))
            except errors.GatewayError as error:
                if (kind := failure_of(error)) is not None:
                    self.fleet.note_failure(chosen.address, str(error), kind)
                if not _is_full(error) and not is_replica_fault(error):
                    raise
                if chosen.address not in avoid:
                    avoid |= {chosen.address}
                    continue
                if not _is_full(error):
                    raise
                if self._clock.now() >= ends_s:
                    raise self.fleet.overloaded() from error
                avoid = NOBODY
                await asyncio.sleep(LOOK_AGAIN_S)
            else:
                chosen.succeeded()
                return done


class _LeaseSearch:
    """The search for a replica that takes one stream: replicas asked, errors, and the time limit."""

    def __init__(self, ends_s: float, lost_at: SlotLease | None, lost: errors.GatewayError | None) -> None:
        self.ends_s = ends_s
        self.avoid = NOBODY if lost_at is None else frozenset((lost_at.address,))
        """Addresses of replicas that are asked last."""
        # NOTE: to play a stream again where it was too slow already would only add to the load. Where nobody is served,
        # another connection may do.
        is_slow = isinstance(lost, errors.Token2WavDeadlineError) and lost.serves_others
        self.spared = frozenset((lost_at.life,)) if is_slow and lost_at is not None else NOWHERE
        """Replicas that the stream must not return to."""
        self.trouble = lost
        """The latest error."""
        self.was_new = True
        """Whether the replica that was asked last had not been asked before."""

    def note_refusal(self, error: BaseException, address: str) -> None:
        """Note why a replica did not take the stream; raise the error if no other one may.

        Raises:
            VoiceEvictedError: the same replica could not use the voice's file twice.
        """
        if not isinstance(error, errors.GatewayError):
            raise error
        if not (is_replica_fault(error) or _is_full(error) or _is_voice_trouble(error)):
            raise error
        self.was_new = address not in self.avoid
        if _is_voice_trouble(error) and not self.was_new:
            raise errors.VoiceEvictedError(f"{error}; the voice must be registered again") from error
        self.trouble, self.avoid = error, self.avoid | {address}


def _is_full(error: errors.GatewayError) -> bool:
    return isinstance(error, errors.Token2WavBusyError)


def _is_voice_trouble(error: errors.GatewayError) -> bool:
    """Say whether a replica can't use the voice's file; another one of another model may."""
    return isinstance(error, (errors.VoiceOutdatedError, errors.VoiceFileError))
