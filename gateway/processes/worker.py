"""A worker's side of the state that all processes of one gateway share: asks the parent, and reports to it.

taken at the parent, one round trip each    streams of callers, new voices
told when it changes, within 50 ms          unspoken text, audio, voices that token2wav knows

Processes share no admission: the services say how many streams they serve, and refuse those of any process beyond it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry

from gateway.access.access import Access
from gateway.processes.link import Given, Handlers, Link, open_link
from gateway.processes.metrics import Families, from_thread, gathered_registry, snapshot
from gateway.processes.voices import WorkerKnownVoices
from gateway.telemetry.exposition import BEAT_INTERVAL_S
from servicekit.clock import Clock
from servicekit.tasks import running_meanwhile

logger = logging.getLogger(__name__)

TELL_INTERVAL_S = 0.05
"""Seconds until other processes know of a change here, unless something asks for it sooner."""


class Worker:
    """One process among several that serve one gateway's ports; what it shares is in its parts."""

    def __init__(self, number: int, end: socket.socket, clock: Clock) -> None:
        """Send no request yet.

        Args:
            number: of this process, from 1.
            end: of the socket pair that leads to the parent.
            clock: the system's.
        """
        self.number = number
        self.streams = WorkerStreams(self)
        self.voices = WorkerVoices(self)
        self.creations = WorkerCreations(self)
        self.known_voices = WorkerKnownVoices()
        self.on_leave: Callable[[], None] = lambda: None
        """Called when the parent wants the doors closed at once."""
        self.on_orphaned: Callable[[], None] = lambda: None
        """Called when the parent is gone."""
        self._clock = clock
        self._end = end
        self._link: Link | None = None
        self._told: _Told | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._registry: CollectorRegistry | None = None
        self._is_warm = self._is_leaving = False

    @property
    def link(self) -> Link:
        """To the parent, from `serving` on."""
        assert self._link is not None
        return self._link

    @property
    def is_warm(self) -> bool:
        """See `ReadyTogether.is_warm`."""
        return self._is_warm

    def note_warm(self) -> None:
        """See `ReadyTogether.note_warm`."""
        self.link.note("warm")

    def note_opened(self) -> None:
        """Tell that the doors are open."""
        self.link.note("opened")

    def gathered(self, registry: CollectorRegistry) -> CollectorRegistry:
        """Return a registry with the metrics of all processes; this one's own are in `registry`."""
        self._registry = registry
        return gathered_registry(self._gather_metrics)

    @asynccontextmanager
    async def serving(self, access: Access) -> AsyncIterator[None]:
        """Talk to the parent until the context is left."""
        self._told, self._loop = _Told(access, self._clock), asyncio.get_running_loop()
        notes: dict[str, Callable[..., None]] = {
            "welcome": self._welcome,
            "siblings": self._told.siblings,
            "voices": self.known_voices.hear,
            "warm": self._group_is_warm,
            "leave": lambda: self.on_leave(),
        }
        handlers = Handlers({"metrics": self._own_metrics}, notes, closed=self._closed)
        self._link = await open_link(self._end, handlers)
        try:
            async with running_meanwhile(self._keep_telling()), running_meanwhile(self._keep_beating()):
                yield
        finally:
            self._is_leaving = True
            self._link.close()

    def tell(self) -> None:
        """Tell the parent at once what has changed here."""
        assert self._told is not None
        if changes := self._told.changes():
            self.link.note("state", **changes)
        if voices := self.known_voices.take_untold():
            self.link.note("voices", voices=voices)

    async def _keep_telling(self) -> None:
        while True:
            try:
                self.tell()
            except Exception:
                logger.exception("the other processes of this gateway can't be told what this one does")
            await asyncio.sleep(TELL_INTERVAL_S)

    async def _keep_beating(self) -> None:
        while True:
            self.link.note("beat")
            await asyncio.sleep(BEAT_INTERVAL_S)

    def _welcome(self, audio: Mapping[str, list[tuple[float, float]]], is_warm: bool) -> None:
        assert self._told is not None
        self._told.take_over(audio)
        self._is_warm = is_warm

    def _group_is_warm(self) -> None:
        self._is_warm = True

    def _closed(self) -> None:
        if not self._is_leaving:
            self.on_orphaned()

    async def _own_metrics(self) -> Given:
        return Given(await asyncio.to_thread(snapshot, self._registry) if self._registry is not None else [])

    def _gather_metrics(self) -> Families:
        assert self._loop is not None
        return from_thread(lambda: self.link.call("metrics"), self._loop)


class _Told:
    """What the parent knows of this process, so that it is told changes only; and what it told of the siblings."""

    def __init__(self, access: Access, clock: Clock) -> None:
        self._usages = access.usages
        self._clock = clock
        self._texts: dict[str, int] = {}
        self._active: set[str] = set()
        """Callers that have something open, or had it a moment ago."""

    def changes(self) -> dict[str, Any]:
        """Return what has changed since the last report, as the parent's `state` takes it."""
        told: dict[str, Any] = {}
        if texts := self._changed_texts():
            told["texts"] = texts
        if audio := self._new_audio():
            told["audio"] = audio
        return told

    def _changed_texts(self) -> dict[str, int]:
        self._active |= self._usages.take_touched()
        texts = {}
        for name in self._active:
            usage = self._usages.find(name)
            characters = usage.text.characters if usage is not None else 0
            if characters != self._texts.get(name, 0):
                texts[name] = self._texts[name] = characters
        return texts

    def _new_audio(self) -> dict[str, float]:
        audio = {}
        for name in list(self._active):
            usage = self._usages.find(name)
            if usage is not None and usage.untold_audio_s:
                audio[name], usage.untold_audio_s = usage.untold_audio_s, 0.0
            if usage is None or not (usage.streams or usage.text.sessions or self._texts.get(name)):
                self._active.discard(name)
                self._texts.pop(name, None)
        return audio

    def take_over(self, audio: Mapping[str, list[tuple[float, float]]]) -> None:
        """Begin with the audio that callers have got of the other processes."""
        for name, told in audio.items():
            self._usages.of(name).audio.take_over(told)

    def siblings(self, texts: Mapping[str, int], audio: Mapping[str, float]) -> None:
        """Note what the other processes have."""
        for name, characters in texts.items():
            self._usages.of(name).characters_elsewhere = characters
        for name, audio_s in audio.items():
            self._usages.of(name).audio.add(audio_s, self._clock.now())


class WorkerStreams:
    """Implements `StreamCount`."""

    def __init__(self, worker: Worker) -> None:
        """Hold none."""
        self._worker = worker
        self._held: dict[str, list[int]] = {}

    async def take(self, caller: str, limit: int | None) -> int | None:
        """See `StreamCount.take`."""
        number, too_many = await self._worker.link.hold("stream", caller=caller, limit=limit)
        if too_many is not None:
            return int(too_many)
        self._held.setdefault(caller, []).append(number)
        return None

    def give_back(self, caller: str) -> None:
        """See `StreamCount.give_back`."""
        self._worker.link.release(self._held[caller].pop())
        if not self._held[caller]:
            del self._held[caller]


class WorkerVoices:
    """Implements `VoiceBudget`."""

    def __init__(self, worker: Worker) -> None:
        """Send no request yet."""
        self._worker = worker

    async def take(self, caller: str, voice: str, recording_bytes: int) -> None:
        """See `VoiceBudget.take`."""
        await self._worker.link.call("voice", caller=caller, voice=voice, recording_bytes=recording_bytes)

    def turn(self, caller: str) -> AbstractAsyncContextManager[None]:
        """See `VoiceBudget.turn`."""
        return self._turn(caller)

    @asynccontextmanager
    async def _turn(self, caller: str) -> AsyncIterator[None]:
        link = self._worker.link
        number, _ = await link.hold("turn", caller=caller)
        try:
            yield
        finally:
            link.release(number)


class WorkerCreations:
    """Implements `CreationCount`."""

    def __init__(self, worker: Worker) -> None:
        """Send no request yet."""
        self._worker = worker

    async def take(self, caller: str) -> float:
        """See `CreationCount.take`."""
        return float(await self._worker.link.call("creation", caller=caller))
