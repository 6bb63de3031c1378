"""When the text of ElevenLabs' messages goes on to be spoken: at once, or once enough of it has come.

Knows where in the client's own text everything is, whatever was put between its messages here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from gateway.dialects.elevenlabs.wire import ClientMessage
from gateway.speech.session import SpeechSession


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
