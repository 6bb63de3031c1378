"""Speech that a client may break into while something is still due to it afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Interruptible:
    """Runs speech in a task of its own, so that whoever waits for it outlives the interruption.

    NOTE: a task that is cancelled before its first step never runs. What is due after an interruption must therefore
    wait for the speech in another task, not behind an `except` in the same one.
    """

    def __init__(self, speech: Coroutine[Any, Any, None], name: str) -> None:
        """Begin to speak."""
        self._task = asyncio.create_task(speech, name=name)
        self._is_abandoned = False
        self.is_interrupted = False
        """Whether `interrupt` came before the end."""

    def interrupt(self) -> None:
        """Stop the speech now; does nothing after its end."""
        if not self._task.done():
            self.is_interrupted = True
            self._task.cancel()

    def abandon(self) -> None:
        """Stop the speech, and whoever waits for it."""
        self._is_abandoned = True
        self._task.cancel()

    async def wait(self) -> None:
        """Return when the speech has ended or was interrupted, and all that it held is free.

        Raises:
            asyncio.CancelledError: it was abandoned, or who waits was cancelled.
            Exception: the speech's own.
        """
        try:
            await self._task
        except asyncio.CancelledError:
            if self._is_abandoned or not self.is_interrupted:
                raise
