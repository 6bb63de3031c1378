"""Speech of text that is still being written: pieces of text in, audio out as soon as there is something to speak.

    write ─► segments ─┬─ turn 1 ─► pipeline.speak ─► audio
    flush ─────────────┤
    write ─► segments ─┴─ turn 2 ─► pipeline.speak ─► audio, behind that of turn 1

A turn is one token2wav stream. It ends with a flush, with the text, or when the writer pauses; the next one goes on
from its prosody. Knows nothing of wires or of pacing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from enum import Enum

from gateway.core import AudioChunk, FloatArray, SessionHold
from gateway.errors import InvalidTextError, TextTooLongError
from gateway.speech.request import SpeechRequest, SpeechResult, check_text
from gateway.speech.speaker import Segments, Speaker
from gateway.speech.text_clock import CharacterTime, TextClock
from gateway.text import INTERLEAVED_TEXT, LIVE_TEXT, Segment, SpokenSegment
from gateway.text.splitter import SplitSettings
from servicekit.timeouts import timeout
from token2wav_service.contract import SAMPLE_RATE_HZ

DEFAULT_PAUSE_S = 0.5
"""Seconds of the writer's silence after which a turn ends, so that audio held back by token2wav is heard."""
_GRAIN_S = 0.001
"""Seconds that a timer is set for at least: one that fires a rounding error too early would be set again and again."""
WAITED_FOR_S = 5.0
"""Seconds of the writer's silence between two turns for which a gateway that is being stopped waits."""
DEFAULT_MAX_UNSPOKEN_CHARACTERS = 20_000


class _Mark(Enum):
    CUT = 0
    FLUSH = 1
    REST = 2
    """The end of a turn; blanks, which are all that is left, wait for what follows."""
    END = 3


@dataclass(frozen=True)
class SessionAudio:
    """Audio of a session, in order."""

    samples: FloatArray
    """[N] float32 in +-1 at 24 kHz; may be empty at the end of a turn."""
    characters: tuple[CharacterTime, ...]
    """Characters that end within this audio or before; times count from the session's first sample."""
    is_turn_end: bool


def _now_s() -> float:
    return asyncio.get_running_loop().time()


class SpeechSession:
    """One voice, one text that grows, one listener. Made in a running event loop; its audio is read once."""

    def __init__(
        self,
        pipeline: Speaker,
        request: SpeechRequest,
        pause_s: float = DEFAULT_PAUSE_S,
        max_unspoken_characters: int = DEFAULT_MAX_UNSPOKEN_CHARACTERS,
        split: SplitSettings = LIVE_TEXT,
    ) -> None:
        """Begin without text.

        Args:
            request: how to speak; its text is not looked at.
            max_unspoken_characters: text accepted and not spoken yet, at most.
            split: `WHOLE_TEXT` where pieces are whole sentences and each is followed by `cut`; a request whose text the
                LLM takes while it speaks has its own.
        """
        self._pipeline = pipeline
        self._request = request
        self._pause_s = pause_s
        self._max_unspoken = max_unspoken_characters
        self._text = pipeline.front_end.open(
            request.text_options, INTERLEAVED_TEXT if request.is_interleaved else split
        )
        self._items: asyncio.Queue[str | _Mark] = asyncio.Queue()
        """Text and marks as they came: text is cut when its turn comes, so that only its writer waits for that."""
        self._steps: Iterator[Segment | None] | None = None
        """Cuts the current item; None: no item is being cut."""
        self._mark: _Mark | None = None
        """Mark that follows the text being cut."""
        self._unspoken = pipeline.unspoken_text()
        self._taken = 0
        self.characters_written = 0
        """Characters accepted so far."""
        self._wrote_s = -math.inf
        self._has_uncut_words = False
        """Whether more than blanks was written since the last cut."""
        self._has_ended = False
        self.samples = 0
        """Samples at 24 kHz given out so far."""
        self.results: list[SpeechResult] = []
        """Results, one a turn, the newest last."""

    def write(self, piece: str) -> None:
        """Take more text.

        Raises:
            InvalidTextError: not Unicode, or it comes after the end.
            TextTooLongError: more than `max_unspoken_characters` wait to be spoken, or too much of all the caller's
                sessions; nothing of the piece was taken.
        """
        self._check_open()
        check_text(piece, self._max_unspoken)
        waiting = self.characters_written - self._taken
        if waiting + len(piece) > self._max_unspoken:
            got = (
                f"{waiting} characters wait to be spoken and {len(piece)} more came, the limit is {self._max_unspoken}"
            )
            raise TextTooLongError(f"{got}; send text no faster than it is spoken", param="text")
        self._unspoken.add(len(piece))
        self.characters_written += len(piece)
        if self._request.is_interleaved:
            self._wrote_s = _now_s()
        self._has_uncut_words = self._has_uncut_words or bool(piece.strip())
        self._items.put_nowait(piece)

    def cut(self) -> None:
        """Have all text so far spoken without waiting for what follows, which takes blanks alone; the turn goes on.

        Raises:
            InvalidTextError: it comes after the end.
        """
        self._check_open()
        if self._has_uncut_words:
            self._items.put_nowait(_Mark.CUT)
        self._has_uncut_words = False

    def flush(self) -> None:
        """Have all text so far spoken to its end; what is written later begins anew, and takes blanks alone.

        Raises:
            InvalidTextError: it comes after the end.
        """
        self._check_open()
        self._items.put_nowait(_Mark.FLUSH if self._has_uncut_words else _Mark.REST)
        self._has_uncut_words = False

    def end(self) -> None:
        """Say that no more text will come; harmless when said twice."""
        if not self._has_ended:
            self._items.put_nowait(_Mark.END)
            self._has_ended = True

    async def audio(self) -> AsyncGenerator[SessionAudio]:
        """Speak until the end; closing the generator stops everything and frees both services.

        Raises:
            GatewayError: what went wrong; audio yielded before is good.
        """
        try:
            with self._pipeline.holding_session() as hold:
                while begun := await self._first_speakable(hold):
                    async with aclosing(self._speak_turn(begun, hold.is_held)) as turn:
                        async for audio in turn:
                            hold.acquire()
                            yield audio
        finally:
            self._unspoken.take(self._unspoken.characters)

    async def _speak_turn(self, begun: list[SpokenSegment], is_under_way: bool) -> AsyncGenerator[SessionAudio]:
        result = SpeechResult()
        if self.results:
            result.carry = self.results[-1].carry
        self.results.append(result)
        request_id = f"{self._request.request_id}-{len(self.results)}"
        goes_on = len(self.results) > 1
        request = replace(
            self._request,
            text=begun[-1].source.text,
            request_id=request_id,
            is_under_way=is_under_way,
            goes_on=goes_on,
        )
        began_s, clock = self.samples / SAMPLE_RATE_HZ, TextClock(result.spans)
        async with aclosing(self._pipeline.speak(request, self._turn(begun), result)) as chunks:
            async for chunk in chunks:
                yield self._audio_of(chunk, clock, began_s)

    def _audio_of(self, chunk: AudioChunk, clock: TextClock, began_s: float) -> SessionAudio:
        self.samples += len(chunk.samples)
        heard_s = self.samples / SAMPLE_RATE_HZ - began_s
        read = clock.read(heard_s, chunk.is_last)
        shifted = (replace(each, start_s=each.start_s + began_s, end_s=each.end_s + began_s) for each in read)
        return SessionAudio(chunk.samples, tuple(shifted), chunk.is_last)

    async def _turn(self, begun: list[SpokenSegment]) -> Segments:
        """Yield the segments of one turn; ends with it."""
        for segment in begun:
            yield segment
        while True:
            try:
                async with timeout(self._patience_s):
                    item = await self._next_cut()
            except asyncio.TimeoutError:
                if self._has_uncut_text or self._is_being_written:
                    continue
                return
            if item is _Mark.END:
                self._items.put_nowait(item)  # NOTE: the next look for a turn must see it too
            if isinstance(item, _Mark):
                return
            yield await self._prepare(item)
            await asyncio.sleep(0)  # NOTE: items that are there already are had without letting others run

    async def _first_speakable(self, hold: SessionHold) -> list[SpokenSegment]:
        """Wait for the next thing to say and return it behind the pauses before it; nothing at the end."""
        begun = list[SpokenSegment]()
        while (item := await self._next_item(hold)) is not _Mark.END:
            if isinstance(item, Segment):
                segment = await self._prepare(item)
                if segment.is_speakable or segment.source.pause is not None:
                    begun.append(segment)
                if segment.is_speakable:
                    return begun
            await asyncio.sleep(0)  # NOTE: as in `_turn`
        return []

    async def _next_item(self, hold: SessionHold) -> Segment | _Mark:
        """Wait for the writer; after a long silence a gateway that is being stopped no longer waits for the session."""
        if hold.is_held:
            try:
                async with timeout(WAITED_FOR_S):
                    return await self._next_cut()
            except asyncio.TimeoutError:
                hold.release()
        return await self._next_cut(begins=True)

    @property
    def _is_being_written(self) -> bool:
        """Whether the LLM takes the text while it speaks, and the writer is at work: a word may be no piece yet."""
        return self._request.is_interleaved and _now_s() < self._wrote_s + self._pause_s

    @property
    def _patience_s(self) -> float:
        """How long to wait for the next segment before it is asked whether the writer has paused."""
        left_s = self._wrote_s + self._pause_s - _now_s()
        return left_s + _GRAIN_S if self._is_being_written else self._pause_s

    @property
    def _has_uncut_text(self) -> bool:
        return self._steps is not None or not self._items.empty()

    async def _next_cut(self, begins: bool = False) -> Segment | _Mark:
        """Wait for the next segment, or the end of a turn; may be cancelled and called again unless the session begins.

        New sessions read their texts one by one, so that a storm of them does not stop those that are heard.
        """
        while True:
            if self._steps is not None and (segment := await self._text.next_segment(self._steps)) is not None:
                return segment
            mark, self._steps, self._mark = self._mark, None, None
            if mark is not None:
                return mark
            item = await self._items.get()
            if item is _Mark.REST:
                return item
            if isinstance(item, str):
                if begins:
                    await self._pipeline.line.turn()
                self._steps = self._text.cutting(item)
            else:
                self._steps = self._text.finishing(goes_on=item is _Mark.CUT)
                self._mark = item if item is not _Mark.CUT else None

    async def _prepare(self, segment: Segment) -> SpokenSegment:
        self._unspoken.take(segment.end - self._taken)
        self._taken = segment.end
        return await self._text.prepared(segment)

    def _check_open(self) -> None:
        if self._has_ended:
            raise InvalidTextError("text came after the end of the text; open a new stream for more", param="text")
