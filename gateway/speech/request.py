"""A caller's request to the pipeline and the report that it gets afterwards, with the rules for both.

Pure: every check here happens before any service is asked.
"""

from __future__ import annotations

import re
import secrets
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial

from gateway.core import InlineVoice
from gateway.errors import InvalidRequestError, InvalidTextError, TextTooLongError
from gateway.speech.letter_times import LetterTimes
from gateway.speech.prosody_carry import ProsodyCarry
from gateway.text import Normalization, SpokenSegment, TextOptions
from gateway.text.manner import PLAIN, Manner, check_breaks
from gateway.voices.profile import DEFAULT_VOICE
from token2wav_service.contract import DEFAULT_PRIORITY, SAMPLE_RATE_HZ, SAMPLES_PER_TOKEN

DEFAULT_MAX_TEXT_CHARACTERS = 100_000
"""Default bound of a text: two chapters of a novel; the OpenAI speech API takes 4096."""
HIGHEST_PRIORITY = 1
LOWEST_PRIORITY = DEFAULT_PRIORITY
MAX_SEED = 2**63 - 1
_RANDOM_SEED_BITS = 31
STOP_FINISH = "stop"
LENGTH_FINISH = "length"


@dataclass(frozen=True)
class SpeechRequest:
    """One text to speak."""

    text: str
    voice: str | InlineVoice = DEFAULT_VOICE
    seed: int | None = None
    """Seed 0..2**63-1; None draws one, which the result reports."""
    priority: int = DEFAULT_PRIORITY
    """Scheduling class, 1 (first) to 10."""
    text_options: TextOptions = field(default_factory=TextOptions)
    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    is_interleaved: bool = False
    """Whether the LLM takes the text while it speaks it, for text that is still being written."""
    goes_on: bool = False
    """Whether this is a later turn of a session: silence before its first sound belongs to the turn before."""
    is_under_way: bool = False
    """Whether this is a later turn of a session that a shutdown waits for (`core.SessionHold`)."""
    wants_times: bool = False
    """Whether the times of characters or words are asked for; finding them out costs a little."""
    patience_s: float | None = None
    """Seconds from now that the caller waits at most; None: unknown."""

    def within(self, patience_s: float | None) -> SpeechRequest:
        """Return the request of a caller that waits so long at most; None: it did not say."""
        return replace(self, patience_s=patience_s)


@dataclass
class SpokenSpan:
    """A segment of the text and the speech tokens that speak it."""

    segment: SpokenSegment
    first_token: int
    """Position of the segment's first token in the stream, 25 a second."""
    tokens: int = 0
    """Number of tokens so far; final once `is_complete`."""
    is_complete: bool = False
    silence_before_samples: int = 0
    """Samples of all pauses before the segment, at 24 kHz."""
    stretched_by_samples: int = 0
    """Samples that slower speaking added before the segment; below 0: faster speaking removed them."""
    cut_samples: int = 0
    """Samples of silence cut before the segment's first sound."""
    letter_times: LetterTimes | None = None
    """Times of the segment's characters by the checkpoint's aligner; None: not wanted."""
    pause_samples: int = 0
    """Samples of silence after it; final once the next one has begun or the speech is over."""

    @property
    def manner(self) -> Manner:
        """How it is spoken."""
        return self.segment.source.manner or PLAIN

    @property
    def samples(self) -> int:
        """Of its speech at its rate; final once `is_complete`."""
        return round(self.tokens * SAMPLES_PER_TOKEN / self.manner.rate) - self.cut_samples

    @property
    def begin_samples(self) -> int:
        """Where its speech begins in the stream."""
        return self.first_token * SAMPLES_PER_TOKEN + self.stretched_by_samples + self.silence_before_samples

    @property
    def speech_end_samples(self) -> int:
        """Where its speech ends in the stream and its pause begins; final once `is_complete`."""
        return self.begin_samples + self.samples

    @property
    def end_samples(self) -> int:
        """Where its pause ends in the stream."""
        return self.speech_end_samples + self.pause_samples


class GuardOutcome(str, Enum):
    """The outcome for a segment whose speech left its text."""

    HEARD = "heard"
    """The listener hears the segment as it was spoken."""
    MENDED = "mended"
    """The part that was not played yet was spoken again, and follows its text."""
    CUT = "cut"
    """No other answer was better; the segment ends early, at the last good place."""


@dataclass(frozen=True)
class GuardNote:
    """A trouble that the guard saw in one segment; see `gateway.speech.guard`."""

    trouble: str
    """Kind of trouble: loop, silence, short, long, word or more."""
    outcome: GuardOutcome


@dataclass
class SpeechResult:
    """The report on a request; filled in while it runs, complete when its audio ends."""

    request_id: str = ""
    seed: int = 0
    stream_id: str | None = None
    voice_id: str | None = None
    finish_reason: str | None = None
    """`stop`, or `length` if any segment was cut short; None if the LLM did not finish."""
    speech_tokens: int = 0
    spans: list[SpokenSpan] = field(default_factory=list)
    """Spoken segments, in order; text that holds nothing to say is left out."""
    foreign: list[str] = field(default_factory=list)
    """Languages of the text that the checkpoint does not declare, primary subtags of BCP 47, each once."""
    voice_warning: str = ""
    """What may be wrong with the voice; empty: nothing."""
    guard_notes: list[GuardNote] = field(default_factory=list)
    """Segments whose speech left the text, in order."""
    silence_samples: int = 0
    """Samples of all pauses of the text so far, at 24 kHz."""
    has_manners: bool = False
    """Whether a segment so far is spoken at a rate or volume of its own."""
    carry: ProsodyCarry = field(default_factory=ProsodyCarry)
    """State for speech that goes on from this one; give a result one to go on from."""
    chunk_schedule: list[int] = field(default_factory=list)
    """Tokens in each chunk pushed, look-ahead included."""
    audio_chunks: int = 0
    audio_samples: int = 0
    """Samples of audio, at 24 kHz."""
    ttfa_s: float | None = None
    """Seconds from the request to its first samples."""
    total_s: float | None = None
    """Seconds from the request to its end, of any kind."""

    def note_pause(self, seconds: float) -> None:
        """Note silence behind the segments so far."""
        samples = round(seconds * SAMPLE_RATE_HZ)
        self.silence_samples += samples
        if self.spans:
            self.spans[-1].pause_samples += samples

    @property
    def spoken_text(self) -> str:
        """The text as the LLM got it, normalised."""
        return "".join(span.segment.text for span in self.spans)

    @property
    def is_truncated(self) -> bool:
        """Whether the runaway bound, not the end of the speech, ended it."""
        return self.finish_reason == LENGTH_FINISH

    @property
    def audio_s(self) -> float:
        """Seconds of audio delivered."""
        return self.audio_samples / SAMPLE_RATE_HZ


def decode_text(raw: bytes) -> str:
    """Decode text that came as bytes.

    Raises:
        InvalidTextError: it is not UTF-8.
    """
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        got = f"the text is not UTF-8 (byte {error.start} is {raw[error.start]:#04x})"
        raise InvalidTextError(f"{got}; encode it as UTF-8", param="input") from error


def check_request(request: SpeechRequest, max_text_characters: int) -> None:
    """Refuse what can't be spoken.

    Raises:
        InvalidTextError: blank, or not Unicode.
        TextTooLongError: longer than the limit.
        InvalidRequestError: seed or priority out of range, or a break that can't be had.
    """
    if not request.text.strip():
        raise InvalidTextError("the text is empty; send at least one word", param="input")
    check_text(request.text, max_text_characters)
    is_ssml = request.text_options.is_ssml  # which `check_ssml` checks, and takes longer
    if "<" in request.text and not is_ssml and request.text_options.normalization is Normalization.ON:
        check_breaks(request.text)
    check_options(request)


def check_options(request: SpeechRequest) -> None:
    """Refuse a way of speaking that does not exist, for any text.

    Raises:
        InvalidRequestError: seed or priority out of range.
    """
    if not HIGHEST_PRIORITY <= request.priority <= LOWEST_PRIORITY:
        expected = f"expected {HIGHEST_PRIORITY} (first) to {LOWEST_PRIORITY}"
        raise InvalidRequestError(f"got priority {request.priority}, {expected}", param="priority")
    if request.seed is not None and not 0 <= request.seed <= MAX_SEED:
        raise InvalidRequestError(f"got seed {request.seed}, expected 0 to 2**63-1", param="seed")


REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
"""The form of an id that a caller may give a request."""
draw_seed: Callable[[], int] = partial(secrets.randbits, _RANDOM_SEED_BITS)
"""Draws the seed of a request that brings none."""


def check_text(text: str, max_characters: int) -> None:
    """Refuse a text, or a piece of one.

    Raises:
        InvalidTextError: not Unicode.
        TextTooLongError: longer than the limit.
    """
    if len(text) > max_characters:
        got = f"the text has {len(text)} characters, the limit is {max_characters}"
        raise TextTooLongError(f"{got}; split it at sentence ends and send the parts", param="input")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        got = f"character {error.start} of the text is a lone surrogate"
        raise InvalidTextError(f"{got}; send valid Unicode", param="input") from error
