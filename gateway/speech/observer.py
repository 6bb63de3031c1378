"""What the pipeline tells of its streams: the one seam behind which metrics and traces stand.

    begin ─► opening · opened ─► [speaking · received · guarded]* ─► sent ─► heard · asked ─► ... ─► ended
    refused                                                              (nothing was begun)

The classes here ignore everything; an observer overrides what it wants to know. What they raise reaches the stream,
so they must not.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from gateway.core import AudioChunk
from gateway.errors import GatewayError
from gateway.speech.request import GuardNote


class StreamObserver:
    """Told of one stream, in the order in which things happen."""

    opening: AbstractContextManager[None] = nullcontext()
    """Context manager that is open while token2wav leases the stream."""
    speaking: AbstractContextManager[None] = nullcontext()
    """Context manager that is open while the LLM speaks one segment, in the task that asks it."""

    def opened(self, stream_id: str) -> None:
        """Note token2wav's name of the stream."""

    def received(self, tokens: int) -> None:
        """Note speech tokens that have just come."""

    def guarded(self, note: GuardNote) -> None:
        """Note a segment whose speech left the text."""

    def sent(self, index: int, tokens: int) -> None:
        """Note a chunk, look-ahead included, that has just been pushed."""

    def heard(self, audio: AudioChunk) -> None:
        """Note audio that leaves the pipeline now."""

    def asked(self) -> None:
        """Note that the caller asks for more."""

    def ended(self, error: BaseException | None) -> None:
        """Note the end, once: None is a good one; leaving early shows as CancelledError or GeneratorExit."""


class Observer:
    """Told of every stream of a process."""

    def begin(self, request_id: str) -> StreamObserver:
        """Note that speech was asked for."""
        return StreamObserver()

    def refused(self, error: GatewayError) -> None:
        """Note that speech was refused before it began."""
