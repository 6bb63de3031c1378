"""Decides whether a stream may begin, before any service does work for it, and counts those that have begun."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.errors import NotReadyError
from gateway.routing.llm import RoutedSpeechLM
from gateway.routing.token2wav import RoutedToken2Wav


class Gate:
    """Implements `core.Admission` over both services' replicas."""

    def __init__(self, llm: RoutedSpeechLM, token2wav: RoutedToken2Wav) -> None:
        """Let everybody in whom the replicas have room for."""
        self._llm = llm
        self._token2wav = token2wav
        self._speaking = 0
        self._is_draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def speaking(self) -> int:
        """Streams under way."""
        return self._speaking

    @property
    def is_draining(self) -> bool:
        """Whether no stream may begin any more."""
        return self._is_draining

    @asynccontextmanager
    async def admitted(self, priority: int, patience_s: float | None = None) -> AsyncIterator[None]:
        """See `core.Admission.admitted`."""
        if self._is_draining:
            raise NotReadyError("this gateway is being stopped; ask another one")
        self._token2wav.fleet.check(priority, patience_s)
        self._speaking += 1
        self._idle.clear()
        try:
            await self._llm.until_usable()
            yield
        finally:
            self._speaking -= 1
            if not self._speaking:
                self._idle.set()

    def drain(self) -> None:
        """Let nobody in any more; streams under way go on."""
        self._is_draining = True

    async def until_idle(self) -> None:
        """Return when no stream is under way."""
        await self._idle.wait()
