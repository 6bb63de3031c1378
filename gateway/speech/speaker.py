"""Speaks texts as audio chunks: the way through both services, in one direction.

    text -> segments -> prompt -> LLM -> speech tokens -> chunks -> token2wav -> audio

A long text is spoken segment by segment; each is cut and prepared when its turn comes, spoken by an LLM request of its
own, which goes on from the speech before it, and all are one token2wav stream. A session (`session`) brings segments of
its own. The LLM goes on while audio of earlier chunks is made, and a slow caller holds both back. Every way out (the
end, an error, a deadline, a cancelled or departed caller) closes the LLM's response and token2wav's stream before the
audio's generator has closed. Knows the services only by the seams of `core`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

from gateway.access.access import Access
from gateway.access.caller import CallerLimits, current_caller
from gateway.chunking.chunker import Chunker
from gateway.chunking.pace import PaceBook
from gateway.chunking.policies import ChunkPolicy, DeadlineChunks, first_chunk_tokens
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
from gateway.errors import EmptySpeechError, GatewayError, InvalidTextError, UndeclaredLanguageError, VoiceEvictedError
from gateway.speech.guard import GuardSettings, SegmentAsk, guarded
from gateway.speech.interleaved import ComingSegments, SegmentQueue
from gateway.speech.observer import Observer
from gateway.speech.prosody_carry import CarryLimits
from gateway.speech.request import (
    DEFAULT_MAX_TEXT_CHARACTERS,
    GuardNote,
    GuardOutcome,
    SpeechRequest,
    SpeechResult,
    check_options,
    check_request,
)
from gateway.speech.speech_job import Push, SpeechJob
from gateway.text import WHOLE_TEXT, Segment, SpokenSegment, TextFrontEnd, TextStream, plain_front_end
from gateway.text.ssml import check_ssml
from gateway.voices.registry import ReadyVoice, VoiceRegistry
from llm_service.aligner import Aligner
from servicekit.clock import Clock, SystemClock
from servicekit.tasks import Ahead, Line, running_ahead

Segments = AsyncGenerator[SpokenSegment]


@dataclass(frozen=True)
class PipelineSettings:
    """What holds for every request."""

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


class Speaker:
    """Speaks texts over both services; serves any number of requests at once."""

    def __init__(
        self,
        llm: SpeechLM,
        token2wav: Token2Wav,
        voices: VoiceRegistry,
        settings: PipelineSettings | None = None,
        clock: Clock | None = None,
        *,
        front_end: TextFrontEnd | None = None,
        access: Access | None = None,
        admission: Admission | None = None,
        observer: Observer | None = None,
    ) -> None:
        """Keep the parts; their owner closes the services.

        Args:
            llm: speaks.
            token2wav: makes audio.
            voices: are spoken in.
            settings: hold for every request.
            clock: of the measurements.
            front_end: cuts and normalises texts; None: it only cuts them.
            access: holds callers to their limits; None: there are none.
            admission: lets streams begin; None: every stream may.
            observer: is told of every stream, and of those that are refused.
        """
        self._llm = llm
        self._token2wav = token2wav
        self._voices = voices
        self.settings = settings or PipelineSettings()
        self._clock = clock or SystemClock()
        self.front_end = front_end or plain_front_end()
        self._access = access or Access(None, CallerLimits(unspoken_characters=None), self._clock)
        self._admission = admission
        self._observer = observer or Observer()
        self._pace_book = PaceBook()
        self.line = Line()
        """Of texts and large requests that begin: a storm's take seconds."""

    @contextmanager
    def holding_session(self) -> Iterator[SessionHold]:
        """Give a session of several streams its claim to be waited for, until the context is left."""
        hold = SessionHold() if self._admission is None else self._admission.session_hold()
        try:
            yield hold
        finally:
            hold.release()

    def unspoken_text(self) -> UnspokenText:
        """Begin to count the text of a session of the current caller."""
        return self._access.unspoken_text(current_caller())

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
        try:
            check_request(request, self.settings.max_text_characters)
            options = request.text_options
            if options.is_ssml:
                takes_phonemes = self.front_end.takes_phonemes
                await asyncio.to_thread(
                    check_ssml, request.text, options.primary_language, takes_phonemes=takes_phonemes
                )
            if self.settings.refuses_foreign:
                await self._check_languages(request)
            if options.has_audio_tags:
                self.front_end.check_audio_tags(request.text, options)
            text = self.front_end.open(options, WHOLE_TEXT, request.text)
        except GatewayError as error:
            self._observer.refused(error)
            raise
        async with aclosing(self.speak(request, _whole_text(text, request.text), result)) as audio:
            async for chunk in audio:
                yield chunk

    async def speak(
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
            LimitError: the caller may not speak now; or it may not go on, and what was begun was spoken to its end.
            GatewayError: the request was refused, or a service failed; audio yielded before is good.
        """
        result = SpeechResult() if result is None else result
        result.carry = replace(result.carry, limits=self.settings.carry)
        async with aclosing(segments), AsyncExitStack() as stack:
            try:
                account = await stack.enter_async_context(self._access.speaking(current_caller()))
            except GatewayError as error:
                self._observer.refused(error)
                raise
            observer, settings = self._observer.begin(request.request_id), self.settings
            parts = (self._clock, self._pace_book, observer, settings.leading_silence_s, settings.aligner, account)
            with SpeechJob(request, result, *parts) as job:
                async with self._producing(job, segments) as pushes:
                    while ready := await pushes.take():
                        for push in ready:
                            for audio in job.hear(await push):
                                yield audio
                                account.deliver(audio.duration_s)
                                job.observer.asked()
            if job.refusal is not None:
                raise job.refusal

    async def _check_languages(self, request: SpeechRequest) -> None:
        """Refuse a text before any of it is spoken; others get their turn in between."""
        stream = self.front_end.open(request.text_options, WHOLE_TEXT)
        for segment in [*stream.push(request.text), *stream.flush()]:
            self._foreign(segment, request)
            await asyncio.sleep(0)

    def _foreign(self, segment: Segment, request: SpeechRequest) -> str | None:
        """Return the language of a segment that the checkpoint does not declare; refuse it where it is an error."""
        foreign = self.front_end.foreign(segment, request.text_options)
        if foreign is not None and self.settings.refuses_foreign:
            expected = ", ".join(self.front_end.languages or ())
            got = f"the text is in {foreign!r}, which the checkpoint does not declare"
            raise UndeclaredLanguageError(f"{got}; it speaks {expected}", param="input")
        return foreign

    @asynccontextmanager
    async def _producing(self, job: SpeechJob, segments: Segments) -> AsyncIterator[Ahead[Push]]:
        """Have both services work ahead of the caller; leaving the context stops them and frees what they hold."""
        check_options(job.request)
        self._voices.check(job.request.voice)
        request, admission = job.request, self._admission
        async with (
            admission.admitted(request.priority, request.patience_s, request.is_under_way)
            if admission is not None
            else nullcontext()
        ):
            # NOTE: only after the admission, as reading a text costs a hundred times as much as a refusal.
            if (first := await self._next_segment(job, segments)) is None:
                raise InvalidTextError("the text holds nothing to say; send at least one word", param="input")
            voice = await self._voices.resolve(request.voice)
            job.use(voice)
            first_tokens = job.first_tokens(self.settings.chunk_policy)
            spoken = self._tokens(job, first, segments, first_tokens)
            async with (
                # The LLM begins while token2wav leases the stream.
                running_ahead(spoken, self.settings.tokens_ahead, lambda delta: len(delta.token_ids)) as tokens,
                self._opened(job, voice) as stream,
                running_ahead(self._pushes(job, tokens, stream, first_tokens), self.settings.pushes_ahead) as pushes,
            ):
                job.note_language(self._foreign(first.source, request))  # it takes its time: the LLM is at work
                yield pushes

    async def _next_segment(self, job: SpeechJob, segments: Segments) -> SpokenSegment | None:
        """Return the next segment that can be spoken; None at the end. The pauses before it are noted.

        Behind the first one the text ends, and `job.refusal` says why, where the caller's audio is used up.
        """
        async for segment in segments:
            job.refusal = job.account.refusal() if job.result.spans else None
            if job.refusal is not None:
                return None
            if segment.is_speakable:
                if self.settings.refuses_foreign or job.result.spans:
                    job.note_language(self._foreign(segment.source, job.request))
                return segment
            job.result.note_pause(segment.source.pause_s)
        return None

    @asynccontextmanager
    async def _opened(self, job: SpeechJob, voice: ReadyVoice) -> AsyncIterator[Token2WavStream]:
        """Lease a stream, registering the voice again if token2wav has dropped it meanwhile."""
        request, seed = job.request, job.result.seed
        async with AsyncExitStack() as leases:
            with job.observer.opening:
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
        self, job: SpeechJob, first: SpokenSegment, segments: Segments, first_tokens: int
    ) -> AsyncGenerator[SpeechTokenDelta]:
        """Have the LLM speak one segment after the other; the listener waits for the `first_tokens`."""
        if job.request.is_interleaved:
            async with aclosing(self._interleaved_tokens(job, first, segments)) as deltas:
                async for delta in deltas:
                    yield delta
            return
        segment: SpokenSegment | None = first
        free_tokens, head_start = first_chunk_tokens(self.settings.chunk_policy), first_tokens
        while segment is not None:
            utterance, seed = job.begin_segment(segment)
            utterance, head_start = replace(utterance, head_start_tokens=head_start), 0
            ask = SegmentAsk(utterance, seed, job.result.spans[-1].first_token, free_tokens)
            with job.observer.speaking:
                async with aclosing(guarded(self._llm, ask, self.settings.guard, job.note_guarded)) as deltas:
                    async for delta in deltas:
                        job.note_tokens(delta)
                        yield delta
            segment = await self._next_segment(job, segments)
        job.note_end()

    async def _interleaved_tokens(
        self, job: SpeechJob, first: SpokenSegment, segments: Segments
    ) -> AsyncGenerator[SpeechTokenDelta]:
        """Have the LLM take the segments while it speaks them."""
        queue = SegmentQueue(partial(self._next_segment, job, segments))
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
        ask = SegmentAsk(utterance, seed, span.first_token, first_chunk_tokens(self.settings.chunk_policy))
        with job.observer.speaking:
            async with aclosing(guarded(self._llm, ask, self.settings.guard, note)) as deltas:
                async for delta in deltas:
                    if delta.finish_reason is not None:
                        if any(each.outcome is GuardOutcome.CUT for each in notes):
                            coming.cut(span.tokens + len(delta.token_ids), lambda text: ask.length_of(text).usual)
                        job.result.note_pause(coming.end())
                    job.note_tokens(delta)
                    yield delta

    async def _pushes(
        self, job: SpeechJob, tokens: Ahead[SpeechTokenDelta], stream: Token2WavStream, first_tokens: int
    ) -> AsyncGenerator[Push]:
        """Cut tokens into chunks and send each as soon as it is complete."""
        chunker = Chunker(self.settings.chunk_policy, stream.hop_multiple, first_tokens)
        while deltas := await tokens.take(chunker.missing):
            chunker.add(job.count(deltas))
            while chunker.has_pending and (chunk := chunker.next_chunk(job.elapsed_s, job.pace)) is not None:
                yield job.send(stream.push(chunk), chunk)
        if not chunker.tokens_received:
            raise EmptySpeechError("not a single speech token came for the text; try another text, seed or voice")
        last = chunker.flush()
        yield job.send(stream.push(last), last)


async def _whole_text(stream: TextStream, text: str) -> Segments:
    """Cut and prepare a text, each segment when its turn comes; others get theirs after each."""
    for steps in (stream.cutting(text), stream.finishing()):
        while (segment := await stream.next_segment(steps)) is not None:
            yield await stream.prepared(segment)
            await asyncio.sleep(0)
