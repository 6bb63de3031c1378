"""Asynchronous client of the LLM service's lean stream of tokens: gRPC, deadlines, the same typed errors as over HTTP.

For addresses of the form grpc://HOST:PORT. What a prompt looks like is `wire`'s business.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tts_api.llm.v1 import speech_token_service_pb2 as messages
from tts_api.llm.v1 import speech_token_service_pb2_grpc as stubs

from gateway import errors
from gateway.core import Sampling, SpeechTokenDelta, Utterance
from gateway.llm.client import LLMDeadlines
from gateway.llm.wire import LLMWire
from servicekit.clock import Clock, SystemClock
from servicekit.patience import LoopLag, Patience, patient_timeout
from servicekit.trace_context import trace_headers

SCHEME = "grpc://"
_CHANNEL = (
    # A server that comes back is to be found at once; gRPC's own pauses grow to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
_stub: Callable[[Any], Any] = stubs.SpeechTokenServiceStub  # the stubs have no types
_REASONS = {messages.FINISH_REASON_STOP: "stop", messages.FINISH_REASON_LENGTH: "length"}


class TokenStreamClient:
    """Streams speech tokens over gRPC; closed by its owner. See `gateway.llm.client.SpeechLMClient`."""

    continues_exactly = True
    """An answer that is asked for again with its seed and its first tokens goes on with the very same tokens."""

    def __init__(
        self,
        address: str,
        wire: LLMWire,
        deadlines: LLMDeadlines | None = None,
        clock: Clock | None = None,
        lag: LoopLag | None = None,
    ) -> None:
        """Keep the settings; nothing is opened or sent yet.

        Args:
            address: grpc://HOST:PORT.
            wire: makes the prompt.
            deadlines: defaults suit a local server.
            clock: for the total deadline.
            lag: see `SpeechLMClient`.
        """
        self._address = address
        self._wire = wire
        self._deadlines = deadlines or LLMDeadlines()
        self._clock = clock or SystemClock()
        self._patience = Patience(lag)
        self._channel: Any = None

    async def close(self) -> None:
        """Close the connection; generations under way fail."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def is_ready(self) -> bool:
        """Tell whether the server says that it serves."""
        try:
            return await self.answers_health()
        except errors.LLMUnavailableError:
            return False

    async def answers_health(self) -> bool:
        """Tell whether the server says that it takes requests.

        Raises:
            LLMUnavailableError: there is no answer.
        """
        stub = health_pb2_grpc.HealthStub(self._connected())
        try:
            told = await stub.Check(health_pb2.HealthCheckRequest(), timeout=self._deadlines.ready_s)
        except (grpc.RpcError, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and self._channel is not None:
                raise
            raise self._unreachable(error) from error
        return bool(told.status == health_pb2.HealthCheckResponse.SERVING)

    async def generate(self, utterance: Utterance, sampling: Sampling, seed: int) -> AsyncGenerator[SpeechTokenDelta]:
        """Yield the speech tokens of one text; see `SpeechLM.generate`.

        The last delta, and only it, has a finish_reason. Closing the iterator cancels the call, which makes the server
        stop. `seed` is that of the whole answer also where the utterance brings its first tokens.
        """
        if self._wire.is_spoken_out(utterance):
            yield SpeechTokenDelta((), "length")
            return
        asked = self._request(utterance, sampling, seed)
        ends_at = self._clock.now() + self._deadlines.total_s
        stub = _stub(self._connected())
        headers = tuple(trace_headers().items())
        call = stub.Generate(asked, timeout=self._deadlines.total_s, metadata=headers)
        limit_s = self._deadlines.first_token_s
        has_begun = False
        try:
            while (message := await self._next(call, limit_s, ends_at, has_begun)) is not grpc.aio.EOF:
                has_begun = True
                reason = _REASONS.get(message.finish_reason)
                yield SpeechTokenDelta(tuple(message.speech_ids), reason)
                if reason is not None:
                    return
                limit_s = self._deadlines.between_tokens_s
        finally:
            call.cancel()
        raise self._interrupted("its stream ended without a finish_reason")

    def _request(self, utterance: Utterance, sampling: Sampling, seed: int) -> Any:
        prompt = self._wire.token_prompt(utterance)
        return messages.GenerateRequest(
            prompt_ids=prompt.token_ids,
            sampling=messages.Sampling(
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                repetition_penalty=sampling.repetition_penalty,
            ),
            max_tokens=prompt.bounds.max_tokens,
            min_tokens=prompt.bounds.min_tokens,
            seed=seed,
            continued_tokens=len(utterance.spoken_tokens),
        )

    async def _next(self, call: Any, limit_s: float, ends_at: float, has_begun: bool) -> Any:
        limit_s = max(0.0, min(limit_s, ends_at - self._clock.now()))
        try:
            async with patient_timeout(limit_s, self._patience.begin(limit_s)):
                message = await call.read()
            self._patience.progressed()
            return message
        except asyncio.TimeoutError as error:
            got = f"LLM at {self._address}: nothing came within {limit_s:.1f} s"
            raise errors.LLMDeadlineError(f"{got}; it is overloaded or stuck: see its log") from error
        except asyncio.CancelledError as error:
            if self._channel is not None:
                raise
            raise self._interrupted("this gateway closed the connection") from error
        except grpc.RpcError as error:
            raise self._failure(error, has_begun) from error

    def _failure(self, error: Any, has_begun: bool) -> errors.LLMError:
        """Return what a call's status means."""
        code = error.code()
        got = f"LLM at {self._address} answered {code.name}: {error.details()}"
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return errors.LLMBusyError(f"{got}; it is overloaded: try again later")
        if code is grpc.StatusCode.UNAVAILABLE:
            return self._interrupted(f"connection lost ({error.details()})") if has_begun else self._unreachable(error)
        if code is grpc.StatusCode.INVALID_ARGUMENT:
            return errors.LLMRejectedError(f"{got}; check that this LLM serves the gateway's tokenizer directory")
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return errors.LLMDeadlineError(f"{got}; it is overloaded or stuck: see its log")
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return errors.LLMProtocolError(f"{got}; is it the LLM service's --grpc-port?")
        return errors.LLMFailedError(f"{got}; see the LLM service's log")

    def _connected(self) -> Any:
        """Return the channel, made on first use because it belongs to the running event loop."""
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self._address.removeprefix(SCHEME), options=_CHANNEL)
        return self._channel

    def _unreachable(self, error: BaseException) -> errors.LLMUnavailableError:
        details = error.details() if isinstance(error, grpc.aio.AioRpcError) else repr(error)
        got = f"LLM at {self._address} can't be reached ({details})"
        is_late = isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        kind = errors.LLMUnconnectedError if is_late else errors.LLMUnavailableError
        return kind(f"{got}; start the LLM service with --grpc-port or correct its URL")

    def _interrupted(self, what: str) -> errors.LLMInterruptedError:
        return errors.LLMInterruptedError(f"LLM at {self._address}: {what}; try again, and see the LLM service's log")
