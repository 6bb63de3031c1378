"""A speaker that applies the limits of callers, at all doors alike.

A stream is speech under way: a request, or one turn of a text that is still being written. An open but silent socket
is none. Audio counts when the door has sent it and asks for more.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractContextManager, AsyncExitStack, aclosing, asynccontextmanager

from gateway.access.access import Access, Account
from gateway.access.caller import Caller, current_caller
from gateway.core import AudioChunk, SessionHold, UnspokenText
from gateway.errors import AudioLimitError
from gateway.speech.observer import Observer, telling_refusals
from gateway.speech.request import SpeechRequest, SpeechResult
from gateway.speech.speaker import Segments, Speaker

OURSELVES = Caller("(gateway)")
"""The caller of the gateway's own warm-up. No API key can have this name."""


class MeteredSpeaker:
    """Wraps a `Speaker`: it speaks for the current caller as long as the caller's limits allow."""

    def __init__(self, speaker: Speaker, access: Access, observer: Observer | None = None) -> None:
        """Keep the speaker and the access rules; `observer` is told of refusals."""
        self._speaker = speaker
        self._access = access
        self._observer = observer or Observer()

    def holding_session(self) -> AbstractContextManager[SessionHold]:
        """See `Speaker.holding_session`."""
        return self._speaker.holding_session()

    def unspoken_text(self) -> UnspokenText:
        """See `Speaker.unspoken_text`."""
        return self._access.unspoken_text(current_caller() or OURSELVES)

    async def speak(
        self, request: SpeechRequest, segments: Segments, result: SpeechResult | None = None
    ) -> AsyncGenerator[AudioChunk]:
        """See `Speaker.speak`.

        Raises:
            LimitError: the caller may not speak now; or it may not go on, and what was begun was spoken to its end.
        """
        async with aclosing(segments):
            async with self._speaking() as account:
                allowed = _AllowedSegments(segments, account)
                async with aclosing(self._speaker.speak(request, allowed.segments(), result)) as audio:
                    async for chunk in audio:
                        yield chunk
                        account.deliver(chunk.duration_s)
                if allowed.refusal is not None:
                    raise allowed.refusal

    @asynccontextmanager
    async def _speaking(self) -> AsyncIterator[Account]:
        async with AsyncExitStack() as stack:
            with telling_refusals(self._observer):
                speaking = self._access.speaking(current_caller() or OURSELVES)
                account = await stack.enter_async_context(speaking)
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
