"""Text in, audio chunks out: cuts texts into segments and has a `Speaker` speak them.

    text -> segments -> Speaker -> audio

A long text is spoken segment by segment; each is cut and prepared when its turn comes. A session (`session`) brings
segments of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager, aclosing

from gateway.core import AudioChunk, SessionHold, UnspokenText
from gateway.errors import UndeclaredLanguageError
from gateway.speech.observer import Observer, telling_refusals
from gateway.speech.request import SpeechRequest, SpeechResult, check_request
from gateway.speech.speaker import PipelineSettings, Segments, Speaker
from gateway.text import WHOLE_TEXT, TextFrontEnd, TextStream, plain_front_end
from gateway.text.markup.ssml import check_ssml


class SpeechPipeline:
    """Speaks texts; serves any number of requests at once."""

    def __init__(
        self,
        speaker: Speaker,
        settings: PipelineSettings | None = None,
        front_end: TextFrontEnd | None = None,
        observer: Observer | None = None,
    ) -> None:
        """Keep the parts.

        Args:
            speaker: speaks the segments.
            settings: the speaker's own.
            front_end: cuts and normalises texts; by default it only cuts them.
            observer: is told of texts that are refused; the speaker tells of everything else.
        """
        self._speaker = speaker
        self._settings = settings or PipelineSettings()
        self._front_end = front_end or plain_front_end()
        self._observer = observer or Observer()
        self._line = asyncio.Lock()

    async def begin_in_turn(self) -> None:
        """Return in a turn of the event loop in which no other caller of this does: a storm's texts take seconds."""
        async with self._line:
            await asyncio.sleep(0)

    @property
    def settings(self) -> PipelineSettings:
        """What it was made with."""
        return self._settings

    @property
    def front_end(self) -> TextFrontEnd:
        """What cuts and normalises texts."""
        return self._front_end

    def holding_session(self) -> AbstractContextManager[SessionHold]:
        """See `Speaker.holding_session`."""
        return self._speaker.holding_session()

    def unspoken_text(self) -> UnspokenText:
        """See `Speaker.unspoken_text`."""
        return self._speaker.unspoken_text()

    def speak(
        self, request: SpeechRequest, segments: Segments, result: SpeechResult | None = None
    ) -> AsyncGenerator[AudioChunk]:
        """See `Speaker.speak`."""
        return self._speaker.speak(request, segments, result)

    async def synthesize(
        self, request: SpeechRequest, result: SpeechResult | None = None
    ) -> AsyncGenerator[AudioChunk]:
        """Speak one text.

        Args:
            request: what to speak and how.
            result: filled in on the way, for a caller that wants to know more than the audio.

        Yields:
            Audio in order; the last chunk says so. Chunks may be empty.

        Raises:
            InvalidRequestError: refused before any service was asked.
            GatewayError: what went wrong in a service; audio yielded before is good.
        """
        with telling_refusals(self._observer):
            check_request(request, self._settings.max_text_characters)
            if request.text_options.is_ssml:
                await asyncio.to_thread(self._check_ssml, request)
            if self._settings.refuses_foreign:
                await self._check_languages(request)
            self._front_end.check_audio_tags(request.text, request.text_options)
            text = self._front_end.open(request.text_options, WHOLE_TEXT)
        async with aclosing(self._speaker.speak(request, _whole_text(text, request.text), result)) as audio:
            async for chunk in audio:
                yield chunk

    def _check_ssml(self, request: SpeechRequest) -> None:
        language = request.text_options.primary_language
        check_ssml(request.text, language, takes_phonemes=self._front_end.takes_phonemes)

    async def _check_languages(self, request: SpeechRequest) -> None:
        """Refuse a text before any of it is spoken; others get their turn in between."""
        stream = self._front_end.open(request.text_options, WHOLE_TEXT)
        for segment in [*stream.push(request.text), *stream.flush()]:
            foreign = self._front_end.foreign(segment.text, request.text_options)
            if foreign is not None:
                expected = ", ".join(self._front_end.languages or ())
                got = f"the text is in {foreign!r}, which the checkpoint does not declare"
                raise UndeclaredLanguageError(f"{got}; it speaks {expected}", param="input")
            await asyncio.sleep(0)


async def _whole_text(stream: TextStream, text: str) -> Segments:
    """Cut and prepare a text, each segment when its turn comes; others get theirs after each."""
    for steps in (stream.cutting(text), stream.finishing()):
        while (segment := await stream.next_segment(steps)) is not None:
            yield await stream.prepared(segment)
            await asyncio.sleep(0)
