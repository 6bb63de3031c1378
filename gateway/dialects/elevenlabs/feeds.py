"""Text and audio of one ElevenLabs context: when its text is spoken, how its audio and their times are told.

Text goes on at once, or once enough of it has come; each feed knows where in the client's own text everything is.

    alignments, whole milliseconds on one of two clocks:

    audio      |--- message 1 ---|--- message 2 ---|
    spoken       H i   y o         u
    absolute     all count from the context's first sample
    relative     those of message 2 count from where the characters of message 1 ended

Pipecat's client adds up the spans of all alignments. Counting from the last character's end, not from the audio's,
makes that sum exact: it loses no gap and gains no rounding error, however the audio was cut.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from gateway.audio import AsyncEncoder
from gateway.dialects.elevenlabs.wire import ClientMessage, audio_message
from gateway.speech.session import SessionAudio, SpeechSession
from gateway.speech.text_clock import CharacterTime


class MessageFeed:
    """`auto_mode=true`: a message is a sentence, or more, and is spoken without waiting for the next one."""

    def __init__(self, session: SpeechSession) -> None:
        """Begin with the first message."""
        self._session = session
        self._spaces: list[int] = []

    def push(self, message: ClientMessage) -> None:
        """Take a message's text and its flush; raises InvalidRequestError if the text can't be taken."""
        if message.has_speech:
            self._write(message.text or "")
            self._session.cut()
        if message.is_flush_only:
            self._session.flush()

    def end(self) -> None:
        """Say that no more will come; what is buffered is spoken."""
        self._session.end()

    def position_in_text(self, position: int) -> int:
        """Return the position in the client's text for one in the session's."""
        return position - bisect_right(self._spaces, position - 1)

    def _write(self, text: str) -> None:
        # Pipecat sends sentences without a space behind them, and reads words off between spaces.
        separated = text if text[-1].isspace() else f"{text} "
        self._session.write(separated)
        if separated != text:
            self._spaces.append(self._session.characters_written - 1)


class BufferedFeed:
    """`auto_mode=false`: messages are pieces of text, down to single words or letters."""

    def __init__(self, session: SpeechSession, schedule: Sequence[float]) -> None:
        """Begin with the first message.

        Args:
            session: where the text goes; it finds the sentences.
            schedule: characters to wait for before the first speech, the second, ...; empty: wait for none.
        """
        self._session = session
        self._schedule = schedule
        self._handed_over = 0
        self._held = ""

    def push(self, message: ClientMessage) -> None:
        """Take a message's text and its flush; raises InvalidRequestError if the text can't be taken."""
        is_first = not self._held and not self._session.characters_written
        if message.text and (message.has_speech or not is_first):
            self._held += message.text
        if message.flush or message.try_trigger_generation or len(self._held) >= self._threshold:
            self._hand_over()
        if message.flush:
            self._session.flush()

    def end(self) -> None:
        """Say that no more will come; what is buffered is spoken."""
        self._hand_over()
        self._session.end()

    def position_in_text(self, position: int) -> int:
        """Return the position in the client's text for one in the session's."""
        return position

    @property
    def _threshold(self) -> float:
        return self._schedule[min(self._handed_over, len(self._schedule) - 1)] if self._schedule else 0

    def _hand_over(self) -> None:
        if self._held:
            held, self._held = self._held, ""
            self._session.write(held)
            self._handed_over += 1


TextFeed = MessageFeed | BufferedFeed


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

    def __init__(self, encoder: AsyncEncoder, alignment: AlignmentWriter, send: Send, context_id: str | None) -> None:
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
