"""Asynchronous client of the LLM service's lean stream of tokens: gRPC, deadlines, the same typed errors as over HTTP.

For addresses of the form grpc://HOST:PORT. What a prompt looks like is `wire`'s business.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tts_api.llm.v1 import speech_token_service_pb2 as messages

from gateway import errors
from gateway.core import Sampling, SpeechTokenDelta, Utterance
from gateway.llm.client import LLMDeadlines
from gateway.llm.token_connection import (
    MAX_REQUEST_BYTES,
    AnswerFailedError,
    TokenAnswer,
    TokenConnection,
)
from gateway.llm.wire import LLMWire
from gateway.routing.replica import LoadReport
from servicekit.clock import Clock, SystemClock
from servicekit.stream_limit import NEXT_END_S, OPEN_STREAMS, STREAMS
from servicekit.tasks import raise_if_cancelled, stop
from servicekit.timeouts import LoopLag, Patience, PatientTimer
from servicekit.tracing import trace_headers
from token2wav_service.contract import TOKEN_RATE_HZ

SCHEME = "grpc://"
DEFAULT_PACE = 8.0
"""Default speed of an answer, in times the speed of speech: enough though the guard holds back a third."""
_CHANNEL = (
    # A server that comes back must be found at once; gRPC's own pauses grow to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Pings find a server that vanished.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)
_TRACEPARENT = "traceparent"


class TokenStreamClient:
    """Streams speech tokens over gRPC; closed by its owner. See `gateway.llm.client.SpeechLMClient`."""

    continues_exactly = True
    """True: an answer goes on elsewhere with the same tokens, from its seed and its first tokens."""

    def __init__(
        self,
        address: str,
        wire: LLMWire,
        deadlines: LLMDeadlines | None = None,
        clock: Clock | None = None,
        lag: LoopLag | None = None,
        pace: float = DEFAULT_PACE,
    ) -> None:
        """Keep the settings; nothing is opened or sent yet.

        Args:
            address: grpc://HOST:PORT.
            lag: see `SpeechLMClient`.
            pace: times the speed of speech at which an answer is asked to go on behind its head start; 0: as fast as
                can be.
        """
        self._address = address
        self._wire = wire
        self._deadlines = deadlines or LLMDeadlines()
        self._clock = clock or SystemClock()
        self._patience = Patience(lag)
        self._tokens_per_s = pace * TOKEN_RATE_HZ
        self._channel: Any = None
        self._connection: TokenConnection | None = None

    async def close(self) -> None:
        """Close the connection; generations under way fail."""
        channel, self._channel = self._channel, None
        self._disconnect()
        if channel is not None:
            await channel.close()

    async def probe(self) -> LoadReport:
        """Ask the server whether it takes requests, and how many if it says so.

        Raises:
            LLMUnavailableError: there is no answer.
        """
        stub = health_pb2_grpc.HealthStub(self._connected())
        try:
            call = stub.Check(health_pb2.HealthCheckRequest(), timeout=self._deadlines.ready_s)
            told = await call
            room = dict(await call.trailing_metadata() or ())
        except (grpc.RpcError, asyncio.CancelledError) as error:
            raise_if_cancelled()
            if isinstance(error, asyncio.CancelledError) and self._channel is not None:
                raise
            if not isinstance(error, grpc.aio.AioRpcError):
                raise self._unreachable(repr(error)) from error
            is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            raise self._unreachable(error.details() or "", is_late) from error
        is_draining = bool(told.status != health_pb2.HealthCheckResponse.SERVING)
        if STREAMS not in room:
            return LoadReport(is_draining)
        slots, open_streams, next_end_s = int(room[STREAMS]), int(room[OPEN_STREAMS]), float(room[NEXT_END_S])
        return LoadReport(is_draining, slots, open_streams, next_end_s=next_end_s)

    async def generate(self, utterance: Utterance, sampling: Sampling, seed: int) -> AsyncGenerator[SpeechTokenDelta]:
        """Yield the speech tokens of one text; see `SpeechLM.generate`.

        The last delta, and only it, has a finish_reason. Closing the iterator cancels the call, which makes the server
        stop. `seed` is that of the whole answer also where the utterance brings its first tokens.
        """
        if utterance.spoken_tokens and self._wire.is_spoken_out(utterance):
            yield SpeechTokenDelta((), "length")
            return
        asked = self._request(utterance, sampling, seed)
        least = max(asked.head_start_tokens, 1)  # the first chunk needs all of these, and nobody needs fewer
        ends_at = self._clock.now() + self._deadlines.total_s
        answer, timer = self._begin(asked), PatientTimer()
        limit_s = self._deadlines.first_token_s
        feeding = None if utterance.coming_text is None else asyncio.ensure_future(self._feed(utterance, answer))
        try:
            while True:
                is_waiting = feeding is not None and not feeding.done()  # for text, maybe
                longest_s = min(self._deadlines.total_s if is_waiting else limit_s, ends_at - self._clock.now())
                news = await self._next(answer, timer, least, max(longest_s, 0.0))
                yield news
                if news.finish_reason is not None:
                    return
                least, limit_s = 1, self._deadlines.between_tokens_s
        finally:
            timer.cancel()
            answer.connection.cancel(answer)
            if feeding is not None:
                await stop(feeding)

    async def _feed(self, utterance: Utterance, answer: TokenAnswer) -> None:
        """Hand a text that is still being written on to its answer; what goes wrong with it ends the answer."""
        try:
            async with aclosing(self._wire.text_pieces(utterance)) as pieces:
                async for ids, is_last in pieces:
                    answer.connection.feed(answer, ids, is_last)
        except Exception as error:
            answer.fail(error)

    def _begin(self, asked: Any) -> TokenAnswer:
        """Ask over the stream that is open, else over a new one."""
        size = asked.ByteSize()
        if size > MAX_REQUEST_BYTES:
            got = f"the request for LLM at {self._address} has {size} bytes, expected at most {MAX_REQUEST_BYTES}"
            raise errors.LLMRejectedError(f"{got}; shorten the text")
        if self._connection is None or self._connection.is_over:
            self._connection = TokenConnection(self._connected())
        trace = trace_headers().get(_TRACEPARENT, "")
        return self._connection.begin(asked, self._deadlines.total_s, trace)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _request(self, utterance: Utterance, sampling: Sampling, seed: int) -> Any:
        asked = messages.GenerateRequest(
            sampling=messages.Sampling(**vars(sampling)), seed=seed, continued_tokens=len(utterance.spoken_tokens)
        )
        if utterance.coming_text is not None:
            begun = self._wire.interleaved_prompt(utterance)
            asked.prompt_ids.extend(begun.token_ids)
            asked.continued_tokens = begun.continued_tokens
            asked.interleaved.begin_tokens = begun.begin_tokens
            asked.interleaved.transcript_tokens = begun.transcript_tokens
            return asked
        prompt = self._wire.token_prompt(utterance)
        asked.prompt_ids.extend(prompt.token_ids)
        asked.max_tokens, asked.min_tokens = prompt.bounds.max_tokens, prompt.bounds.min_tokens
        asked.priority, asked.tokens_per_s = utterance.priority, self._tokens_per_s
        asked.head_start_tokens = max(utterance.head_start_tokens - len(utterance.spoken_tokens), 0)
        return asked

    async def _next(self, answer: TokenAnswer, timer: PatientTimer, least: int, limit_s: float) -> SpeechTokenDelta:
        received = answer.connection.received

        def expire() -> None:
            got = f"LLM at {self._address}: nothing came within {limit_s:.1f} s"
            answer.fail(errors.LLMDeadlineError(f"{got}; it is overloaded or stuck: see its log"))
            if answer.connection is self._connection and answer.connection.received == received:
                self._disconnect()  # nobody gets anything over it: the next answer comes over a new one

        timer.begin(limit_s, self._patience.begin(limit_s), expire)
        try:
            news = await answer.read(least)
        except AnswerFailedError as error:
            raise self._failure(error, answer.has_begun) from error
        timer.end()
        self._patience.progressed()
        return news

    def _failure(self, failed: AnswerFailedError, has_begun: bool) -> errors.LLMError:
        """Return what a status means."""
        code, details = failed.code, failed.details
        if code is None:
            is_closed = self._channel is None
            return self._interrupted(
                "this gateway closed the connection" if is_closed else "its stream ended without a finish_reason"
            )
        got = f"LLM at {self._address} answered {code.name}: {details}"
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return errors.LLMBusyError(f"{got}; it is overloaded: try again later")
        if code is grpc.StatusCode.UNAVAILABLE:
            return self._interrupted(f"connection lost ({details})") if has_begun else self._unreachable(details)
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

    def _unreachable(self, details: str, is_late: bool = False) -> errors.LLMUnavailableError:
        got = f"LLM at {self._address} can't be reached ({details})"
        kind = errors.LLMUnconnectedError if is_late else errors.LLMUnavailableError
        return kind(f"{got}; start the LLM service with --grpc-port or correct its URL")

    def _interrupted(self, what: str) -> errors.LLMInterruptedError:
        return errors.LLMInterruptedError(f"LLM at {self._address}: {what}; try again, and see the LLM service's log")
