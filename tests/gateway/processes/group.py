"""The processes of one gateway in one event loop: workers over one ledger, and the parent's ends of their pipes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.access.access import Access
from gateway.access.caller import Caller, CallerLimits
from gateway.ledger import CallerLedger
from gateway.lifecycle.gate import Gate
from gateway.llm.routed import RoutedSpeechLM
from gateway.processes.worker import Worker
from gateway.routing.replica import RoutingSettings
from gateway.token2wav.routed import RoutedToken2Wav
from servicekit.clock import SystemClock
from tests.gateway.routing.fakes import QUICK, ScriptedLLM, ScriptedToken2Wav, routed, routed_llm

SLOTS = 5


@dataclass
class Process:
    """One worker and what it serves with."""

    worker: Worker
    gate: Gate
    access: Access
    llm: RoutedSpeechLM
    token2wav: RoutedToken2Wav
    beats: int
    """The parent's end of the pipe."""


class Group:
    """Workers that can be started and killed; the folder keeps their ledger."""

    def __init__(self, folder: Path, settings: RoutingSettings = QUICK) -> None:
        self.clock = SystemClock()
        self.path = folder / "shared" / "ledger"
        self.path.parent.mkdir()
        self.ledger = CallerLedger(self.clock, self.path)
        """The parent's."""
        self.settings = settings
        self.token2wav = ScriptedToken2Wav("a", slots=SLOTS)

    @asynccontextmanager
    async def process(self, number: int) -> AsyncIterator[Process]:
        """Run one worker until the context is left, which is its death."""
        ours, theirs = os.pipe()
        ledger = CallerLedger(self.clock, self.path, number)
        worker = Worker(number, theirs, ledger)
        async with (
            routed_llm(ScriptedLLM("l"), settings=self.settings) as llm,
            routed(self.token2wav, settings=self.settings) as token2wav,
        ):
            access = Access(None, CallerLimits(), self.clock, ledger)
            async with worker.serving():
                gate = Gate(llm, token2wav, self.clock, lambda: Caller("anna"))
                yield Process(worker, gate, access, llm, token2wav, ours)
        os.close(ours)
        self.ledger.end_process(number, [])

    @asynccontextmanager
    async def two(self) -> AsyncIterator[tuple[Process, Process]]:
        """Run two workers."""
        async with self.process(1) as first, self.process(2) as second:
            yield first, second
