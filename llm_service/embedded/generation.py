"""Bridges one HTTP call and the engine's thread.

Outputs come in as an async iterator, a lost client goes out as an abort. Knows nothing of request and response bodies.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from llm_service.embedded.loop import EngineLoop
from llm_service.embedded.types import GenerationOutput, GenerationRequest
from servicekit.tasks import stop
from servicekit.tracing import NULL_SPAN, Span

if TYPE_CHECKING:
    from starlette.types import Receive

T = TypeVar("T")


class OutputRelay:
    """Carries outputs from the engine's thread to one event loop, all that are there in one wake-up."""

    def __init__(self, event_loop: asyncio.AbstractEventLoop) -> None:
        self._event_loop = event_loop
        self._items: deque[tuple[asyncio.Queue[Any], Any]] = deque()
        self._is_scheduled = False

    @classmethod
    def running(cls) -> OutputRelay:
        """Return the running event loop's."""
        event_loop = asyncio.get_running_loop()
        relay = _RELAYS.get(event_loop)
        if relay is None:
            relay = _RELAYS[event_loop] = cls(event_loop)
        return relay

    def post(self, queue: asyncio.Queue[T], item: T) -> None:
        """Put an output, or what goes with it, into a queue of the event loop; for other threads."""
        self._items.append((queue, item))
        if not self._is_scheduled:
            self._is_scheduled = True
            self._event_loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        # NOTE: cleared first, so that anything posted from here on wakes us again.
        self._is_scheduled = False
        while self._items:
            queue, item = self._items.popleft()
            queue.put_nowait(item)


_RELAYS: WeakKeyDictionary[asyncio.AbstractEventLoop, OutputRelay] = WeakKeyDictionary()


class ClientDisconnected(Exception):
    """The caller went away before the answer was whole."""


class Generation:
    """One request in the engine, whose owner aborts it in the end."""

    def __init__(self, loop: EngineLoop, request: GenerationRequest, span: Span = NULL_SPAN) -> None:
        """Prepare; `span` is of this request and ends with it."""
        self._loop = loop
        self._request = request
        self._trace = GenerationTrace(span, len(request.prompt_ids))
        self._outputs: asyncio.Queue[GenerationOutput] = asyncio.Queue()

    def start(self) -> None:
        """Queue the request.

        Raises:
            EngineError: it was refused.
        """
        relay = OutputRelay.running()
        try:
            self._loop.submit(self._request, partial(relay.post, self._outputs))
        except BaseException as error:
            self._trace.end(error)
            raise

    def abort(self) -> None:
        """Stop the work; harmless when it has ended."""
        self._loop.abort(self._request.request_id)
        self._trace.end()

    async def outputs(self) -> AsyncIterator[GenerationOutput]:
        """Yield outputs up to the last.

        Raises:
            EngineError: the request failed.
        """
        while True:
            output = await self._outputs.get()
            self._trace.note(output)
            if output.error is not None:
                raise output.error
            yield output
            if output.is_last:
                return

    async def whole(self) -> GenerationOutput:
        """Collect the whole answer.

        Raises:
            EngineError: the request failed.
        """
        parts = [output async for output in self.outputs()]
        return GenerationOutput(
            self._request.request_id,
            tuple(token_id for part in parts for token_id in part.token_ids),
            parts[-1].finish_reason,
            parts[-1].stop_reason,
        )


class GenerationTrace:
    """The span of one request, and what is below it: the wait for the first token, and the tokens after it."""

    def __init__(self, span: Span, prompt_tokens: int) -> None:
        self._span = span
        self._phase = span.child("first token")
        self._tokens = 0
        self._has_ended = False
        span.note(prompt_tokens=prompt_tokens)

    def note(self, output: GenerationOutput) -> None:
        """Note what came out."""
        if output.token_ids and not self._tokens:
            self._phase.end()
            self._phase = self._span.child("decode")
        self._tokens += len(output.token_ids)
        if output.finish_reason is not None:
            self._span.note(finish_reason=output.finish_reason.value)
        if output.is_last:
            self.end(output.error)

    def end(self, error: BaseException | None = None) -> None:
        """End it; harmless when it has ended."""
        if self._has_ended:
            return
        self._has_ended = True
        self._phase.end(error)
        self._span.note(tokens=self._tokens)
        self._span.end(error)


async def run_unless_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Run `work`, but cancel it as soon as the client goes away. The request's body must have been read.

    Raises:
        ClientDisconnected: the client went away first.
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnected
        return task.result()
    finally:
        await stop(task, watch)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
