"""A stream that outlives its replica: its chunks are kept, and played again on another one when the first is lost.

    push ─► chunks kept ─► lease at A ─► audio ─► caller
                 │              ✗ lost
                 └─ all again ─► lease at B ─► audio, without the samples that were delivered ─► caller

The chunks are the same, with the same cuts, seed and voice, so the audio is the same; what was delivered is dropped by
count. Knows nothing of how leases are had.

    STREAMING ── the replica is lost ──► MOVING ── all chunks were sent again ──► STREAMING
        │                                  └── no replica takes the stream, or too many were lost ──┐
        └── the request itself is wrong, or the stream is closed ──────────────────────────────► FAILED
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial

from gateway.chunking.chunker import TokenChunk
from gateway.core import AudioChunk
from gateway.errors import GatewayError, Token2WavInterruptedError, Token2WavUnavailableError
from gateway.routing.fleet import SlotLease
from gateway.routing.router import is_replica_fault
from gateway.token2wav.replica import StreamLease
from servicekit.tasks import failed, stop

logger = logging.getLogger(__name__)

LeaseAgain = Callable[[SlotLease, GatewayError], Awaitable[StreamLease]]
"""Finds a new slot, not the lost one if possible; the error is the loss, and raised if there is no slot."""
_REPLAYED_AT_ONCE = 3
"""Chunks on their way in a replay: one runs, one waits, one travels."""


@dataclass(eq=False)
class _ReplicaStream:
    """The stream at one replica."""

    lease: StreamLease
    samples_to_drop: int
    sent: int = 0
    answered: int = 0
    error: GatewayError | None = None
    progress: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when an answer came or the replica was lost."""


class FailoverStream:
    """Implements `core.Token2WavStream` on one lease after the other."""

    def __init__(self, lease: StreamLease, lease_again: LeaseAgain, max_failovers: int) -> None:
        """Begin on an open lease; `close` must be called.

        Args:
            max_failovers: moves in a row without new audio; then the stream fails: no replica can make its chunks.
        """
        self._lease_again = lease_again
        self._max_failovers = max_failovers
        self._failovers_left = max_failovers
        self._chunks: list[TokenChunk] = []
        self._waiting: dict[int, asyncio.Future[AudioChunk]] = {}
        self._delivered_samples = 0
        self._failure: GatewayError | None = None
        """The error that ended the stream: FAILED. A chunk fails with it."""
        self._recovery: asyncio.Task[None] | None = None
        """The task that moves the stream: MOVING. A chunk waits until those before it were sent again."""
        self._current = self._begin(lease)

    @property
    def stream_id(self) -> str:
        """The name that the stream has at its replica now."""
        return self._current.lease.stream.stream_id

    @property
    def hop_multiple(self) -> int:
        return self._current.lease.hop_multiple

    def push(self, chunk: TokenChunk) -> asyncio.Future[AudioChunk]:
        """Send a chunk; see `Token2WavStream.push`. While the stream is being rebuilt it waits for its turn."""
        future: asyncio.Future[AudioChunk] = asyncio.get_running_loop().create_future()
        if self._failure is not None:
            return failed(future, self._failure)
        self._waiting[len(self._chunks)] = future
        self._chunks.append(chunk)
        if self._recovery is None:
            self._send_next(self._current)
        return future

    async def close(self, error: BaseException | None) -> None:
        """Free everything, wherever it is; a clean end is waited for a moment."""
        try:
            if self._recovery is not None:
                await stop(self._recovery)
        finally:
            # NOTE: a caller may be cancelled a second time while the recovery ends.
            self._fail(Token2WavInterruptedError(f"stream {self.stream_id} was closed before its audio came"))
            is_cut = error is not None or self._current.answered < len(self._chunks)
            await self._current.lease.close(self._current.error, is_cut)

    def _begin(self, lease: StreamLease) -> _ReplicaStream:
        at_replica = _ReplicaStream(lease, self._delivered_samples)
        lease.slot.on_ejected = lambda: self._lose(at_replica, _ejected(lease))
        return at_replica

    def _send_next(self, at_replica: _ReplicaStream) -> None:
        position = at_replica.sent
        at_replica.sent += 1
        at_replica.lease.stream.send(self._chunks[position], partial(self._settle, at_replica, position))

    def _settle(self, at_replica: _ReplicaStream, position: int, outcome: AudioChunk | BaseException) -> None:
        if at_replica is not self._current:
            return
        if isinstance(outcome, GatewayError):
            self._lose(at_replica, outcome)
        elif isinstance(outcome, BaseException):
            self._fail(Token2WavInterruptedError(f"stream {self.stream_id} failed: {outcome!r}"))
        elif at_replica.error is None:
            at_replica.lease.slot.replica.succeeded()
            at_replica.answered = position + 1
            self._deliver(at_replica, position, outcome)
            at_replica.progress.set()

    def _deliver(self, at_replica: _ReplicaStream, position: int, audio: AudioChunk) -> None:
        dropped = min(at_replica.samples_to_drop, len(audio.samples))
        at_replica.samples_to_drop -= dropped
        future = self._waiting.pop(position, None)
        if future is None:
            return
        heard = replace(audio, samples=audio.samples[dropped:]) if dropped else audio
        self._delivered_samples += len(heard.samples)
        self._failovers_left = self._max_failovers
        if not future.done():
            future.set_result(heard)

    def _lose(self, at_replica: _ReplicaStream, error: GatewayError) -> None:
        """Note that a replica is lost for this stream, once; go on elsewhere if that may help."""
        if at_replica.error is not None or at_replica is not self._current or self._failure is not None:
            return
        at_replica.error = error
        at_replica.progress.set()
        if self._recovery is not None:
            return  # NOTE: the recovery under way sees the error
        if not is_replica_fault(error):
            self._fail(error)
            return
        self._recovery = asyncio.create_task(self._recover(), name=f"failover-{self.stream_id}")

    async def _recover(self) -> None:
        """Lease anew until all chunks are sent again; ends in STREAMING or FAILED."""
        try:
            while (error := self._current.error) is not None:
                await self._move(error)
            self._recovery = None
        except GatewayError as error:
            self._fail(error)
        except Exception as error:
            logger.exception("stream %s could not be rebuilt", self.stream_id)
            self._fail(Token2WavInterruptedError(f"stream {self.stream_id} could not be rebuilt: {error!r}"))

    async def _move(self, error: GatewayError) -> None:
        lost = self._current.lease
        await lost.close(error, is_cut=True)
        if self._failovers_left <= 0 or not is_replica_fault(error):
            raise error
        self._failovers_left -= 1
        lost.slot.replica.failovers_total += 1
        lease = await self._lease_again(lost.slot, error)
        logger.warning(
            "stream_id=%s goes on at %s as stream_id=%s after %d samples: %s",
            lost.stream.stream_id,
            lease.slot.address,
            lease.stream.stream_id,
            self._delivered_samples,
            error,
        )
        self._current = self._begin(lease)
        await self._replay(self._current)

    async def _replay(self, at_replica: _ReplicaStream) -> None:
        """Send the chunks again, a few at a time, and those that come meanwhile."""
        while at_replica.error is None and at_replica.sent < len(self._chunks):
            if at_replica.sent - at_replica.answered < _REPLAYED_AT_ONCE:
                self._send_next(at_replica)
                continue
            at_replica.progress.clear()
            await at_replica.progress.wait()

    def _fail(self, error: GatewayError) -> None:
        self._failure = self._failure or error
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            failed(future, self._failure)


def _ejected(lease: StreamLease) -> Token2WavUnavailableError:
    got = f"token2wav at {lease.slot.address} was ejected ({lease.slot.replica.last_failure})"
    return Token2WavUnavailableError(f"{got}; see its log")
