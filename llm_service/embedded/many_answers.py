"""The answers of one caller over one stream: they begin and end by number, and what is ready of all goes out at once.

Belongs to one event loop. Knows the engine's loop and the messages of proto/tts_api/llm/v1; nothing of gRPC's calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tts_api.llm.v1 import speech_token_service_pb2 as messages

from llm_service.embedded.generation import GenerationTrace, OutputRelay
from llm_service.embedded.loop import EngineLoop
from llm_service.embedded.types import FinishReason, GenerationOutput, GenerationRequest
from llm_service.errors import DeadlineExceededError, EngineError, InvalidGenerationError, LLMStoppedError
from servicekit.tracing import Span

REASONS = {
    None: messages.FINISH_REASON_UNSPECIFIED,
    FinishReason.STOP: messages.FINISH_REASON_STOP,
    FinishReason.LENGTH: messages.FINISH_REASON_LENGTH,
}

_MS = 1000.0
ReadRequest = Callable[[Any], tuple[GenerationRequest, Span]]
"""Reads a `NumberedRequest`; raises InvalidGenerationError."""
StatusOf = Callable[[EngineError], int]
"""Returns gRPC's number of the status for an error."""


@dataclass
class _Answer:
    """An answer under way."""

    request_id: str
    trace: GenerationTrace
    timer: asyncio.TimerHandle | None = None
    """Timer of the answer's deadline; None: no deadline."""

    def end(self, error: EngineError | None = None) -> None:
        """Note that it has ended."""
        self.trace.end(error)
        if self.timer is not None:
            self.timer.cancel()


@dataclass
class _Part:
    """The tokens of one answer that are ready to send."""

    ids: list[int] = field(default_factory=list)
    fills: list[int] = field(default_factory=list)
    reason: FinishReason | None = None


class ManyAnswers:
    """The answers of one stream. `begin` and `cancel` are for the event loop that made it."""

    def __init__(self, loop: EngineLoop, read_request: ReadRequest, status_of: StatusOf) -> None:
        """Take a running engine loop; nothing is asked of it yet."""
        self._loop, self._read_request, self._status_of = loop, read_request, status_of
        self._event_loop = asyncio.get_running_loop()
        self._answers: dict[int, _Answer] = {}
        self._relay = OutputRelay.running()
        self._outputs: asyncio.Queue[tuple[int, GenerationOutput] | None] = asyncio.Queue()  # None: look again
        self._takes_no_more = False

    def take(self, message: Any) -> None:
        """Do what a `GenerateManyRequest` asks for."""
        for asked in message.begin:
            self.begin(asked)
        for text in message.texts:
            self.feed(text)
        for number in message.cancel:
            self.cancel(number)

    def begin(self, asked: Any) -> None:
        """Begin an answer; one that is refused fails in its first part."""
        number = asked.number
        try:
            if self._takes_no_more:
                raise LLMStoppedError("the server is stopping; ask another one")
            if number in self._answers:
                raise InvalidGenerationError(f"number {number} is in use; numbers must be new")
            request, span = self._read_request(asked)
        except EngineError as error:
            self._put(number, GenerationOutput("", error=error))
            return
        answer = _Answer(request.request_id, GenerationTrace(span, len(request.prompt_ids)))
        try:
            self._loop.submit(request, lambda output: self._relay.post(self._outputs, (number, output)))
        except EngineError as error:
            answer.trace.end(error)
            self._put(number, GenerationOutput(request.request_id, error=error))
            return
        if asked.timeout_ms:
            answer.timer = self._event_loop.call_later(asked.timeout_ms / _MS, self._expire, number)
        self._answers[number] = answer

    def feed(self, text: Any) -> None:
        """Hand on a `MoreText`; harmless when its answer has ended."""
        answer = self._answers.get(text.number)
        if answer is not None:
            self._loop.feed(answer.request_id, tuple(text.text_ids), text.is_last)

    def cancel(self, number: int) -> None:
        """End an answer; harmless when it has ended."""
        answer = self._answers.pop(number, None)
        if answer is not None:
            self._loop.abort(answer.request_id)
            answer.end()

    def cancel_all(self) -> None:
        """End all answers."""
        for number in list(self._answers):
            self.cancel(number)

    def take_no_more(self) -> None:
        """Refuse answers from here on; `responses` ends when those under way have ended."""
        self._takes_no_more = True
        self._outputs.put_nowait(None)

    async def responses(self) -> AsyncIterator[Any]:
        """Yield the ready tokens of all answers as `GenerateManyResponse`, each time there are some."""
        while self._answers or not self._outputs.empty() or not self._takes_no_more:
            ready = [await self._outputs.get()]
            while not self._outputs.empty():
                ready.append(self._outputs.get_nowait())
            parts = self._parts([output for output in ready if output is not None])
            if parts:
                yield messages.GenerateManyResponse(parts=parts)

    def _expire(self, number: int) -> None:
        answer = self._answers[number]
        self._loop.abort(answer.request_id)
        error = DeadlineExceededError("the request's deadline has passed")
        self._put(number, GenerationOutput(answer.request_id, error=error))

    def _put(self, number: int, output: GenerationOutput) -> None:
        self._outputs.put_nowait((number, output))

    def _parts(self, outputs: Sequence[tuple[int, GenerationOutput]]) -> list[Any]:
        """Return what goes out: tokens first, then those that failed."""
        ready: dict[int, _Part] = {}
        failed: list[Any] = []
        llm_ids = self._loop.speech_ids
        for number, output in outputs:
            self._note(number, output)
            if output.error is not None:
                failed.append(self._failure(number, output.error))
                continue
            part = ready.setdefault(number, _Part())
            part.fills += [len(part.ids) + place for place in output.fills]
            part.ids += [token - llm_ids.start for token in output.token_ids if token in llm_ids]  # no end tokens
            part.reason = output.finish_reason
        parts = (each for each in ready.items() if each[1].ids or each[1].reason or each[1].fills)
        return [*(self._message(number, part) for number, part in parts), *failed]

    def _note(self, number: int, output: GenerationOutput) -> None:
        answer = self._answers.get(number)
        if answer is None or answer.request_id != output.request_id:
            return
        answer.trace.note(output)
        if output.is_last:
            answer.end()
            del self._answers[number]

    def _message(self, number: int, part: _Part) -> Any:
        reason = REASONS[part.reason]
        response = messages.GenerateResponse(speech_ids=part.ids, finish_reason=reason, fills=part.fills)
        return messages.NumberedPart(number=number, response=response)

    def _failure(self, number: int, error: EngineError) -> Any:
        failure = messages.Failure(code=self._status_of(error), message=str(error))
        return messages.NumberedPart(number=number, failure=failure)
