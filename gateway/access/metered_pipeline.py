"""A pipeline that holds callers to their limits, whatever door they came through.

A stream is speech under way: a request, or one turn of a text that is still being written. An open but silent socket
is none. Audio counts when the door has sent it and asks for more.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, aclosing, contextmanager

from gateway.access.access import Access, Account
from gateway.access.caller import Caller, current_caller
from gateway.core import Admission, AudioChunk, SpeechLM, Token2Wav
from gateway.errors import AudioLimitError
from gateway.speech.observer import Observer, telling_refusals
from gateway.speech.pipeline import PipelineSettings, Segments, SpeechPipeline
from gateway.speech.request import SpeechRequest, SpeechResult
from gateway.text import TextFrontEnd
from gateway.voices.registry import VoiceRegistry
from servicekit.clock import Clock

OURSELVES = Caller("(gateway)")
"""Who speaks where nobody called: the warm-up. No key can have this name."""


class MeteredPipeline(SpeechPipeline):
    """Speaks for the current caller as long as that may."""

    def __init__(
        self,
        access: Access,
        llm: SpeechLM,
        token2wav: Token2Wav,
        voices: VoiceRegistry,
        settings: PipelineSettings | None = None,
        clock: Clock | None = None,
        front_end: TextFrontEnd | None = None,
        admission: Admission | None = None,
        observer: Observer | None = None,
    ) -> None:
        """Keep who may speak; the rest is `SpeechPipeline`'s."""
        super().__init__(llm, token2wav, voices, settings, clock, front_end, admission, observer)
        self._access = access

    async def speak(
        self, request: SpeechRequest, segments: Segments, result: SpeechResult | None = None
    ) -> AsyncGenerator[AudioChunk]:
        """Speak as `SpeechPipeline.speak` does.

        Raises:
            LimitError: the caller may not now; or it may not go on, and what was begun has been spoken to its end.
        """
        async with aclosing(segments):
            with self._speaking() as account:
                allowed = _AllowedSegments(segments, account)
                async with aclosing(super().speak(request, allowed.segments(), result)) as audio:
                    async for chunk in audio:
                        yield chunk
                        account.deliver(chunk.duration_s)
                if allowed.refusal is not None:
                    raise allowed.refusal

    @contextmanager
    def _speaking(self) -> Iterator[Account]:
        with ExitStack() as stack:
            with telling_refusals(self._observer):
                account = stack.enter_context(self._access.speaking(current_caller() or OURSELVES))
            yield account


class _AllowedSegments:
    """The segments up to where the caller's audio is used up; at least one that can be spoken."""

    def __init__(self, segments: Segments, account: Account) -> None:
        self._segments = segments
        self._account = account
        self.refusal: AudioLimitError | None = None

    async def segments(self) -> Segments:
        has_begun = False
        async with aclosing(self._segments) as segments:
            async for segment in segments:
                self.refusal = self._account.refusal() if has_begun else None
                if self.refusal is not None:
                    return
                has_begun = has_begun or segment.is_speakable
                yield segment
