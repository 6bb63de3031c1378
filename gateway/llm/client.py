"""Asynchronous client of the LLM service: OpenAI-compatible HTTP, deadlines, typed errors.

Knows HTTP and time. What stands in a body, a request and an event is `wire`'s business, what a prompt looks like
`llm_service.prompt`'s.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from gateway import errors
from gateway.core import Sampling, SpeechTokenDelta, Utterance
from gateway.llm.wire import DONE, PATH, LLMWire, event_data
from gateway.routing.replica import LoadReport
from servicekit.clock import Clock, SystemClock
from servicekit.timeouts import LoopLag, Patience, patient_timeout
from servicekit.tracing import trace_headers

logger = logging.getLogger(__name__)

T = TypeVar("T")

KEEPALIVE_EXPIRY_S = 4.0
"""Seconds that an idle connection is kept: less than the 5 s of trtllm-serve."""
_EXCERPT_BYTES = 300
_PLAIN = ("text/plain", "text/html")
_STALE_CONNECTION = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionResetError)


@dataclass(frozen=True)
class LLMDeadlines:
    """Seconds that each phase of one generation may take."""

    connect_s: float = 3.0
    first_token_s: float = 30.0
    """Seconds from sending the request to its first event: queueing and prefill."""
    between_tokens_s: float = 15.0
    total_s: float = 600.0
    ready_s: float = 3.0


class SpeechLMClient:
    """Streams speech tokens from any of the supported backends; closed by its owner."""

    continues_exactly = False
    """False: the backends' random numbers can't go on from the middle of an answer."""

    def __init__(
        self,
        base_url: str,
        wire: LLMWire,
        model: str | None = None,
        deadlines: LLMDeadlines | None = None,
        clock: Clock | None = None,
        lag: LoopLag | None = None,
        slots: int | None = None,
    ) -> None:
        """Keep the settings; nothing is opened or sent yet.

        Args:
            base_url: scheme, host and port, e.g. http://127.0.0.1:8000.
            model: the name to ask for; None asks the server for the first one it lists.
            lag: of the event loop that this client runs in; what it stood still counts against no deadline.
            slots: answers that the server makes at once; None: it refuses others itself.
        """
        self._base_url = base_url.rstrip("/")
        self._wire = wire
        self._model = model
        self._listed_model: str | None = None
        self._deadlines = deadlines or LLMDeadlines()
        self._clock = clock or SystemClock()
        self._patience = Patience(lag)
        self._slots = slots
        self._session: aiohttp.ClientSession | None = None
        self._answers: set[aiohttp.ClientResponse] = set()

    async def close(self) -> None:
        """Close the connection pool; generations under way fail."""
        # NOTE: the pool closes connections without an error for readers that wait for their bytes.
        for response in list(self._answers):
            response.close()
        if self._session is not None:
            await self._session.close()

    async def probe(self) -> LoadReport:
        """Ask the server's health endpoint; one that does not answer 200 gets no new work and ends what it has.

        Raises:
            LLMUnavailableError: there is no answer; `LLMUnconnectedError` if there was none in time.
        """
        limit = aiohttp.ClientTimeout(total=self._deadlines.ready_s)
        try:
            async with self._http().get(f"{self._base_url}/health", timeout=limit, allow_redirects=False) as response:
                await response.read()
        except asyncio.TimeoutError as error:
            raise self._unconnected(error) from error
        except aiohttp.ClientError as error:
            raise self._unreachable(error) from error
        return LoadReport(is_draining=response.status != HTTPStatus.OK, slots=self._slots)

    async def generate(self, utterance: Utterance, sampling: Sampling, seed: int) -> AsyncGenerator[SpeechTokenDelta]:
        """Yield the speech tokens of one text; see `SpeechLM.generate`.

        The last delta, and only it, has a finish_reason. Closing the iterator closes the HTTP response, which makes
        the server stop.
        """
        if utterance.spoken_tokens and self._wire.is_spoken_out(utterance):
            yield SpeechTokenDelta((), "length")
            return
        ends_at = self._clock.now() + self._deadlines.total_s
        async with self._opened(utterance, sampling, seed, ends_at) as response:
            limit_s = self._deadlines.first_token_s
            while (event := await self._next(response, limit_s, ends_at)) is not None:
                delta = self._wire.read(event)
                yield delta
                if delta.finish_reason is not None:
                    return
                limit_s = self._deadlines.between_tokens_s
        raise self._interrupted("its stream ended without a finish_reason")

    def _http(self) -> aiohttp.ClientSession:
        """Return the connection pool, made on first use because it belongs to the running event loop."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_EXPIRY_S),
                timeout=aiohttp.ClientTimeout(total=None, connect=self._deadlines.connect_s),
                trust_env=False,
            )
        return self._session

    @asynccontextmanager
    async def _opened(
        self, utterance: Utterance, sampling: Sampling, seed: int, ends_at: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        model = self._model or self._listed_model
        if model is None:
            model = await self._within(self._first_model(), self._deadlines.first_token_s, ends_at)
            self._listed_model = model
        request = self._wire.request(utterance, sampling, seed, model)
        sending = self._send("POST", PATH, request)
        response = await self._within(sending, self._deadlines.first_token_s, ends_at)
        self._answers.add(response)
        try:
            await self._check_status(response, ends_at)
            yield response
        finally:
            # NOTE: closes the connection of an answer that isn't finished, and leaves that of a finished one.
            response.close()
            self._answers.discard(response)

    async def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> aiohttp.ClientResponse:
        url, headers = self._base_url + path, trace_headers()
        connecting, may_be_stale = self._patience.begin(self._deadlines.connect_s), True
        while True:
            try:
                return await self._http().request(method, url, json=body, headers=headers, allow_redirects=False)
            except aiohttp.ServerTimeoutError as error:
                # NOTE: our event loop may have been blocked, or the server is busy with other calls: it may still be
                # there.
                if not may_be_stale or connecting() <= 0:
                    raise self._unconnected(error) from error
                logger.info("trying to connect to the LLM again after %r", error)
            except (aiohttp.ClientError, ConnectionResetError) as error:
                is_stale = isinstance(error, _STALE_CONNECTION) and not isinstance(error, aiohttp.ClientConnectorError)
                if not (is_stale and may_be_stale):
                    raise self._unreachable(error) from error
                # NOTE: most likely a pooled connection that the server closed while it was idle; nothing was answered
                # yet.
                may_be_stale = False
                logger.info("trying the LLM again on a fresh connection after %r", error)

    async def _first_model(self) -> str:
        response = await self._send("GET", "/v1/models")
        try:
            await self._check_status(response, math.inf)
            return str(json.loads(await response.read())["data"][0]["id"])
        except (aiohttp.ClientError, ValueError, LookupError, TypeError) as error:
            got = f"LLM at {self._base_url} lists no models at /v1/models ({error!r})"
            raise errors.LLMProtocolError(f"{got}; is it an OpenAI-compatible server?") from error
        finally:
            response.close()

    async def _next(self, response: aiohttp.ClientResponse, limit_s: float, ends_at: float) -> str | None:
        if self._clock.now() >= ends_at:  # what is there already is read without a wait
            raise self._overdue(self._deadlines.total_s)
        try:
            event = await self._within(next_event(response.content), limit_s, ends_at)
        except aiohttp.ClientError as error:
            raise self._interrupted(f"connection lost in mid-stream ({error!r})") from error
        self._patience.progressed()
        return event

    async def _within(self, step: Awaitable[T], limit_s: float, ends_at: float) -> T:
        limit_s = max(0.0, min(limit_s, ends_at - self._clock.now()))
        try:
            async with patient_timeout(limit_s, self._patience.begin(limit_s)):
                return await step
        except asyncio.TimeoutError as error:
            raise self._overdue(limit_s) from error

    async def _check_status(self, response: aiohttp.ClientResponse, ends_at: float) -> None:
        status = response.status
        if status == HTTPStatus.OK:
            return
        body = await self._within(_excerpt(response), self._deadlines.between_tokens_s, ends_at)
        got = f"LLM at {self._base_url} answered {status}: {body}"
        if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
            retry_s = _seconds(response.headers.get("retry-after", ""))
            raise errors.LLMBusyError(f"{got}; it is overloaded or starting: try again later", retry_after_s=retry_s)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise errors.LLMFailedError(f"{got}; see the LLM service's log")
        if status == HTTPStatus.BAD_REQUEST and response.content_type in _PLAIN:
            # NOTE: the backends refuse in JSON; this is an HTTP server that could not read what came over the wire.
            raise self._interrupted(f"its HTTP server answered {status}: {body}")
        backend = self._wire.backend.value
        raise errors.LLMRejectedError(f"{got}; check that the LLM backend setting ({backend}) is what runs there")

    def _unreachable(self, error: BaseException) -> errors.LLMUnavailableError:
        # NOTE: a server that comes back may serve another model.
        self._listed_model = None
        cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
        got = f"LLM at {self._base_url} can't be reached ({cause!r})"
        return errors.LLMUnavailableError(f"{got}; start the LLM service or correct its URL")

    def _unconnected(self, error: BaseException) -> errors.LLMUnconnectedError:
        got = f"LLM at {self._base_url} can't be reached in time ({error!r})"
        return errors.LLMUnconnectedError(f"{got}; start the LLM service or correct its URL")

    def _interrupted(self, what: str) -> errors.LLMInterruptedError:
        return errors.LLMInterruptedError(f"LLM at {self._base_url}: {what}; try again, and see the LLM service's log")

    def _overdue(self, limit_s: float) -> errors.LLMDeadlineError:
        got = f"LLM at {self._base_url}: nothing came within {limit_s:.1f} s"
        return errors.LLMDeadlineError(f"{got}; it is overloaded or stuck: see its log")


async def next_event(content: aiohttp.StreamReader) -> str | None:
    """Return the data of the next event; None at the end."""
    try:
        while line := await content.readline():
            if (data := event_data(line)) is not None:
                return None if data == DONE else data
    except (ValueError, HttpProcessingError) as error:  # of a line without an end
        raise errors.LLMProtocolError(f"the LLM sent a line that is too long ({error}); see its log") from error
    return None


def _seconds(text: str) -> float:
    """Read a Retry-After of whole seconds; anything else is one second."""
    return float(text) if text.isdecimal() else 1.0


async def _excerpt(response: aiohttp.ClientResponse) -> str:
    try:
        return (await response.read())[:_EXCERPT_BYTES].decode(errors="replace")
    except aiohttp.ClientError as error:
        return f"(no body: {error!r})"
