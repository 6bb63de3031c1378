"""One utterance being synthesised: its state, its waiting chunks and deadline, which chunk may come next; and which
streams run in the next step."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from servicekit.stream_limit import FIRST_ROOM_S
from token2wav_service.contract import DEFAULT_PRIORITY
from token2wav_service.engine.runner import ModelFacts, Runner
from token2wav_service.engine.voices import Voice
from token2wav_service.errors import InvalidChunkError, InvalidRequestError
from token2wav_service.types import StreamOptions, StreamStatus, StreamSummary, TokenChunk

FIRST_AUDIO_DUE_S = 0.4
"""From a stream's first chunk on. A listener who waits so long hears no fault; one who has begun to listen hears every
gap.

Measured at 32 requests a second on one H200: 68 of 1,152 listeners heard gaps where newcomers always went first (a run
that is not kept), none of 1,056 with this (`benchmarks/results/h200_capacity`).
"""


@dataclass(frozen=True)
class Punctuality:
    """How a chunk kept its listener's deadline."""

    slack_s: float
    """Seconds until the listener had nothing left when the audio came; negative: it had run dry."""
    room_s: float
    """What that was when the chunk was accepted; of a stream's first audio, a fixed time."""
    is_late: bool
    """Whether the listener still had audio when the chunk was accepted and had none when its audio came. A chunk that
    came when the listener had run dry already, because the LLM was slow, has no deadline that could be kept."""


class PlaybackDeadline:
    """When the listener of one stream has nothing left to play; after a silence it plays on from what ended it."""

    def __init__(self) -> None:
        self.dry_s: float | None = None
        """Clock time when nothing is left to play; None before the first audio."""

    def deliver(self, accepted_s: float, now_s: float, audio_s: float) -> Punctuality | None:
        """Note a chunk's audio; returns how much time the engine had for it and left, None if there is no audio."""
        if audio_s <= 0:
            return None
        due_s = accepted_s + FIRST_ROOM_S if self.dry_s is None else self.dry_s
        is_late = self.dry_s is not None and accepted_s <= self.dry_s < now_s
        self.dry_s = now_s + audio_s if self.dry_s is None else max(self.dry_s, now_s) + audio_s
        return Punctuality(due_s - now_s, due_s - accepted_s, is_late)


@dataclass
class Stream:
    """An open stream; owned by the engine, changed under its lock only."""

    stream_id: str
    voice_id: str
    options: StreamOptions
    opened_s: float
    last_activity_s: float
    making: Future[Voice] | None
    """Ends when the voice is ready or can't be made; None once the stream has begun."""
    state: Any = None
    """None before the stream has begun."""
    status: StreamStatus = StreamStatus.WAITING
    waiting: deque[TokenChunk] = field(default_factory=deque)
    """Accepted chunks that have not run, oldest first."""
    in_step: bool = False
    """True while a step runs the first waiting chunk."""
    next_index: int = 0
    lookahead: tuple[int, ...] = ()
    """The newest accepted chunk's look-ahead tokens."""
    has_last: bool = False
    """True once the last chunk was accepted."""
    schedule: list[int] = field(default_factory=list)
    accepted_s: deque[float] = field(default_factory=deque)
    """When each waiting chunk was accepted."""
    deadline: PlaybackDeadline = field(default_factory=PlaybackDeadline)
    samples: int = 0
    is_extra: bool = False
    """True of a stream in the room that is kept for callers with few streams."""

    @property
    def is_ready(self) -> bool:
        """True when a chunk can run now."""
        return bool(self.waiting) and not self.in_step and self.making is None

    @property
    def due_s(self) -> float:
        """Clock time when a listener who plays from the first audio on has nothing left to play.

        Of a stream that has not been heard yet: when its first audio is due.
        """
        dry_s = self.deadline.dry_s
        # A listener who waited or ran dry before the chunk came has waited for the caller: that earns no place before
        # others.
        asked_s = self.accepted_s[0] if self.accepted_s else self.opened_s
        return asked_s + FIRST_AUDIO_DUE_S if dry_s is None else max(dry_s, asked_s)

    def summary(self) -> StreamSummary:
        """Return the stream's summary so far."""
        return StreamSummary(
            self.stream_id,
            self.voice_id,
            self.options.seed,
            self.status,
            list(self.schedule),
            self.samples,
        )


def check_options(options: StreamOptions) -> None:
    """Check a seed and a priority.

    Raises:
        InvalidRequestError: one is out of range.
    """
    if not 0 <= options.seed < 2**63:
        raise InvalidRequestError(f"got seed {options.seed}, expected 0..2^63-1")
    if not 1 <= options.priority <= DEFAULT_PRIORITY:
        raise InvalidRequestError(f"got priority {options.priority}, expected 1 (first) to {DEFAULT_PRIORITY}")


def checked_tokens(stream: Stream, chunk: TokenChunk, facts: ModelFacts, max_tokens: int) -> tuple[int, ...]:
    """Return the tokens that the chunk speaks.

    Raises:
        InvalidChunkError: it can't follow what the stream has had.
    """
    lookahead = facts.lookahead_tokens
    if stream.has_last:
        raise InvalidChunkError("the stream's last chunk was sent already; open a new stream for more")
    if chunk.index != stream.next_index:
        raise InvalidChunkError(f"got chunk {chunk.index}, expected {stream.next_index}: send chunks in order")
    # An empty last chunk speaks the look-ahead that went before it.
    token_ids = chunk.token_ids or (stream.lookahead if chunk.is_last else ())
    least = 1 if chunk.is_last else lookahead + 1
    if len(token_ids) < least:
        kind = "the only chunk of a stream" if chunk.is_last else f"a chunk with {lookahead} look-ahead tokens"
        raise InvalidChunkError(f"got {len(token_ids)} tokens, expected at least {least} in {kind}")
    if len(token_ids) > max_tokens:
        raise InvalidChunkError(f"got {len(token_ids)} tokens, expected at most {max_tokens}: send smaller chunks")
    vocabulary = facts.vocab_size
    wrong = [token for token in token_ids if not 0 <= token < vocabulary]
    if wrong:
        raise InvalidChunkError(f"got speech token {wrong[0]}, expected 0..{vocabulary - 1} (no LLM offset)")
    return token_ids


CLASS_PENALTY_S = 0.5
"""Each priority class behind the first may be made to wait so much longer, and no longer: none starves."""
CROWDED_STEPS = 5.0
"""Where the ready chunks fill so many usual steps, a step may be larger and take chunks of several buckets. Below it
new streams would wait longer than they do for usual steps of one bucket (simulated)."""
BESIDE_WAITING = 16
"""Most other chunks that wait, or run, while all urgent ones may run beside them."""
LATE_S = 0.2
"""Where more wait, those run beside others whose listeners have nothing left so soon: after the step that runs and one
of their own, their audio would be late."""
LEAST_SHARE = 0.5
"""Share of the most chunks of a bucket's step; a step of several buckets takes no fewer, and more than without them."""


def next_batch(
    streams: Iterable[Stream], programs: Runner, max_batch_size: int, crowded_steps: float = CROWDED_STEPS
) -> list[Stream]:
    """Return the streams of the next step, none when no stream has a chunk to run.

    Earliest deadline first: a new stream is due soon, a playing one when its listener runs dry. A step takes chunks of
    the most urgent stream's bucket only, so that it is short and that stream does not wait for longer chunks. Where
    many chunks wait, steps of few chunks would make all streams late: there the most urgent chunk runs in a larger
    bucket's program, together with the chunks of all buckets up to that one.

    Args:
        streams: all open streams.
        programs: what runs the batch; only asked for its buckets and sizes.
        max_batch_size: most chunks of a step.
        crowded_steps: see `CROWDED_STEPS`.
    """
    ready = sorted((stream for stream in streams if stream.is_ready), key=_due_s)
    if not ready:
        return []
    buckets = [programs.bucket(stream.waiting[0], stream.state) for stream in ready]
    counts, first = Counter(buckets), buckets[0]
    most = {bucket: programs.step_size(bucket, max_batch_size, is_crowded=False) for bucket in counts}
    is_crowded = sum(count / most[bucket] for bucket, count in counts.items()) >= crowded_steps

    def taken(bucket: int, fitting: list[Stream]) -> list[Stream]:
        return fitting[: programs.step_size(bucket, min(len(fitting), max_batch_size), is_crowded)]

    own = taken(first, [stream for stream, bucket in zip(ready, buckets, strict=True) if bucket == first])
    if not is_crowded:
        return own
    for larger in sorted(bucket for bucket in counts if bucket > first):
        batch = taken(larger, [stream for stream, bucket in zip(ready, buckets, strict=True) if bucket <= larger])
        if len(batch) > len(own) and len(batch) >= LEAST_SHARE * most[larger]:
            return batch
    return own


def urgent_batch(streams: Iterable[Stream], programs: Runner, now_s: float) -> list[Stream]:
    """Return the streams of the next step beside another one, which none of them waits for.

    They are those whose listeners soon have nothing to play, or have heard nothing yet, in the order of `next_batch`.
    Where many chunks wait, the GPU has little time for small steps: only those who soon have nothing then. Where there
    are more than such a step takes, it has none.

    Args:
        streams: all open streams.
        programs: what runs the batch, beside another.
        now_s: clock time.
    """
    room, waiting = programs.beside, [stream for stream in streams if stream.waiting]
    if room is None:
        return []
    due_s = now_s + (FIRST_AUDIO_DUE_S if len(waiting) <= room.streams + BESIDE_WAITING else LATE_S)
    urgent = [stream for stream in waiting if stream.is_ready and stream.due_s <= due_s]
    if len(urgent) > room.streams:
        return []
    fitting = [each for each in urgent if programs.bucket(each.waiting[0], each.state) <= room.bucket]
    return sorted(fitting, key=_due_s)


def _due_s(stream: Stream) -> float:
    return stream.due_s + (stream.options.priority - 1) * CLASS_PENALTY_S
