"""Speaks segments of text as audio chunks: the way through both services, in one direction.

    segments -> prompt -> LLM -> speech tokens -> chunks -> token2wav -> audio

Each segment is spoken by an LLM request of its own, which goes on from the speech before it, and all in one token2wav
stream. The LLM goes on while audio of earlier chunks is made, and a slow caller holds both back. Every way out (the
end, an error, a deadline, a cancelled or departed caller) closes the LLM's response and token2wav's stream before the
audio's generator has closed. Knows the services only by the seams of `core`, and nothing of how texts are cut.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    aclosing,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass, field, replace
from typing import Protocol

from gateway.chunking.chunker import Chunker
from gateway.chunking.pace import PaceBook
from gateway.chunking.policies import ChunkPolicy, DeadlineChunks, awaited_tokens, first_chunk_tokens
from gateway.core import (
    Admission,
    AudioChunk,
    SessionHold,
    SpeechLM,
    SpeechTokenDelta,
    Token2Wav,
    Token2WavStream,
    UnspokenText,
)
from gateway.errors import EmptySpeechError, InvalidTextError, UndeclaredLanguageError, VoiceEvictedError
from gateway.speech.guard import GuardSettings
from gateway.speech.interleaved import ComingSegments, SegmentQueue
from gateway.speech.mending import SegmentAsk, guarded
from gateway.speech.observer import Observer
from gateway.speech.prosody_carry import CarryLimits
from gateway.speech.request import (
    DEFAULT_MAX_TEXT_CHARACTERS,
    GuardNote,
    GuardOutcome,
    SpeechRequest,
    SpeechResult,
    check_options,
)
from gateway.speech.running_ahead import Ahead, running_ahead
from gateway.speech.speech_job import Push, SpeechJob
from gateway.text import SpokenSegment
from gateway.voices.registry import ReadyVoice, VoiceRegistry
from llm_service.aligner import Aligner
from servicekit.clock import Clock, SystemClock

Segments = AsyncGenerator[SpokenSegment]


class Speaker(Protocol):
    """Speaks segments of text; `StreamSpeaker` does, and what wraps it to hold callers to their limits."""

    def speak(
        self, request: SpeechRequest, segments: Segments, result: SpeechResult | None = None
    ) -> AsyncGenerator[AudioChunk]:
        """Speak segments as they come, all in one stream, until there are no more.

        Args:
            request: how to speak; its text is not looked at.
            segments: each is taken when the LLM has spoken the one before it, and the first that can be spoken before
                any service is asked; closed on every way out.
            result: filled in on the way; speech goes on from its `carry`.

        Yields:
            Audio in order; the last chunk says so. Chunks may be empty.

        Raises:
            InvalidTextError: no segment holds anything to say.
            GatewayError: the request was refused, or a service failed; audio yielded before is good.
        """
        ...

    def holding_session(self) -> AbstractContextManager[SessionHold]:
        """Give a session of several streams its claim to be waited for, until the context is left."""
        ...

    def unspoken_text(self) -> UnspokenText:
        """Begin to count the text of a session of the current caller."""
        ...


@dataclass(frozen=True)
class PipelineSettings:
    """What holds for every request unless it says otherwise."""

    chunk_policy: ChunkPolicy = field(default_factory=DeadlineChunks)
    max_text_characters: int = DEFAULT_MAX_TEXT_CHARACTERS
    carry: CarryLimits = field(default_factory=CarryLimits)
    """How much of the speech before a segment the LLM goes on from."""
    refuses_foreign: bool = False
    """Whether text in a language that the checkpoint does not declare is an error; else it is spoken with a warning."""
    guard: GuardSettings = field(default_factory=GuardSettings)
    """How strictly the LLM's answers must follow their text."""
    leading_silence_s: float | None = None
    """Most seconds of silence before the first sound of a stream; None: all silence stays."""
    aligner: Aligner | None = None
    """Aligner of the checkpoint; None: times of characters are estimated."""
    tokens_ahead: int = 2048
    """Speech tokens kept unread before the LLM is read no further."""
    pushes_ahead: int = 1
    """Chunks queued behind the one whose audio is awaited; one more may be on its way."""


class StreamSpeaker:
    """Implements `Speaker` over both services; serves any number of requests at once."""

    def __init__(
        self,
        llm: SpeechLM,
        token2wav: Token2Wav,
        voices: VoiceRegistry,
        settings: PipelineSettings | None = None,
        clock: Clock | None = None,
        admission: Admission | None = None,
        observer: Observer | None = None,
    ) -> None:
        """Keep the services; their owner closes them.

        Without an admission every stream may begin.
        """
        self._llm = llm
        self._token2wav = token2wav
        self._voices = voices
        self._settings = settings or PipelineSettings()
        self._clock = clock or SystemClock()
        self._pace_book = PaceBook()
        self._admission = admission
        self._observer = observer or Observer()

    @contextmanager
    def holding_session(self) -> Iterator[SessionHold]:
        """See `Speaker.holding_session`; without an admission the hold has no effect."""
        hold = _NoHold() if self._admission is None else self._admission.session_hold()
        try:
            yield hold
        finally:
            hold.release()

    def unspoken_text(self) -> UnspokenText:
        """See `Speaker.unspoken_text`; without a limit."""
        return UnspokenText()

    async def speak(
        self, request: SpeechRequest, segments: Segments, result: SpeechResult | None = None
    ) -> AsyncGenerator[AudioChunk]:
        """See `Speaker.speak`."""
        with self._begin(request, SpeechResult() if result is None else result) as job:
            async with aclosing(segments), self._producing(job, segments) as pushes:
                while ready := await pushes.take():
                    for push in ready:
                        yield job.hear(await push)
                        job.observer.asked()

    def _begin(self, request: SpeechRequest, result: SpeechResult) -> SpeechJob:
        observer = self._observer.begin(request.request_id)
        result.carry = replace(result.carry, limits=self._settings.carry)
        kept_s = self._settings.leading_silence_s
        return SpeechJob(request, result, self._clock, self._pace_book, observer, kept_s, self._settings.aligner)

    @asynccontextmanager
    async def _producing(self, job: SpeechJob, segments: Segments) -> AsyncIterator[Ahead[Push]]:
        """Have both services work ahead of the caller; leaving the context stops them and frees what they hold."""
        check_options(job.request)
        self._voices.check(job.request.voice)
        async with self._admitted(job):
            # NOTE: only after the admission, as reading a text costs a hundred times as much as a refusal.
            first = await self._first_segment(job, segments)
            voice = await self._voices.resolve(job.request.voice)
            job.use(voice)
            policy = job.request.chunk_policy or self._settings.chunk_policy
            first_tokens = awaited_tokens(policy, job.pace)
            spoken = self._tokens(job, first, segments, policy, first_tokens)
            async with (
                # The LLM begins while token2wav leases the stream.
                running_ahead(spoken, self._settings.tokens_ahead, lambda delta: len(delta.token_ids)) as tokens,
                self._opened(job, voice) as stream,
                running_ahead(
                    self._pushes(job, tokens, stream, Chunker(policy, stream.hop_multiple, first_tokens)),
                    self._settings.pushes_ahead,
                ) as pushes,
            ):
                yield pushes

    async def _first_segment(self, job: SpeechJob, segments: Segments) -> SpokenSegment:
        """Refuse what can't be spoken before any service is asked."""
        first = await _next_speakable(job, segments)
        if first is None:
            raise InvalidTextError("the text holds nothing to say; send at least one word", param="input")
        self._check_language(first)
        return first

    def _check_language(self, segment: SpokenSegment | None) -> None:
        """Refuse a segment in a language that the checkpoint does not declare, where that is to be refused."""
        if self._settings.refuses_foreign and segment is not None and segment.foreign is not None:
            raise UndeclaredLanguageError(
                f"the checkpoint does not declare the language {segment.foreign!r}", param="input"
            )

    def _admitted(self, job: SpeechJob) -> AbstractAsyncContextManager[None]:
        """Wait for room in the services."""
        if self._admission is None:
            return nullcontext()
        request = job.request
        return self._admission.admitted(request.priority, request.patience_s, request.is_under_way)

    @asynccontextmanager
    async def _opened(self, job: SpeechJob, voice: ReadyVoice) -> AsyncIterator[Token2WavStream]:
        """Lease a stream, registering the voice again if token2wav has dropped it meanwhile."""
        request, seed = job.request, job.result.seed
        async with AsyncExitStack() as leases:
            with job.observer.opening():
                try:
                    lease = self._token2wav.open_stream(voice.registered.voice_id, seed, request.priority)
                    stream = await leases.enter_async_context(lease)
                except VoiceEvictedError:
                    voice = await self._voices.renew(request.voice)
                    job.use(voice)
                    lease = self._token2wav.open_stream(voice.registered.voice_id, seed, request.priority)
                    stream = await leases.enter_async_context(lease)
            job.open(stream.stream_id, stream.hop_multiple)
            yield stream

    async def _tokens(
        self, job: SpeechJob, first: SpokenSegment, segments: Segments, policy: ChunkPolicy, first_tokens: int
    ) -> AsyncGenerator[SpeechTokenDelta]:
        """Have the LLM speak one segment after the other; the listener waits for the `first_tokens`."""
        if job.request.is_interleaved:
            async with aclosing(self._interleaved_tokens(job, first, segments)) as deltas:
                async for delta in deltas:
                    yield delta
            return
        segment: SpokenSegment | None = first
        free_tokens, head_start = first_chunk_tokens(policy), first_tokens
        while segment is not None:
            utterance, seed = job.begin_segment(segment)
            utterance, head_start = replace(utterance, head_start_tokens=head_start), 0
            ask = SegmentAsk(utterance, job.request.sampling, seed, job.result.spans[-1].first_token, free_tokens)
            with job.observer.speaking():
                async with aclosing(guarded(self._llm, ask, self._settings.guard, job.note_guarded)) as deltas:
                    async for delta in deltas:
                        job.note_tokens(delta)
                        yield delta
            segment = await _next_speakable(job, segments)
            self._check_language(segment)
        job.note_end()

    async def _interleaved_tokens(
        self, job: SpeechJob, first: SpokenSegment, segments: Segments
    ) -> AsyncGenerator[SpeechTokenDelta]:
        """Have the LLM take the segments while it speaks them."""

        async def following() -> SpokenSegment | None:
            segment = await _next_speakable(job, segments)
            self._check_language(segment)
            return segment

        queue = SegmentQueue(following)
        segment: SpokenSegment | None = first
        try:
            while segment is not None:
                async with aclosing(self._interleaved_answer(job, segment, queue)) as deltas:
                    async for delta in deltas:
                        yield delta
                segment = await queue.take()
        finally:
            queue.close()
        job.note_end()

    async def _interleaved_answer(
        self, job: SpeechJob, first: SpokenSegment, queue: SegmentQueue
    ) -> AsyncGenerator[SpeechTokenDelta]:
        """Have the LLM speak one answer, which takes segments as long as they belong to it."""
        utterance, seed = job.begin_segment(first)
        coming, span, notes = ComingSegments(first, queue, job.go_on_with), job.result.spans[-1], list[GuardNote]()

        def note(what: GuardNote) -> None:
            notes.append(what)
            job.note_guarded(what)

        utterance = replace(utterance, coming_text=coming)
        free_tokens = first_chunk_tokens(job.request.chunk_policy or self._settings.chunk_policy)
        ask = SegmentAsk(utterance, job.request.sampling, seed, span.first_token, free_tokens)
        with job.observer.speaking():
            async with aclosing(guarded(self._llm, ask, self._settings.guard, note)) as deltas:
                async for delta in deltas:
                    if delta.finish_reason is not None:
                        if any(each.outcome is GuardOutcome.CUT for each in notes):
                            coming.cut(span.tokens + len(delta.token_ids), lambda text: ask.length_of(text).usual)
                        job.result.note_pause(coming.end())
                    job.note_tokens(delta)
                    yield delta

    async def _pushes(
        self, job: SpeechJob, tokens: Ahead[SpeechTokenDelta], stream: Token2WavStream, chunker: Chunker
    ) -> AsyncGenerator[Push]:
        """Cut tokens into chunks and send each as soon as it is complete."""
        while deltas := await tokens.take(chunker.missing):
            chunker.add(job.count(deltas))
            while (chunk := chunker.next_chunk(job.elapsed_s, job.pace)) is not None:
                yield job.send(stream.push(chunk), chunk)
        if not chunker.tokens_received:
            raise EmptySpeechError("not a single speech token came for the text; try another text, seed or voice")
        last = chunker.flush()
        yield job.send(stream.push(last), last)


class _NoHold:
    """Implements `core.SessionHold` without any effect, for a speaker without an admission."""

    is_held = False

    def acquire(self) -> None:
        """See `core.SessionHold.acquire`."""

    def release(self) -> None:
        """See `core.SessionHold.release`."""


async def _next_speakable(job: SpeechJob, segments: Segments) -> SpokenSegment | None:
    """Return the next segment that holds something to say; None at the end. The pauses before it are noted."""
    async for segment in segments:
        if segment.is_speakable:
            return segment
        job.result.note_pause(segment.source.pause_s)
    return None
