"""Decides how many streams may be under way at once at both services, and which streams get a place.

Knows the two services by what was measured of them. So it can stand in the process that serves a stream, or in another
one that several such processes ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from gateway.routing.places import Asker, Ends, Place, Places
from gateway.routing.settings import RoutingSettings
from gateway.routing.speed import SpeedMeter
from gateway.routing.waiting import Coming
from servicekit.clock import Clock

FIRST_STREAMS_SPEECH_S = 5.0
"""Seconds of speech assumed for a stream until the first one has ended: a sentence or two."""


class PlaceSource(Protocol):
    """Gives streams their places."""

    async def take(self, asker: Asker) -> Place:
        """Return a place for one stream, waiting for it if it comes in time.

        Raises:
            OverloadedError: it does not.
        """
        ...

    def give_back(self, place: Place, is_whole: bool) -> None:
        """Take a place back; how long a whole stream held it is learnt."""
        ...


class Capacity:
    """Implements `PlaceSource` from the measured speeds and slots of both services."""

    def __init__(
        self,
        settings: RoutingSettings,
        clock: Clock,
        llm: SpeedMeter,
        token2wav: SpeedMeter,
        slots: Callable[[], float],
    ) -> None:
        """Begin with all places free.

        Args:
            settings: limits of waiting, and the least speed of a stream.
            clock: of the waiting.
            llm: measures the LLM's replicas.
            token2wav: measures those of token2wav.
            slots: token2wav's that streams have or may have; inf if that is unknown.
        """
        self._settings = settings
        self._llm = llm
        self._token2wav = token2wav
        self._slots = slots
        self._taken = 0
        self.places = Places(settings, clock, self._limit, self._ends, self._is_limit_certain, slots)
        for meter in (llm, token2wav):
            meter.on_measured = self.places.serve

    @property
    def taken(self) -> int:
        """Places that streams hold."""
        return self._taken

    async def take(self, asker: Asker) -> Place:
        """See `PlaceSource.take`."""
        coming = Coming[Place](lambda place: self.places.give_back(place, is_whole=False))
        turn = self.places.ask(asker, coming.give)
        if isinstance(turn, Place):
            self._count(1)
            return turn
        try:
            place = await coming.within(self.places.wait_s(asker.patience_s), lambda: self.places.leave(turn))
        except asyncio.TimeoutError as error:
            raise self.places.overloaded(turn) from error
        self._count(1)
        return place

    def give_back(self, place: Place, is_whole: bool) -> None:
        """See `PlaceSource.give_back`."""
        self._count(-1)
        self.places.give_back(place, is_whole)

    def _count(self, change: int) -> None:
        self._taken += change
        for meter in (self._llm, self._token2wav):
            meter.set_streams(self._taken)

    def _limit(self) -> float:
        """Return how many streams at once both services can serve in time."""
        return min(self._slots(), self._limit_of_speed())

    def _is_limit_certain(self) -> bool:
        if self._limit_of_speed() >= self._slots():
            return True
        return min((self._token2wav, self._llm), key=lambda meter: meter.limit).is_certain

    def _limit_of_speed(self) -> float:
        return min(self._token2wav.limit, self._llm.limit)

    def _ends(self) -> Ends:
        """Return how fast streams end when all places are taken: where speed sets their number, each gets the least."""
        speech_s, least_speed = self._token2wav.stream_speech_s or FIRST_STREAMS_SPEECH_S, self._settings.least_speed
        speeds = [speed for meter in (self._llm, self._token2wav) if (speed := meter.speed)]
        if not least_speed or self._limit_of_speed() > self._limit():
            return Ends()
        if not speeds:
            return Ends(speech_s / least_speed, speech_s / least_speed / self._limit_of_speed())
        proven = max(1.0, min(self._llm.proven, self._token2wav.proven))
        apart_s = speech_s / (proven * least_speed)
        return Ends(max(speech_s / min(*speeds, least_speed), self._taken * apart_s), apart_s)
