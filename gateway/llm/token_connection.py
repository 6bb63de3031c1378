"""All answers that this gateway asks of one LLM service, over one gRPC stream.

    begin, cancel ─► one message for all that wait ─► service ─► one message for all that is ready ─► each answer

Belongs to one event loop. Knows messages and connections; what a request says and what an error means is
`token_client`'s business.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from tts_api.llm.v1 import speech_token_service_pb2 as messages
from tts_api.llm.v1 import speech_token_service_pb2_grpc as stubs

from gateway.core import SpeechTokenDelta
from servicekit.tasks import cancel

MAX_REQUEST_BYTES = 1 << 19
"""Most bytes of one request, and of those sent together; the service takes twice as much. A larger one would end the
stream for everybody."""
_MS = 1000
_REASONS = {messages.FINISH_REASON_STOP: "stop", messages.FINISH_REASON_LENGTH: "length"}
_stub: Callable[[Any], Any] = stubs.SpeechTokenServiceStub  # the stubs have no types
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class AnswerFailedError(Exception):
    """An answer failed, by itself or with its stream."""

    def __init__(self, code: grpc.StatusCode | None, details: str | None) -> None:
        """Keep what the service said; without a code it ended the stream."""
        super().__init__(details)
        self.code, self.details = code, details or ""


@dataclass(eq=False)
class TokenAnswer:
    """One answer under way."""

    number: int
    connection: TokenConnection
    has_begun: bool = False
    _ids: list[int] = field(default_factory=list)
    _fills: list[int] = field(default_factory=list)
    _reason: str | None = None
    _error: Exception | None = None
    _least: int = 1
    _waiter: asyncio.Future[None] | None = None

    def has_news(self, least: int = 1) -> bool:
        """Tell whether `read` returns or raises at once."""
        return len(self._ids) >= least or bool(self._fills or self._reason or self._error)

    async def read(self, least: int = 1) -> SpeechTokenDelta:
        """Wait for so many tokens that have not been read yet, or anything else, and return all there is.

        Raises:
            AnswerFailedError: it failed.
        """
        self._least = least
        while not self.has_news(least):
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if not (self._ids or self._fills or self._reason) and self._error is not None:
            raise self._error
        news = SpeechTokenDelta(tuple(self._ids), self._reason, tuple(self._fills))
        self._ids, self._fills, self._reason = [], [], None
        return news

    def put(self, response: Any) -> None:
        """Take the next part."""
        self.has_begun = True
        self._fills += [len(self._ids) + place for place in response.fills]
        self._ids += response.speech_ids
        self._reason = _REASONS.get(response.finish_reason)
        self._wake()

    def fail(self, error: Exception) -> None:
        """End it behind the parts that are there; the first error counts."""
        self._error = self._error or error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done() and self.has_news(self._least):
            self._waiter.set_result(None)


class TokenConnection:
    """One stream; when it has ended, another one must be made."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._answers: dict[int, TokenAnswer] = {}
        self._numbers = itertools.count(1)
        self._begins: deque[Any] = deque()
        self._cancels: list[int] = []
        self._texts: list[Any] = []
        self._outgoing = asyncio.Event()
        self.received = 0
        """Number of messages received."""
        self.is_over = False
        self._running = asyncio.ensure_future(self._run(_stub(channel).GenerateMany()))

    def begin(self, request: Any, timeout_s: float, traceparent: str = "") -> TokenAnswer:
        """Ask for an answer.

        Args:
            request: a `GenerateRequest` of at most MAX_REQUEST_BYTES.
            timeout_s: it fails after so long.
        """
        answer = TokenAnswer(next(self._numbers), self)
        self._answers[answer.number] = answer
        self._begins.append(
            messages.NumberedRequest(
                number=answer.number, request=request, timeout_ms=max(1, int(timeout_s * _MS)), traceparent=traceparent
            )
        )
        self._outgoing.set()
        return answer

    def feed(self, answer: TokenAnswer, text_ids: Sequence[int], is_last: bool) -> None:
        """Send more text of an interleaved answer; harmless when it has ended."""
        if answer.number in self._answers:
            self._texts.append(messages.MoreText(number=answer.number, text_ids=text_ids, is_last=is_last))
            self._outgoing.set()

    def cancel(self, answer: TokenAnswer) -> None:
        """End an answer; harmless when it has ended."""
        if self._answers.pop(answer.number, None) is not None:
            self._cancels.append(answer.number)
            self._outgoing.set()

    def close(self) -> None:
        """End the stream; answers under way fail."""
        self.is_over = True
        cancel(self._running)

    async def _run(self, call: Any) -> None:
        writing = asyncio.ensure_future(self._write(call))
        end: tuple[grpc.StatusCode | None, str | None] = (None, "the service ended the stream")
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                self.received += 1
                for part in message.parts:
                    self._deliver(part)
        except grpc.aio.AioRpcError as error:
            end = (error.code(), error.details())
        finally:
            self.is_over = True
            cancel(writing)
            call.cancel()
            answers, self._answers = self._answers, {}
            for answer in answers.values():
                answer.fail(AnswerFailedError(*end))

    async def _write(self, call: Any) -> None:
        while True:
            await self._outgoing.wait()
            begins, cancels = self._next_begins(), self._cancels
            # NOTE: text must not overtake the begin of its answer.
            texts, self._texts = ([], self._texts) if self._begins else (self._texts, [])
            self._cancels = []
            if not self._begins:
                self._outgoing.clear()
            try:
                await call.write(messages.GenerateManyRequest(begin=begins, cancel=cancels, texts=texts))
            except (grpc.RpcError, asyncio.InvalidStateError):
                return  # the reader learns why

    def _next_begins(self) -> list[Any]:
        """Return those that go out together."""
        chosen: list[Any] = []
        room = MAX_REQUEST_BYTES
        while self._begins and (not chosen or self._begins[0].ByteSize() <= room):
            chosen.append(self._begins.popleft())
            room -= chosen[-1].ByteSize()
        return chosen

    def _deliver(self, part: Any) -> None:
        answer = self._answers.get(part.number)
        if answer is None:
            return  # cancelled here, while it was on its way
        if part.HasField("failure"):
            del self._answers[part.number]
            code = _CODES.get(part.failure.code, grpc.StatusCode.UNKNOWN)
            answer.fail(AnswerFailedError(code, part.failure.message))
            return
        if part.response.finish_reason != messages.FINISH_REASON_UNSPECIFIED:
            del self._answers[part.number]
        answer.put(part.response)
