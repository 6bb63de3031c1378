"""What the pipeline tells of its streams: the one seam behind which metrics and traces stand.

    begin ─► opening · opened ─► [speaking · received · guarded]* ─► sent ─► heard · asked ─► ... ─► ended
    refused                                                              (nothing was begun)

The classes here ignore everything; an observer overrides what it wants to know. What they raise reaches the stream,
so they must not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

from gateway.core import AudioChunk
from gateway.errors import GatewayError
from gateway.speech.request import GuardNote

_NOTHING: AbstractContextManager[None] = nullcontext()


class StreamObserver:
    """Told of one stream, in the order in which things happen."""

    def opening(self) -> AbstractContextManager[None]:
        """Return a context manager that is open while token2wav leases the stream."""
        return _NOTHING

    def opened(self, stream_id: str) -> None:
        """Note token2wav's name of the stream."""

    def speaking(self) -> AbstractContextManager[None]:
        """Return a context manager that is open while the LLM speaks one segment, in the task that asks it."""
        return _NOTHING

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
        return _IGNORED

    def refused(self, error: GatewayError) -> None:
        """Note that speech was refused before it began."""


@contextmanager
def telling_refusals(observer: Observer) -> Iterator[None]:
    """Tell of an error that comes up inside, before speech has begun."""
    try:
        yield
    except GatewayError as error:
        observer.refused(error)
        raise


class Observers(Observer):
    """Tells several, one after the other."""

    def __init__(self, *observers: Observer) -> None:
        """Keep them in order."""
        self._observers = observers

    def begin(self, request_id: str) -> StreamObserver:
        """See `Observer.begin`."""
        return _StreamObservers([observer.begin(request_id) for observer in self._observers])

    def refused(self, error: GatewayError) -> None:
        """See `Observer.refused`."""
        for observer in self._observers:
            observer.refused(error)


class _StreamObservers(StreamObserver):
    def __init__(self, streams: list[StreamObserver]) -> None:
        self._streams = streams

    def opening(self) -> AbstractContextManager[None]:
        return _all([stream.opening() for stream in self._streams])

    def opened(self, stream_id: str) -> None:
        for stream in self._streams:
            stream.opened(stream_id)

    def speaking(self) -> AbstractContextManager[None]:
        return _all([stream.speaking() for stream in self._streams])

    def received(self, tokens: int) -> None:
        for stream in self._streams:
            stream.received(tokens)

    def guarded(self, note: GuardNote) -> None:
        for stream in self._streams:
            stream.guarded(note)

    def sent(self, index: int, tokens: int) -> None:
        for stream in self._streams:
            stream.sent(index, tokens)

    def heard(self, audio: AudioChunk) -> None:
        for stream in self._streams:
            stream.heard(audio)

    def asked(self) -> None:
        for stream in self._streams:
            stream.asked()

    def ended(self, error: BaseException | None) -> None:
        for stream in self._streams:
            stream.ended(error)


class _All(ExitStack):
    def __init__(self, contexts: list[AbstractContextManager[None]]) -> None:
        super().__init__()
        self._contexts = contexts

    def __enter__(self) -> _All:
        for context in self._contexts:
            self.enter_context(context)
        return self


def _all(contexts: list[AbstractContextManager[None]]) -> AbstractContextManager[None]:
    return _All(contexts)  # type: ignore[return-value]


_IGNORED = StreamObserver()
