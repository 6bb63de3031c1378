"""Brings speech to its listener: cut into short frames, near real time, each with the characters that end in it.

    sent    ├────────────────────────────────┤
    played  ├──────────────────┤  run-ahead  │ more has to wait
                             now

Some clients can't be seen to interrupt: they go on receiving and throw away what comes. What was sent beyond what was
played is then lost work, so the run-ahead is bounded. Keeps count, so that whoever cancels can be told how far the
speech had come. Knows nothing of wires.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass

from gateway.core import AudioChunk
from gateway.speech.request import SpeechResult
from gateway.speech.session import SessionAudio
from gateway.speech.text_clock import TextClock
from servicekit.clock import Clock
from token2wav_service.contract import SAMPLE_RATE_HZ

DEFAULT_RUN_AHEAD_S = 2.0
"""Default audio ahead in seconds: outlasts a mobile network's stalls, and wastes little at an interruption."""

_SHORTEST_WAIT_S = 1e-3
"""Shortest sleep in seconds; less may be too little to move a clock."""


class Pacer:
    """Watches one listener, who plays from the first audio on and goes on as soon as there is more after a gap."""

    def __init__(self, clock: Clock, run_ahead_s: float = DEFAULT_RUN_AHEAD_S) -> None:
        """Begin before the first audio.

        Args:
            run_ahead_s: seconds of audio sent and not played yet, at most; `math.inf` never waits.
        """
        self._clock = clock
        self._run_ahead_s = run_ahead_s
        self._plays_until_s = clock.now()

    @property
    def ahead_s(self) -> float:
        """Seconds of audio sent and not played yet."""
        return max(self._plays_until_s - self._clock.now(), 0.0)

    def wait_s(self, audio_s: float) -> float:
        """Return how long the next `audio_s` seconds must wait; more than the limit waits until all is played."""
        wait_s = self.ahead_s + min(audio_s, self._run_ahead_s) - self._run_ahead_s
        return wait_s if wait_s >= _SHORTEST_WAIT_S else 0.0

    def sent(self, audio_s: float) -> None:
        """Note that so many seconds have been sent."""
        self._plays_until_s = self._clock.now() + self.ahead_s + audio_s


FRAME_S = 0.1
"""Length in seconds of the longest piece sent at once: bounds a cancel's delay and a message's size."""
_FRAME_SAMPLES = round(FRAME_S * SAMPLE_RATE_HZ)


async def timed(speech: AsyncGenerator[AudioChunk], result: SpeechResult) -> AsyncGenerator[SessionAudio]:
    """Say with each chunk of a whole text's speech which characters have ended, as a session does.

    Args:
        speech: the pipeline's; closed on every way out.
    """
    clock, samples = TextClock(result.spans), 0
    async with aclosing(speech):
        async for chunk in speech:
            samples += len(chunk.samples)
            heard_s = samples / SAMPLE_RATE_HZ
            characters = clock.read(heard_s, chunk.is_last)
            yield SessionAudio(chunk.samples, tuple(characters), chunk.is_last)


@dataclass
class Delivery:
    """One listener's account of speech; speeches may follow one another."""

    pacer: Pacer
    """Says when the next frame may go."""
    speed: float = 1.0
    """Times as fast as the speech was made; the pacer counts the time that it takes to play."""
    generated_samples: int = 0
    """Samples made so far; all samples here count at 24 kHz and normal speed."""
    sent_samples: int = 0
    sent_characters: int = 0
    """Position in the text up to which its speech was sent."""

    async def frames(self, speech: AsyncGenerator[SessionAudio]) -> AsyncGenerator[SessionAudio]:
        """Yield the speech in frames, each when it may go; it counts as sent from then on.

        Args:
            speech: closed on every way out; its times count from the first sample of this speech.
        """
        began_samples = 0
        async with aclosing(speech):
            async for audio in speech:
                self.generated_samples += len(audio.samples)
                for frame in frames_of(audio, began_samples):
                    await self._wait(len(frame.samples))
                    self._note_sent(frame)
                    yield frame
                began_samples += len(audio.samples)

    async def _wait(self, samples: int) -> None:
        while (wait_s := self.pacer.wait_s(self._played_s(samples))) > 0:
            await asyncio.sleep(wait_s)

    def _note_sent(self, frame: SessionAudio) -> None:
        self.pacer.sent(self._played_s(len(frame.samples)))
        self.sent_samples += len(frame.samples)
        if frame.characters:
            self.sent_characters = frame.characters[-1].position + 1

    def _played_s(self, samples: int) -> float:
        return samples / SAMPLE_RATE_HZ / self.speed


def frames_of(audio: SessionAudio, began_samples: int) -> Iterator[SessionAudio]:
    """Cut audio into frames of `FRAME_S`, the last one shorter; audio without samples is one frame.

    Args:
        began_samples: of the speech before it.
    """
    left = list(audio.characters)
    for at in range(0, max(len(audio.samples), 1), _FRAME_SAMPLES):
        samples = audio.samples[at : at + _FRAME_SAMPLES]
        is_last = at + _FRAME_SAMPLES >= len(audio.samples)
        end_s = (began_samples + at + len(samples)) / SAMPLE_RATE_HZ
        ended = len(left) if is_last else next((i for i, each in enumerate(left) if each.end_s > end_s), len(left))
        yield SessionAudio(samples, tuple(left[:ended]), audio.is_turn_end and is_last)
        del left[:ended]
