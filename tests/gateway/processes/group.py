"""The processes of one gateway in one event loop: a parent's hub and its workers, over real socket pairs."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gateway.access.access import Access
from gateway.access.caller import CallerLimits
from gateway.lifecycle.gate import Gate
from gateway.llm.routed import RoutedSpeechLM
from gateway.processes.hub import Hub
from gateway.processes.link import Link, open_link
from gateway.processes.worker import Worker
from gateway.routing.settings import RoutingSettings
from gateway.token2wav.routed import RoutedToken2Wav
from gateway.voices.inline_budget import InlineVoiceLimits
from servicekit.clock import SystemClock
from tests.gateway.routing.fakes import QUICK, ScriptedLLM, ScriptedToken2Wav, routed, routed_llm, until

SLOTS = 5


@dataclass
class Process:
    """One worker and what it serves with."""

    worker: Worker
    gate: Gate
    access: Access
    llm: RoutedSpeechLM
    token2wav: RoutedToken2Wav
    link: Link
    """The parent's end."""


class Group:
    """A parent's hub, and workers that can be started and killed."""

    def __init__(self, processes: int = 2, settings: RoutingSettings = QUICK) -> None:
        self.clock = SystemClock()
        self.caller = "anna"
        """Who asks now."""
        self.settings = settings
        self.hub = Hub(processes, InlineVoiceLimits(voices_per_minute=2), 2, self.clock)
        self.token2wav = ScriptedToken2Wav("a", slots=SLOTS)
        self.more_token2wav: list[ScriptedToken2Wav] = []
        """Other replicas, for processes that begin later."""

    @asynccontextmanager
    async def process(self, number: int) -> AsyncIterator[Process]:
        """Run one worker until the context is left, which is its death."""
        ours, theirs = socket.socketpair()
        worker = Worker(number, theirs, self.clock)
        async with (
            routed_llm(ScriptedLLM("l"), settings=self.settings) as llm,
            routed(self.token2wav, *self.more_token2wav, settings=self.settings) as token2wav,
        ):
            access = Access(None, CallerLimits(), self.clock, worker.streams)
            link = await open_link(ours, self.hub.handlers(number))
            async with worker.serving(access):
                gate = Gate(llm, token2wav, self.clock, lambda: self.caller)
                yield Process(worker, gate, access, llm, token2wav, link)
            await until(lambda: not link.is_open, "the end of the link")


@asynccontextmanager
async def two() -> AsyncIterator[tuple[Group, Process, Process]]:
    group = Group()
    async with group.process(1) as first, group.process(2) as second:
        yield group, first, second
