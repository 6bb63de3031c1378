"""Servers that can't start say so in one line, not in a trace of our code."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]

_LIFESPAN, _FAILED = "lifespan", "lifespan.startup.failed"


def failing_plainly(app: App, *kinds: type[Exception]) -> App:
    """Wrap an ASGI application, so that errors of these kinds at its start are logged by their message alone.

    Frameworks tell the server the whole trace instead, and raise. The server ends either way.
    """

    async def plain(scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != _LIFESPAN:
            await app(scope, receive, send)
            return
        held: list[Message] = []

        async def hold(message: Message) -> None:
            if message["type"] == _FAILED:
                held.append(message)
            else:
                await send(message)

        try:
            await app(scope, receive, hold)
        except kinds as error:
            await send({"type": _FAILED, "message": str(error)})
        except BaseException:
            for message in held:
                await send(message)
            raise

    return plain
