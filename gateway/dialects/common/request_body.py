"""Reads the body of a request that says what to speak, and no more of it than is allowed."""

from __future__ import annotations

from starlette.requests import Request

from gateway.errors import TextTooLongError


async def read_body(request: Request, max_bytes: int, param: str) -> bytes:
    """Return the whole body.

    Args:
        request: not read yet.
        max_bytes: reading stops behind them.
        param: what the dialect calls the text, for the error.

    Raises:
        TextTooLongError: it is longer.
        ClientDisconnect: the caller left.
    """
    parts = bytearray()
    async for part in request.stream():
        parts += part
        if len(parts) > max_bytes:
            raise TextTooLongError(f"the request body passes {max_bytes} bytes; send less text", param=param)
    return bytes(parts)
