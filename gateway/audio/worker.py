"""Encoding beside an event loop: the heavy codecs work in threads, where they let go of the interpreter's lock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from types import TracebackType
from typing import ParamSpec, Protocol

from gateway.core import FloatArray

_P = ParamSpec("_P")


class Encoder(Protocol):
    """What `AudioEncoder` offers."""

    is_light: bool

    def encode(self, samples: FloatArray) -> bytes:
        """See `AudioEncoder`."""
        ...

    def finish(self) -> bytes:
        """See `AudioEncoder`."""
        ...

    def close(self) -> None:
        """See `AudioEncoder`."""
        ...


class AsyncEncoder:
    """An `AudioEncoder` for one coroutine, which awaits each call before the next.

    A caller may be cancelled while its encoder works in a thread. Leaving the context then frees the codec as soon as
    that piece of work ends, and waits for nothing.
    """

    def __init__(self, encoder: Encoder, executor: Executor) -> None:
        """Take over the encoder.

        Args:
            encoder: freshly opened.
            executor: threads for encoders that are not light; shared by all answers.
        """
        self._encoder = encoder
        self._executor = executor
        self._work_in_hand: Future[bytes] | None = None

    @property
    def is_light(self) -> bool:
        """See `AudioEncoder`."""
        return self._encoder.is_light

    async def __aenter__(self) -> AsyncEncoder:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def encode(self, samples: FloatArray) -> bytes:
        """See `AudioEncoder.encode`."""
        return await self._worked(self._encoder.encode, samples)

    async def finish(self) -> bytes:
        """See `AudioEncoder.finish`."""
        return await self._worked(self._encoder.finish)

    def close(self) -> None:
        """Free the codec, once it does nothing any more; may be called again."""
        if self._work_in_hand is None:
            self._encoder.close()
        else:
            self._work_in_hand.add_done_callback(lambda _: self._encoder.close())

    async def _worked(self, work: Callable[_P, bytes], *args: _P.args, **kwargs: _P.kwargs) -> bytes:
        if self._encoder.is_light:
            return work(*args, **kwargs)
        self._work_in_hand = self._executor.submit(work, *args, **kwargs)
        return await asyncio.wrap_future(self._work_in_hand)
