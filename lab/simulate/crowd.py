"""Listeners: each hears one utterance after another, in real time, and asks for the next when it has been played."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from cosydit.bench.doors import PreparedRequest
from cosydit.bench.metrics import playback_underrun
from cosydit.bench.types import AudioArrival, RequestRecord, SpeechInput
from gateway.errors import LimitError, OverloadedError
from servicekit.clock import Clock

_LETTER_WORD = "word "


class Door(Protocol):
    """One gateway."""

    def speak(self, job: PreparedRequest, request_id: str) -> AsyncGenerator[float, None]:
        """Speak one text; yields seconds of audio."""
        ...


@dataclass(frozen=True)
class LoadStep:
    """From a moment on there are so many listeners."""

    at_s: float
    listeners: int


@dataclass(frozen=True)
class CrowdPlan:
    """Who listens, from when on, and to what."""

    steps: tuple[LoadStep, ...]
    """Steps, ascending in time; the crowd only grows."""
    seconds: float
    """Seconds until the last utterance may be asked for; those under way are heard to their end."""
    ramp_s: float = 10.0
    """Seconds over which a step's new listeners come evenly."""
    least_letters: int = 60
    most_letters: int = 180
    """Most letters of an utterance: 4 to 12 s."""
    voices: int = 16
    patience_s: float = 1.0
    """Seconds after which a refused listener asks again."""
    seed: int = 0

    @property
    def complete_s(self) -> tuple[float, float]:
        """From when to when all listeners are there; before they still come, and after it none asks again."""
        return self.steps[-1].at_s + self.ramp_s, self.seconds

    @property
    def voice_names(self) -> list[str]:
        """All of them; every gateway knows them before the first listener comes."""
        return [f"voice-{number:03d}" for number in range(self.voices)]


class Crowd:
    """Runs a plan against doors; keeps what each request got."""

    def __init__(self, plan: CrowdPlan, doors: Sequence[Door], clock: Clock) -> None:
        """Nobody has come yet."""
        self._plan = plan
        self._doors = doors
        self._clock = clock
        self._began_s = clock.now()
        self.records: list[RequestRecord] = []
        """Records of requests that have ended, in that order, without refused ones."""
        self.refused = 0
        self.listeners = 0

    async def listen(self) -> None:
        """Run the plan to its end."""
        self._began_s = self._clock.now()
        listeners, tasks = 0, []
        for step in self._plan.steps:
            newcomers = max(step.listeners - listeners, 0)
            for number in range(newcomers):
                at_s = step.at_s + self._plan.ramp_s * number / newcomers
                tasks.append(asyncio.create_task(self._listener(listeners + number, at_s)))
            listeners += newcomers
        await asyncio.gather(*tasks)

    async def _listener(self, number: int, at_s: float) -> None:
        draw = random.Random(self._plan.seed * 1_000_003 + number)
        door = self._doors[number % len(self._doors)]
        await asyncio.sleep(at_s)
        self.listeners += 1
        turns = count()
        while self._now_s() < self._plan.seconds:
            await self._hear(door, self._job(draw, number, next(turns)))

    async def _hear(self, door: Door, job: PreparedRequest) -> None:
        sent_s = self._clock.now()
        record = RequestRecord(job.input.utt, job.input.utt, self._now_s())
        try:
            async with aclosing(door.speak(job, job.input.utt)) as audio:
                async for audio_s in audio:
                    if audio_s > 0:
                        record.arrivals.append(AudioArrival(self._clock.now() - sent_s, audio_s))
        except (OverloadedError, LimitError):
            self.refused += 1
            await asyncio.sleep(self._plan.patience_s)
            return
        except Exception as error:  # a failed request is a result, whatever made it fail
            record.error = f"{type(error).__name__}: {error}"
        record.total_s = self._clock.now() - sent_s
        self.records.append(record)
        await asyncio.sleep(self._left_to_play_s(record))

    def _left_to_play_s(self, record: RequestRecord) -> float:
        if record.error is not None or not record.arrivals:
            return self._plan.patience_s
        played_s = record.arrivals[0].at_s + record.audio_s + playback_underrun(record.arrivals, 0.0).short_s
        return max(played_s - record.total_s, 0.0)

    def _job(self, draw: random.Random, number: int, turn: int) -> PreparedRequest:
        letters = draw.randint(self._plan.least_letters, self._plan.most_letters)
        text = (_LETTER_WORD * letters)[: letters - 1].strip() + "."
        voice = draw.choice(self._plan.voice_names)
        return PreparedRequest(SpeechInput(f"listener-{number}-{turn}", text.capitalize()), None, voice)

    def _now_s(self) -> float:
        return self._clock.now() - self._began_s
