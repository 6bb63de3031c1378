"""An HTTP answer whose bytes are still being made, as an ASGI application.

Nothing is sent before the first bytes exist, so that an error until then is an answer of its own; a later one breaks
the connection, so that no client takes half of it for the whole. A client that leaves stops the making at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from gateway.dialects.common.sending import sent
from gateway.errors import GatewayError

logger = logging.getLogger(__name__)


class StreamedAnswer:
    """One answer to one client."""

    def __init__(
        self,
        body: AsyncGenerator[bytes],
        headers: Mapping[str, str],
        refusal: Callable[[GatewayError], Response],
        name: str,
        send_timeout_s: float,
    ) -> None:
        """Take over `body`, which is closed on every way out.

        Args:
            body: pieces of it; empty ones are not sent.
            headers: of the answer.
            refusal: makes the answer to an error that comes before the first bytes.
            name: for logs.
            send_timeout_s: a client that makes no room for the next bytes for so long has its connection broken.
        """
        self._body = body
        self._headers = headers
        self._refusal = refusal
        self._name = name
        self._send_timeout_s = send_timeout_s
        self._is_started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the body ends, it fails, or the client leaves."""
        streaming = asyncio.create_task(self._stream(scope, receive, send))
        leaving = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({streaming, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not streaming.done():
                logger.info("request %s: the client left", self._name)
        finally:
            leaving.cancel()
            streaming.cancel()
            await asyncio.gather(leaving, streaming, return_exceptions=True)
        if not streaming.cancelled():
            streaming.result()

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with aclosing(self._body) as body:
                async for piece in body:
                    await self._send_piece(send, piece)
        except GatewayError as error:
            logger.warning("request %s failed: %s: %s", self._name, error.code, error)
            if self._is_started:
                raise
            await self._refusal(error)(scope, receive, send)
        else:
            await self._start(send)
            await self._send(send, {"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_piece(self, send: Send, piece: bytes) -> None:
        if piece:
            await self._start(send)
            await self._send(send, {"type": "http.response.body", "body": piece, "more_body": True})

    async def _start(self, send: Send) -> None:
        if self._is_started:
            return
        self._is_started = True
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self._headers.items()]
        start: Message = {"type": "http.response.start", "status": 200, "headers": headers}
        await self._send(send, start)

    async def _send(self, send: Send, message: Message) -> None:
        await sent(send(message), self._send_timeout_s)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
