"""Asynchronous client of the LLM service: OpenAI-compatible HTTP, server-sent events, deadlines, typed errors.

Knows HTTP and time. What stands in a request and in an event is `llm_wire`'s business, what a prompt looks like
`llm_service.prompt`'s.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import httpx

from cosydit.clock import Clock, SystemClock
from gateway import errors
from gateway.core import Sampling, SpeechTokenDelta, Utterance
from gateway.llm_wire import LLMWire

logger = logging.getLogger(__name__)

T = TypeVar("T")

KEEPALIVE_EXPIRY_S = 4.0
"""Below the 5 s after which trtllm-serve closes an idle connection."""
_EXCERPT_CHARACTERS = 300
_HTTP_OK = 200
_HTTP_TOO_MANY = 429
_HTTP_SERVER_ERROR = 500
_HTTP_UNAVAILABLE = 503
_DONE = "[DONE]"
_OTHER_FIELDS = (":", "event:", "id:", "retry:")
_STALE_CONNECTION = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)


@dataclass(frozen=True)
class LLMDeadlines:
    """Seconds that each phase of one generation may take."""

    connect_s: float = 3.0
    first_token_s: float = 30.0
    """From sending the request to its first event: queueing and prefill."""
    between_tokens_s: float = 15.0
    total_s: float = 600.0
    ready_s: float = 3.0


class SpeechLMClient:
    """Streams speech tokens from any of the supported backends; closed by its owner."""

    def __init__(
        self,
        base_url: str,
        wire: LLMWire,
        model: str | None = None,
        deadlines: LLMDeadlines | None = None,
        clock: Clock | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Make the connection pool; nothing is sent yet.

        Args:
            base_url: scheme, host and port, e.g. http://127.0.0.1:8000.
            wire: writes requests and reads events for one backend.
            model: the name to ask for; None asks the server for the first one it lists.
            deadlines: defaults suit a local server.
            clock: for the total deadline.
            transport: replaces the network in tests.
        """
        self._base_url = base_url.rstrip("/")
        self._wire = wire
        self._model = model
        self._deadlines = deadlines or LLMDeadlines()
        self._clock = clock or SystemClock()
        limits = httpx.Limits(max_connections=None, keepalive_expiry=KEEPALIVE_EXPIRY_S)
        timeout = httpx.Timeout(self._deadlines.total_s, connect=self._deadlines.connect_s)
        self._http = httpx.AsyncClient(
            base_url=self._base_url, limits=limits, timeout=timeout, transport=transport, trust_env=False
        )

    async def close(self) -> None:
        """Close the connection pool; generations under way fail."""
        await self._http.aclose()

    async def is_ready(self) -> bool:
        """Tell whether the server's health endpoint answers 200 now."""
        try:
            response = await self._http.get("/health", timeout=self._deadlines.ready_s)
        except httpx.HTTPError:
            return False
        return response.status_code == _HTTP_OK

    async def generate(self, utterance: Utterance, sampling: Sampling, seed: int) -> AsyncGenerator[SpeechTokenDelta]:
        """Yield the speech tokens of one text; see `SpeechLM.generate`.

        The last delta, and only it, has a finish_reason. Closing the iterator closes the HTTP response, which makes
        the server stop.
        """
        ends_at = self._clock.now() + self._deadlines.total_s
        async with self._opened(utterance, sampling, seed, ends_at) as response:
            reader = self._wire.reader()
            limit_s = self._deadlines.first_token_s
            async with aclosing(_events(response)) as events:
                while (event := await self._next(events, limit_s, ends_at)) is not None:
                    delta = reader.read(event)
                    limit_s = self._deadlines.between_tokens_s
                    yield delta
                    if delta.finish_reason is not None:
                        return
        raise self._interrupted("its stream ended without a finish_reason")

    @asynccontextmanager
    async def _opened(
        self, utterance: Utterance, sampling: Sampling, seed: int, ends_at: float
    ) -> AsyncIterator[httpx.Response]:
        if self._model is None:
            self._model = await self._within(self._first_model(), self._deadlines.first_token_s, ends_at)
        wire_request = self._wire.request(utterance, sampling, seed, self._model)
        request = self._http.build_request("POST", wire_request.path, json=wire_request.body)
        response = await self._within(self._send(request), self._deadlines.first_token_s, ends_at)
        try:
            await self._check_status(response, ends_at)
            yield response
        finally:
            await response.aclose()

    async def _send(self, request: httpx.Request) -> httpx.Response:
        try:
            return await self._http.send(request, stream=True)
        except _STALE_CONNECTION as error:
            # NOTE: most likely a pooled connection that the server closed while it was idle; nothing was answered yet.
            logger.info("trying the LLM again on a fresh connection after %r", error)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        try:
            return await self._http.send(request, stream=True)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    async def _first_model(self) -> str:
        response = await self._send(self._http.build_request("GET", "/v1/models"))
        try:
            await self._check_status(response, math.inf)
            return str(json.loads(await response.aread())["data"][0]["id"])
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            got = f"LLM at {self._base_url} lists no models at /v1/models ({error!r})"
            raise errors.LLMProtocolError(f"{got}; is it an OpenAI-compatible server?") from error
        finally:
            await response.aclose()

    async def _next(self, events: AsyncGenerator[str], limit_s: float, ends_at: float) -> str | None:
        try:
            return await self._within(anext(events, None), limit_s, ends_at)
        except httpx.HTTPError as error:
            raise self._interrupted(f"connection lost in mid-stream ({error!r})") from error

    async def _within(self, step: Awaitable[T], limit_s: float, ends_at: float) -> T:
        limit_s = max(0.0, min(limit_s, ends_at - self._clock.now()))
        try:
            return await asyncio.wait_for(step, limit_s)
        except asyncio.TimeoutError as error:
            got = f"LLM at {self._base_url}: nothing came within {limit_s:.1f} s"
            raise errors.LLMDeadlineError(f"{got}; it is overloaded or stuck: see its log") from error

    async def _check_status(self, response: httpx.Response, ends_at: float) -> None:
        status = response.status_code
        if status == _HTTP_OK:
            return
        body = await self._within(_excerpt(response), self._deadlines.between_tokens_s, ends_at)
        got = f"LLM at {self._base_url} answered {status}: {body}"
        if status in (_HTTP_TOO_MANY, _HTTP_UNAVAILABLE):
            raise errors.LLMUnavailableError(f"{got}; it is overloaded or starting: try again later")
        if status >= _HTTP_SERVER_ERROR:
            raise errors.LLMFailedError(f"{got}; see the LLM service's log")
        backend = self._wire.backend.value
        raise errors.LLMRejectedError(f"{got}; check that the LLM backend setting ({backend}) is what runs there")

    def _unreachable(self, error: Exception) -> errors.LLMUnavailableError:
        got = f"LLM at {self._base_url} can't be reached ({error!r})"
        return errors.LLMUnavailableError(f"{got}; start the LLM service or correct its URL")

    def _interrupted(self, what: str) -> errors.LLMInterruptedError:
        return errors.LLMInterruptedError(f"LLM at {self._base_url}: {what}; try again, and see the LLM service's log")


async def _events(response: httpx.Response) -> AsyncGenerator[str]:
    """Yield the data of each server-sent event up to [DONE]."""
    async for line in response.aiter_lines():
        if line.startswith("data:"):
            data = line.removeprefix("data:").strip()
            if data == _DONE:
                return
            yield data
        elif line and not line.startswith(_OTHER_FIELDS):
            got = f"the LLM sent a line that is no server-sent event: {line[:_EXCERPT_CHARACTERS]!r}"
            raise errors.LLMProtocolError(f"{got}; is the LLM URL that of an OpenAI-compatible server?")


async def _excerpt(response: httpx.Response) -> str:
    try:
        return (await response.aread())[:_EXCERPT_CHARACTERS].decode(errors="replace")
    except httpx.HTTPError as error:
        return f"(no body: {error!r})"
