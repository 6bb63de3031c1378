"""Audio of one ElevenLabs context: encoded, with the times of its characters, and an account of what has been sent.

    alignments, whole milliseconds on one of two clocks:

    audio      |--- message 1 ---|--- message 2 ---|
    spoken       H i   y o         u
    absolute     all count from the context's first sample
    relative     those of message 2 count from where the characters of message 1 ended

Pipecat's client adds up the spans of all alignments. Counting from the last character's end, not from the audio's,
makes that sum exact: it loses no gap and gains no rounding error, however the audio was cut.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from gateway.delivery import TurnEncoder
from gateway.dialects.elevenlabs.wire import audio_message
from gateway.speech.session import SessionAudio
from gateway.speech.text_clock import CharacterTime

Send = Callable[[dict[str, Any]], Awaitable[None]]
_MS_PER_S = 1000


class AlignmentWriter:
    """Writes the alignments of one context, in order."""

    def __init__(self, *, is_absolute: bool, speed: float = 1.0) -> None:
        """Begin at time 0; the audio is played `speed` times as fast as it was made."""
        self._is_absolute = is_absolute
        self._ms_per_s = _MS_PER_S / speed
        self._end_ms = 0

    def write(self, characters: Sequence[CharacterTime]) -> dict[str, Any] | None:
        """Return the alignment of the characters that are new; None if there are none."""
        if not characters:
            return None
        origin_ms = 0 if self._is_absolute else self._end_ms
        starts = [round(each.start_s * self._ms_per_s) for each in characters]
        ends = [round(each.end_s * self._ms_per_s) for each in characters]
        self._end_ms = ends[-1]
        return {
            "chars": [each.character for each in characters],
            "charStartTimesMs": [start - origin_ms for start in starts],
            "charDurationsMs": [end - start for start, end in zip(starts, ends, strict=True)],
        }


class AudioWriter:
    """Sends a session's audio as messages."""

    def __init__(self, encoder: TurnEncoder, alignment: AlignmentWriter, send: Send, context_id: str | None) -> None:
        """Begin with the first sample; the encoder's owner closes it."""
        self._encoder = encoder
        self._alignment = alignment
        self._send = send
        self._context_id = context_id
        self._held_samples = 0
        self._held_characters: list[CharacterTime] = []
        self.samples_sent = 0
        """Samples sent so far, at 24 kHz."""
        self.position_sent = 0
        """Position in the session's text, behind the last character whose audio was sent."""

    async def write(self, audio: SessionAudio) -> None:
        """Send audio, with what is known of its characters; an encoder may hold some back."""
        self._held_samples += len(audio.samples)
        self._held_characters.extend(audio.characters)
        take = self._encoder.end_turn if audio.is_turn_end else self._encoder.encode
        encoded = await take(audio.samples)
        if encoded:
            await self._send_held(encoded)

    async def finish(self) -> None:
        """Send the rest."""
        encoded = await self._encoder.finish()
        if encoded or self._held_characters:
            await self._send_held(encoded)

    async def _send_held(self, encoded: bytes) -> None:
        samples, characters = self._held_samples, self._held_characters
        self._held_samples, self._held_characters = 0, []
        await self._send(audio_message(encoded, self._alignment.write(characters), self._context_id))
        self.samples_sent += samples
        if characters:
            self.position_sent = characters[-1].position + 1
