"""What servers do at their start: threads take turns often, and one that can't start says so in one line."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]

SWITCH_INTERVAL_S = 0.0002
"""How long a thread may keep the interpreter while another one wants it; Python's own 5 ms are longer than a step."""
_LIFESPAN, _FAILED = "lifespan", "lifespan.startup.failed"


def take_turns_often(interval_s: float = SWITCH_INTERVAL_S) -> None:
    """Have this process's threads take turns at the interpreter so often that none waits for long.

    A thread that waited for the GPU or a socket must have the interpreter back before it goes on: with Python's default
    it waits 5 ms each time while another thread works, some ten times in a step.
    """
    sys.setswitchinterval(interval_s)


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
