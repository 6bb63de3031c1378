"""Text in, audio chunks out: the whole path, in one direction.

    text -> segments -> prompt -> LLM -> speech tokens -> windows -> token2wav -> audio

A long text is spoken segment by segment, each by an LLM request of its own that goes on from the speech before it, and
all in one token2wav stream. The LLM goes on while audio of earlier windows is made, and a slow caller holds both back.
Every way out (the end, an error, a deadline, a cancelled or departed caller) closes the LLM's response and token2wav's
stream before the audio's generator has closed. Knows the services only by the seams of `core`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace

from cosydit.clock import Clock, SystemClock
from gateway.chunking import Chunker, ChunkPolicy, ExponentialChunks, TokenWindow
from gateway.core import Admission, AudioChunk, SpeechLM, SpeechTokenDelta, Token2Wav, Token2WavStream, Utterance
from gateway.errors import EmptySpeechError, VoiceEvictedError
from gateway.pace import Pace, PaceBook, PaceMeter
from gateway.running_ahead import Ahead, running_ahead
from gateway.speech import (
    DEFAULT_MAX_TEXT_CHARACTERS,
    MAX_SEED,
    STOP_FINISH,
    SpeechRequest,
    SpeechResult,
    SpokenSpan,
    check_options,
    check_request,
    draw_seed,
)
from gateway.text import WHOLE_TEXT, ProsodyCarry, SpokenSegment, TextFrontEnd, TextStream, plain_front_end
from gateway.voices import ReadyVoice, VoiceRegistry

logger = logging.getLogger(__name__)

Push = asyncio.Future[AudioChunk]
Segments = AsyncGenerator[SpokenSegment]

_TEXT_SLICE = 4096
"""Characters cut into segments at once; other requests get their turn in between."""
_END_RECORD = (
    "request %s ended: stream_id=%s finish_reason=%s tokens=%d chunks=%d audio=%.2fs ttfa=%s total=%.3fs seed=%d"
)


@dataclass(frozen=True)
class PipelineSettings:
    """What holds for every request unless it says otherwise."""

    chunk_policy: ChunkPolicy = field(default_factory=ExponentialChunks)
    max_text_characters: int = DEFAULT_MAX_TEXT_CHARACTERS
    tokens_ahead: int = 512
    """Messages of the LLM kept unread at most."""
    pushes_ahead: int = 1
    """Windows queued behind the one whose audio is awaited; one more may be on its way."""


class SpeechPipeline:
    """Speaks texts; serves any number of requests at once."""

    def __init__(
        self,
        llm: SpeechLM,
        token2wav: Token2Wav,
        voices: VoiceRegistry,
        settings: PipelineSettings | None = None,
        clock: Clock | None = None,
        front_end: TextFrontEnd | None = None,
        admission: Admission | None = None,
    ) -> None:
        """Keep the services; their owner closes them.

        Without a front end texts are cut but not normalised; without an admission everybody may begin.
        """
        self._llm = llm
        self._token2wav = token2wav
        self._voices = voices
        self._settings = settings or PipelineSettings()
        self._clock = clock or SystemClock()
        self._front_end = front_end or plain_front_end()
        self._pace_book = PaceBook()
        self._admission = admission

    @property
    def front_end(self) -> TextFrontEnd:
        """What cuts and normalises texts."""
        return self._front_end

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
        check_request(request, self._settings.max_text_characters)
        text = self._front_end.open(request.text_options, WHOLE_TEXT)
        async with aclosing(self.speak(request, _whole_text(text, request.text), result)) as audio:
            async for chunk in audio:
                yield chunk

    async def speak(
        self, request: SpeechRequest, segments: Segments, result: SpeechResult | None = None
    ) -> AsyncGenerator[AudioChunk]:
        """Speak segments as they come, all in one stream, until there are no more; at least one must be speakable.

        Args:
            request: how to speak; its text is not looked at.
            segments: each is taken when the LLM has spoken the one before it; closed on every way out.
            result: see `synthesize`; speech goes on from its `carry`.

        Yields and raises as `synthesize` does.
        """
        job = _Job(request, result if result is not None else SpeechResult(), self._clock, self._pace_book)
        try:
            async with aclosing(segments):
                check_options(request)
                self._voices.check(request.voice)
                async with (
                    self._opened(job) as stream,
                    running_ahead(self._tokens(job, segments), self._settings.tokens_ahead) as tokens,
                    running_ahead(self._pushes(job, tokens, stream), self._settings.pushes_ahead) as pushes,
                ):
                    async for push in pushes:
                        yield job.hear(await push)
        finally:
            job.end()

    @asynccontextmanager
    async def _opened(self, job: _Job) -> AsyncIterator[Token2WavStream]:
        """Lease a stream, registering the voice again if token2wav has dropped it meanwhile."""
        request, seed = job.request, job.result.seed
        async with AsyncExitStack() as leases:
            if self._admission is not None:
                await leases.enter_async_context(self._admission.admitted(request.priority))
            voice = await self._voices.resolve(request.voice)
            try:
                lease = self._token2wav.open_stream(voice.registered.voice_id, seed, request.priority)
                stream = await leases.enter_async_context(lease)
            except VoiceEvictedError:
                voice = await self._voices.renew(request.voice)
                lease = self._token2wav.open_stream(voice.registered.voice_id, seed, request.priority)
                stream = await leases.enter_async_context(lease)
            job.open(voice, stream.stream_id)
            yield stream

    async def _tokens(self, job: _Job, segments: Segments) -> AsyncGenerator[SpeechTokenDelta]:
        """Have the LLM speak one segment after the other."""
        async for segment in segments:
            if not segment.is_speakable:
                continue
            utterance, seed = job.begin_segment(segment)
            async with aclosing(self._llm.generate(utterance, job.request.sampling, seed)) as deltas:
                async for delta in deltas:
                    job.note_tokens(delta)
                    yield delta
        job.note_end()

    async def _pushes(
        self, job: _Job, tokens: Ahead[SpeechTokenDelta], stream: Token2WavStream
    ) -> AsyncGenerator[Push]:
        """Cut tokens into windows and send each as soon as it is complete."""
        chunker = Chunker(job.request.chunk_policy or self._settings.chunk_policy)
        async for delta in tokens:
            chunker.add(job.count([delta, *tokens.take_ready()]))
            while (window := chunker.next_window(job.elapsed_s, job.pace)) is not None:
                yield job.send(stream.push(window), window)
        if not chunker.tokens_received:
            raise EmptySpeechError("not a single speech token came for the text; try another text, seed or voice")
        last = chunker.flush()
        yield job.send(stream.push(last), last)


class _Job:
    """One request on its way: keeps the accounts, decides nothing."""

    def __init__(self, request: SpeechRequest, result: SpeechResult, clock: Clock, book: PaceBook) -> None:
        self.request = request
        self.result = result
        self._voice = Utterance("", "", ())
        self._segment_tokens: list[int] = []
        self._cut_short: str | None = None
        self._clock = clock
        self._began_s = clock.now()
        self._meter = PaceMeter(book, clock)
        result.request_id = request.request_id
        result.seed = draw_seed() if request.seed is None else request.seed

    @property
    def elapsed_s(self) -> float:
        return self._clock.now() - self._began_s

    @property
    def pace(self) -> Pace:
        return self._meter.read()

    def open(self, voice: ReadyVoice, stream_id: str) -> None:
        self.result.stream_id = stream_id
        self.result.voice_id = voice.registered.voice_id
        # NOTE: without a transcript the LLM can't continue from the prompt's tokens; token2wav alone gives the voice.
        reference_tokens = voice.registered.prompt_speech_tokens if voice.transcript.strip() else ()
        self._voice = Utterance("", voice.transcript, reference_tokens)

    def begin_segment(self, segment: SpokenSegment) -> tuple[Utterance, int]:
        """Return what the LLM is to speak and the seed of it."""
        spans = self.result.spans
        first_token = spans[-1].first_token + spans[-1].tokens if spans else 0
        spans.append(SpokenSpan(segment, first_token))
        self._segment_tokens = []
        utterance = replace(self.result.carry.continued(self._voice), text=segment.text)
        return utterance, (self.result.seed + len(spans) - 1) % (MAX_SEED + 1)

    def note_tokens(self, delta: SpeechTokenDelta) -> None:
        """Note what the LLM said of the segment it speaks."""
        span = self.result.spans[-1]
        span.tokens += len(delta.token_ids)
        self._segment_tokens.extend(delta.token_ids)
        if delta.finish_reason is None:
            return
        span.is_complete = True
        if delta.finish_reason == STOP_FINISH:
            self.result.carry = self.result.carry.after(span.segment.text, self._segment_tokens)
        else:
            self._cut_short = delta.finish_reason
            self.result.carry = ProsodyCarry(self.result.carry.limits)

    def note_end(self) -> None:
        """Note that the LLM has spoken all segments."""
        self.result.finish_reason = self._cut_short or STOP_FINISH

    def count(self, deltas: list[SpeechTokenDelta]) -> list[int]:
        new_tokens = [token_id for delta in deltas for token_id in delta.token_ids]
        self.result.speech_tokens += len(new_tokens)
        self._meter.received([len(delta.token_ids) for delta in deltas])
        return new_tokens

    def send(self, push: Push, window: TokenWindow) -> Push:
        self.result.chunk_schedule.append(len(window.token_ids))
        self._meter.sent(len(window.token_ids))
        push.add_done_callback(self._note_answer)
        return push

    def _note_answer(self, push: Push) -> None:
        if not push.cancelled() and push.exception() is None:
            self._meter.answered(push.result().duration_s)

    def hear(self, audio: AudioChunk) -> AudioChunk:
        self.result.audio_chunks += 1
        self.result.audio_samples += len(audio.samples)
        if self.result.ttfa_s is None and len(audio.samples):
            self.result.ttfa_s = self.elapsed_s
        return audio

    def end(self) -> None:
        self.result.total_s = self.elapsed_s
        level = logging.WARNING if self.result.is_truncated else logging.INFO
        logger.log(
            level,
            _END_RECORD,
            self.result.request_id,
            self.result.stream_id,
            self.result.finish_reason,
            self.result.speech_tokens,
            self.result.audio_chunks,
            self.result.audio_s,
            self.result.ttfa_s,
            self.result.total_s,
            self.result.seed,
        )


async def _whole_text(stream: TextStream, text: str) -> Segments:
    """Cut and prepare a text, each segment when its turn comes."""
    for at in range(0, len(text), _TEXT_SLICE):
        for segment in stream.push(text[at : at + _TEXT_SLICE]):
            yield stream.prepare(segment)
        await asyncio.sleep(0)
    for segment in stream.flush():
        yield stream.prepare(segment)
