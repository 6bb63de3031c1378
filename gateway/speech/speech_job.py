"""One request on its way through the pipeline: its accounts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType

from gateway.access.access import Account
from gateway.chunking.chunker import TokenChunk
from gateway.chunking.pace import Pace, PaceBook, PaceMeter
from gateway.chunking.policies import ChunkPolicy, awaited_tokens
from gateway.core import AudioChunk, SpeechTokenDelta, Utterance
from gateway.errors import AudioLimitError
from gateway.speech.letter_times import LetterTimes
from gateway.speech.observer import StreamObserver
from gateway.speech.pauses import LeadingSilence, PauseWeaver
from gateway.speech.prosody_carry import ProsodyCarry
from gateway.speech.request import MAX_SEED, STOP_FINISH, GuardNote, SpeechRequest, SpeechResult, SpokenSpan, draw_seed
from gateway.text import SpokenSegment
from gateway.text.cleaning import cleaned
from gateway.voices.registry import ReadyVoice
from llm_service.aligner import Aligner
from servicekit.clock import Clock
from token2wav_service.contract import SAMPLE_RATE_HZ, SAMPLES_PER_TOKEN

logger = logging.getLogger(__name__)

Push = asyncio.Future[AudioChunk]
_INSTRUCTED = Utterance("", "", ())
"""Voice prompt for the LLM with an instruction: none, as the prompt would outweigh it; token2wav alone gives the voice.
So the authors of both models do."""

_END_RECORD = (
    "request %s ended: stream_id=%s finish_reason=%s tokens=%d chunks=%d audio=%.2fs ttfa=%s total=%.3fs seed=%d"
)


def language_warning(languages: Sequence[str]) -> str:
    """Say that a text is in languages that the checkpoint does not declare."""
    return f"the text is in {', '.join(languages)}, which the checkpoint does not declare; its speech may be gibberish"


_TROUBLES = {
    "loop": "said the same again and again",
    "silence": "fell silent",
    "short": "ended before its text can have been said",
    "long": "went on when its text must have been said",
    "word": "left out a word or said another one",
    "more": "said more than its text",
}


def guard_warning(notes: Sequence[GuardNote]) -> str:
    """Return the troubles that the guard saw and their outcomes; ASCII, for a header."""
    return "; ".join(f"the speech {_TROUBLES[note.trouble]} ({note.outcome.value})" for note in notes)


def warnings_of(*results: SpeechResult) -> dict[str, str]:
    """Return what the speech of one answer warns of so far, by `language`, `voice` and `speech`; ASCII."""
    languages = dict.fromkeys(each for result in results for each in result.foreign)
    voices = dict.fromkeys(result.voice_warning for result in results if result.voice_warning)
    notes = [note for result in results for note in result.guard_notes]
    told = {
        "language": language_warning(list(languages)) if languages else "",
        "voice": "; ".join(voices),
        "speech": guard_warning(notes),
    }
    return {kind: warning for kind, warning in told.items() if warning}


def warning_field(*results: SpeechResult) -> dict[str, str]:
    """Return the same as the field `warning` of a message; empty if there is nothing to warn of."""
    warnings = warnings_of(*results)
    return {"warning": "; ".join(warnings.values())} if warnings else {}


class SpeechJob:
    """One request on its way: keeps the accounts, decides nothing. A context manager that notes the end."""

    def __init__(
        self,
        request: SpeechRequest,
        result: SpeechResult,
        clock: Clock,
        book: PaceBook,
        observer: StreamObserver,
        silence_kept_s: float | None,
        aligner: Aligner | None,
        account: Account,
    ) -> None:
        self.account = account
        self.refusal: AudioLimitError | None = None
        """Why the text was not spoken to its end: the caller may have no more audio."""
        self.request = request
        self.result = result
        self.observer = observer
        self._silence_kept_s = None if request.goes_on else silence_kept_s
        self._weaver: PauseWeaver | None = None
        """Made with the first audio."""
        self._voice = Utterance("", "", ())
        self._aligner = aligner if request.wants_times else None
        self._held: list[AudioChunk] = []
        """Audio that the listener has not been given yet."""
        self._segment_tokens: list[int] = []
        self._cut_short: str | None = None
        self._clock = clock
        self._began_s = clock.now()
        self._book = book
        self._meter = PaceMeter(book, clock)
        result.request_id = request.request_id
        result.seed = draw_seed() if request.seed is None else request.seed

    @property
    def elapsed_s(self) -> float:
        return self._clock.now() - self._began_s

    @property
    def pace(self) -> Pace:
        return self._meter.read()

    def first_tokens(self, policy: ChunkPolicy) -> int:
        """Return the tokens that the listener waits for."""
        return self._book.first_chunk(policy, self._clock.now(), lambda: awaited_tokens(policy, self.pace))

    def open(self, stream_id: str, hop_multiple: int) -> None:
        self.result.stream_id = stream_id
        self._book.hop_multiple = hop_multiple
        self._meter.opened()
        self.observer.opened(stream_id)

    def use(self, voice: ReadyVoice) -> None:
        self.result.voice_id, self.result.voice_warning = voice.registered.voice_id, voice.warning
        self._meter.waits_for_voice = voice.is_new
        # NOTE: without a transcript the LLM can't continue from the prompt's tokens; token2wav alone gives the voice.
        transcript = cleaned(voice.transcript)
        reference_tokens = voice.registered.prompt_speech_tokens if transcript.strip() else ()
        self._voice = Utterance("", transcript, reference_tokens)

    def begin_segment(self, segment: SpokenSegment) -> tuple[Utterance, int]:
        """Return the LLM's next segment and its seed."""
        spans = self.result.spans
        spans.append(_span_behind(spans, segment, self.result.silence_samples))
        if self._aligner is not None:
            spans[-1].letter_times = LetterTimes(self._aligner, segment.text)
        self.result.has_manners = self.result.has_manners or segment.source.manner is not None
        if segment.source.pause is not None:
            self.result.note_pause(segment.source.pause_s)
        self._segment_tokens = []
        carry = self.result.carry
        if segment.instruction != carry.instruction:
            carry = self.result.carry = carry.under(segment.instruction)
        voice = _INSTRUCTED if segment.instruction else self._voice
        utterance = replace(voice, text=segment.text, instruction=segment.instruction)
        seed = (self.result.seed + len(spans) - 1) % (MAX_SEED + 1)
        return carry.continued(utterance) if carry.parts else utterance, seed

    def go_on_with(self, joined: SpokenSegment) -> None:
        """Note the segment's text as it has grown so far."""
        span = self.result.spans[-1]
        span.segment = joined
        if span.letter_times is not None:
            span.letter_times.set_text(joined.text)

    def note_language(self, foreign: str | None) -> None:
        """Note a language that the checkpoint does not declare, if there is one."""
        if foreign is None or foreign in self.result.foreign:
            return
        self.result.foreign.append(foreign)
        ids = {"request_id": self.result.request_id}
        logger.warning("request %s: %s", self.result.request_id, language_warning([foreign]), extra=ids)

    def note_tokens(self, delta: SpeechTokenDelta) -> None:
        """Note what the LLM said of the segment it speaks."""
        span = self.result.spans[-1]
        span.tokens += len(delta.token_ids)
        self.observer.received(len(delta.token_ids))
        self._segment_tokens.extend(delta.token_ids)
        if span.letter_times is not None:
            span.letter_times.add(delta.token_ids, is_last=delta.finish_reason is not None)
        if delta.finish_reason is None:
            return
        span.is_complete = True
        if delta.finish_reason == STOP_FINISH:
            self.result.carry = self.result.carry.after(span.segment.text, self._segment_tokens)
        else:
            self._cut_short = delta.finish_reason
            self.result.carry = ProsodyCarry(self.result.carry.limits)

    def note_guarded(self, note: GuardNote) -> None:
        """Note that a segment's speech left its text."""
        result = self.result
        result.guard_notes.append(note)
        self.observer.guarded(note)
        segment = len(result.spans)
        ids = {"request_id": result.request_id, "stream_id": result.stream_id}
        logger.warning("request %s: segment %d: %s", result.request_id, segment, guard_warning([note]), extra=ids)

    def note_end(self) -> None:
        """Note that the LLM has spoken all segments."""
        self.result.finish_reason = self._cut_short or STOP_FINISH

    def count(self, deltas: list[SpeechTokenDelta]) -> list[int]:
        new_tokens = [token_id for delta in deltas for token_id in delta.token_ids]
        self.result.speech_tokens += len(new_tokens)
        self._meter.received([len(delta.token_ids) for delta in deltas])
        return new_tokens

    def send(self, push: Push, chunk: TokenChunk) -> Push:
        self.result.chunk_schedule.append(len(chunk.token_ids))
        self._meter.sent(len(chunk.token_ids))
        self.observer.sent(chunk.index, len(chunk.token_ids))
        push.add_done_callback(self._note_answer)
        return push

    def _note_answer(self, push: Push) -> None:
        if not push.cancelled() and push.exception() is None:
            self._meter.answered(push.result().duration_s)

    def hear(self, audio: AudioChunk) -> list[AudioChunk]:
        """Take a chunk's audio; returns what the listener shall have now: the first ones wait for one another."""
        if self._weaver is None:
            self._weaver = PauseWeaver(self.result, LeadingSilence(self._silence_kept_s))
        cut_before = self._weaver.cut_samples
        audio = self._weaver.woven_into(audio)
        self._meter.left_out((self._weaver.cut_samples - cut_before) / SAMPLE_RATE_HZ)
        self.result.audio_chunks += 1
        self.result.audio_samples += len(audio.samples)
        self._held.append(audio)
        if self.result.ttfa_s is None and self.result.audio_samples:
            tokens_come = not (self.result.spans[-1].is_complete or self.request.is_interleaved)
            if not (audio.is_last or self._meter.begins(self.result.audio_s, tokens_come)):
                return []
            self.result.ttfa_s = self.elapsed_s
        released, self._held = self._held, []
        for each in released:
            self.observer.heard(each)
        return released

    def __enter__(self) -> SpeechJob:
        self._book.requests += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._meter.ended()
        self._book.requests -= 1
        result = self.result
        result.total_s = self.elapsed_s
        level = logging.WARNING if result.is_truncated else logging.INFO
        counts = (result.finish_reason, result.speech_tokens, result.audio_chunks, result.audio_s)
        ttfa = "none" if result.ttfa_s is None else f"{result.ttfa_s:.3f}s"
        record = (result.request_id, result.stream_id, *counts, ttfa, result.total_s, result.seed)
        ids = {"request_id": result.request_id, "stream_id": result.stream_id}
        logger.log(level, _END_RECORD, *record, extra=ids)
        self.observer.ended(error)


def _span_behind(spans: list[SpokenSpan], segment: SpokenSegment, silence_samples: int) -> SpokenSpan:
    """Return the span of a segment that begins where the last one ended."""
    if not spans:
        return SpokenSpan(segment, 0, silence_before_samples=silence_samples)
    last = spans[-1]
    stretched_by = last.stretched_by_samples + last.samples - last.tokens * SAMPLES_PER_TOKEN
    first_token = last.first_token + last.tokens
    return SpokenSpan(segment, first_token, silence_before_samples=silence_samples, stretched_by_samples=stretched_by)
