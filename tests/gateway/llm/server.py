"""An LLM's HTTP server on a free port, scripted, and clients of it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing, asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway import errors
from gateway.core import Sampling, SpeechTokenDelta, Utterance
from gateway.llm.client import SpeechLMClient
from gateway.llm.token_client import TokenStreamClient
from gateway.llm.wire import LLMWire
from tests.gateway.fakes import CharacterEncoder

NETWORK_WAIT_S = 10.0
"""More than anything between two ends of a loopback connection takes."""
UTTERANCE = Utterance("abc", "de", (5, 6))
TOKENS_WIRE = LLMWire(CharacterEncoder())  # type: ignore[arg-type]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ScriptedBody:
    """What an LLM's server answers: a body in pieces; after them it ends, or hangs until the caller leaves."""

    def __init__(self, pieces: Iterable[bytes], hangs: bool = False) -> None:
        self._pieces = list(pieces)
        self._hangs = hangs
        self._abandoned = asyncio.Event()

    @property
    def is_abandoned(self) -> bool:
        """Whether the caller left while the body hung."""
        return self._abandoned.is_set()

    async def until_abandoned(self) -> None:
        """Return when the server has seen that the caller left."""
        await asyncio.wait_for(self._abandoned.wait(), NETWORK_WAIT_S)

    async def answer(self, request: web.Request, status: int = 200) -> web.StreamResponse:
        """Answer one request."""
        response = web.StreamResponse(status=status, headers={"Content-Type": "text/event-stream"})
        try:
            await response.prepare(request)
            for piece in self._pieces:
                await response.write(piece)
                await asyncio.sleep(0)
            if self._hangs:
                await asyncio.Event().wait()
        except (asyncio.CancelledError, ConnectionError):
            self._abandoned.set()
            raise
        return response


@asynccontextmanager
async def served(handler: Handler) -> AsyncIterator[str]:
    """Answer every HTTP request with `handler`, which is cancelled when its caller leaves; gives the address."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handler)
    server = TestServer(application)
    await server.start_server(shutdown_timeout=NETWORK_WAIT_S)
    try:
        yield f"http://{server.host}:{server.port}"
    finally:
        await server.close()


@asynccontextmanager
async def client_of(handler: Handler, wire: LLMWire = TOKENS_WIRE, **settings: Any) -> AsyncIterator[SpeechLMClient]:
    async with served(handler) as url:
        client = SpeechLMClient(url, wire, **{"model": "m", **settings})
        try:
            yield client
        finally:
            await client.close()


def generated(client: SpeechLMClient, utterance: Utterance = UTTERANCE) -> aclosing[Any]:
    return aclosing(client.generate(utterance, Sampling(), seed=3))


async def collect(client: SpeechLMClient, utterance: Utterance = UTTERANCE) -> list[SpeechTokenDelta]:
    async with generated(client, utterance) as deltas:
        return [delta async for delta in deltas]


async def collect_from(body: ScriptedBody, wire: LLMWire = TOKENS_WIRE) -> list[SpeechTokenDelta]:
    async with client_of(body.answer, wire) as client:
        return await collect(client)


async def hang_up(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    await asyncio.Event().wait()
    raise AssertionError("the server did not notice that the connection is gone")


def unused_url() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


async def is_ready(client: SpeechLMClient | TokenStreamClient) -> bool:
    """Tell whether a probe says that the server takes requests."""
    try:
        return not (await client.probe()).is_draining
    except errors.LLMUnavailableError:
        return False


def tokens_of(deltas: list[SpeechTokenDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]
