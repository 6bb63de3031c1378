"""Keeps in the parent what all workers of one gateway share: callers' accounts, voices, metrics. Admission is not.

Whatever a worker holds here is given back when its connection ends, so a worker that is killed takes nothing with it.
Knows nothing of how workers are started.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, ProcessCollector

from gateway.access.access import Usages
from gateway.processes.link import Given, Handler, Handlers, Link
from gateway.processes.metrics import Families, lasting, merged, snapshot
from gateway.processes.voices import ToldVoice, ToldVoices
from gateway.telemetry.exposition import BEAT_INTERVAL_S, MAX_SILENCE_S
from gateway.voices.inline_budget import InlineVoiceBudget, InlineVoiceLimits
from gateway.voices.store import CreationRate
from servicekit.clock import Clock
from servicekit.timeouts import timeout

logger = logging.getLogger(__name__)

METRICS_PATIENCE_S = 1.0
"""Seconds to wait for one worker's metrics; after that its last ones are used."""
START_TIMEOUT_S = 300.0
"""Seconds that a worker may take until its doors are open."""


@dataclass
class _Seat:
    """The parent's record of one worker."""

    link: Link
    beat_s: float
    texts: dict[str, int] = field(default_factory=dict)
    """Caller -> characters accepted and not spoken yet."""
    metrics: Families = field(default_factory=list)
    """The metrics that the worker sent last."""
    missed_beats: int = 0
    """Number of times in a row that the parent looked for a beat, and none had come."""
    is_open: bool = False
    is_warm: bool = False

    @property
    def patience_s(self) -> float:
        """Seconds without a beat after which it hangs."""
        return MAX_SILENCE_S if self.is_open else START_TIMEOUT_S


class Hub:
    """The shared state; lives in one event loop."""

    def __init__(
        self,
        processes: int,
        inline: InlineVoiceLimits,
        creations_per_minute: int,
        clock: Clock,
    ) -> None:
        """Begin without workers.

        Args:
            processes: workers that there will be.
            inline: of voices that come with requests.
            creations_per_minute: voices that one caller may create.
            clock: the system's: workers read the same one.
        """
        self._processes = processes
        self._clock = clock
        self._usages = Usages()
        self._voices = InlineVoiceBudget(inline, clock)
        self._creations = CreationRate(creations_per_minute, clock)
        self.told_voices = ToldVoices()
        self._seats: dict[int, _Seat] = {}
        self._is_warm = False
        self._departed: Families = []
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)

    @property
    def workers(self) -> list[int]:
        """The numbers of the connected workers."""
        return sorted(self._seats)

    def is_open(self, number: int) -> bool:
        """Whether a worker has opened its doors."""
        return number in self._seats and self._seats[number].is_open

    @property
    def silence_s(self) -> float:
        """Seconds since the last beat of the event loop that has been silent for longest."""
        now_s = self._clock.now()
        return max((now_s - seat.beat_s for seat in self._seats.values()), default=0.0)

    @property
    def is_alive(self) -> bool:
        """Whether every worker's event loop turns."""
        return self.silence_s <= MAX_SILENCE_S

    def silent(self) -> list[int]:
        """Return the workers that hang; asked once in `BEAT_INTERVAL_S`. A parent that stood still blames nobody."""
        for seat in self._seats.values():
            seat.missed_beats += 1
        return [number for number, seat in self._seats.items() if seat.missed_beats * BEAT_INTERVAL_S > seat.patience_s]

    def handlers(self, number: int) -> Handlers:
        """Return what answers one worker's link."""
        calls: dict[str, Handler] = {
            "stream": self._stream,
            "turn": self._turn,
            "creation": self._creation,
            "metrics": self._metrics,
        }

        async def voice(caller: str, voice: str, recording_bytes: int) -> Given:
            await self._voices.take(caller, voice, recording_bytes, number)
            return Given()

        def state(**told: object) -> None:
            self._note_state(number, **told)  # type: ignore[arg-type]

        notes: dict[str, Callable[..., None]] = {
            "state": state,
            "voices": lambda voices: self._note_voices(number, voices),
            "beat": lambda: self._beat(number),
            "opened": lambda: self._opened(number),
            "warm": lambda: self._warm(number),
        }
        return Handlers(
            {**calls, "voice": voice}, notes, lambda link: self._join(number, link), lambda: self._leave(number)
        )

    def _join(self, number: int, link: Link) -> None:
        """Take a worker in and tell it what it must know."""
        self._seats[number] = _Seat(link, self._clock.now())
        audio = {name: usage.audio.told() for name, usage in self._usages.items()}
        link.note("welcome", audio={name: told for name, told in audio.items() if told}, is_warm=self._is_warm)
        link.note("voices", voices=self.told_voices.all())
        callers = {caller for seat in self._seats.values() for caller in seat.texts}
        self._tell(number, callers)

    def ask_to_leave(self) -> None:
        """Have all workers close their doors now."""
        for seat in self._seats.values():
            seat.link.note("leave")

    async def metrics(self) -> Families:
        """Return the metrics of all workers and of this process, merged as if from one process."""
        await asyncio.gather(*(self._ask_for_metrics(seat) for seat in list(self._seats.values())))
        of_workers = [seat.metrics for _, seat in sorted(self._seats.items())]
        return merged([*of_workers, self._departed, snapshot(self._registry)])

    async def _stream(self, caller: str, limit: int | None) -> Given:
        usage = self._usages.of(caller)
        if limit is not None and usage.streams >= limit:
            return Given(usage.streams)
        usage.streams += 1

        def end() -> None:
            usage.streams -= 1
            self._usages.forget_idle()

        return Given(None, end)

    async def _turn(self, caller: str) -> Given:
        lock = self._voices.turn(caller)
        await lock.acquire()
        return Given(None, lock.release)

    async def _creation(self, caller: str) -> Given:
        return Given(await self._creations.take(caller))

    async def _metrics(self) -> Given:
        return Given(await self.metrics())

    async def _ask_for_metrics(self, seat: _Seat) -> None:
        with contextlib.suppress(Exception):
            async with timeout(METRICS_PATIENCE_S):
                seat.metrics = await seat.link.call("metrics")

    def _note_state(
        self,
        number: int,
        texts: Mapping[str, int] | None = None,
        audio: Mapping[str, float] | None = None,
    ) -> None:
        """Take over what has changed at a worker, and tell the others."""
        seat = self._seats[number]
        seat.texts = {name: characters for name, characters in (seat.texts | dict(texts or {})).items() if characters}
        for name, audio_s in (audio or {}).items():
            self._usages.of(name).audio.add(audio_s, self._clock.now())
        if texts or audio:
            for other in self._seats.keys() - {number}:
                self._tell(other, set(texts or ()), audio)

    def _note_voices(self, number: int, voices: list[ToldVoice]) -> None:
        """Tell the others which voices a worker has registered."""
        self.told_voices.add(voices)
        for other in self._seats.keys() - {number}:
            self._seats[other].link.note("voices", voices=voices)

    def _tell(self, number: int, callers: set[str], audio: Mapping[str, float] | None = None) -> None:
        """Tell a worker which texts of some callers its siblings have."""
        siblings = [seat for other, seat in self._seats.items() if other != number]
        texts = {caller: sum(seat.texts.get(caller, 0) for seat in siblings) for caller in callers}
        self._seats[number].link.note("siblings", texts=texts, audio=audio or {})

    def _beat(self, number: int) -> None:
        seat = self._seats[number]
        seat.beat_s, seat.missed_beats = self._clock.now(), 0

    def _opened(self, number: int) -> None:
        self._seats[number].is_open = True

    def _warm(self, number: int) -> None:
        self._seats[number].is_warm = True
        is_all = len(self._seats) == self._processes and all(seat.is_warm for seat in self._seats.values())
        if is_all and not self._is_warm:
            self._is_warm = True
            logger.info("all %d processes are warm; ready", self._processes)
            for seat in self._seats.values():
                seat.link.note("warm")

    def _leave(self, number: int) -> None:
        seat = self._seats.pop(number, None)
        if seat is None:
            return
        self._departed = merged([self._departed, lasting(seat.metrics)])
        for other in self._seats:
            self._tell(other, set(seat.texts))
