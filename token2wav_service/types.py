"""The engine's nouns: what goes in, what comes out. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import numpy.typing as npt

from token2wav_service.contract import DEFAULT_PRIORITY

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]


class StreamStatus(Enum):
    """Where a stream is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    ABORTED = "aborted"


@dataclass(frozen=True)
class VoicePrompt:
    """A cloned voice as the caller gives it."""

    samples: FloatArray
    """[N] mono float32 in +-1 at 16 kHz."""


@dataclass(frozen=True)
class VoiceFeatures:
    """Everything the models need of a voice, computed once."""

    voice_id: str
    """Content hash of the prompt's samples."""
    prompt_tokens: IntArray
    """[T] speech tokens of the prompt, 25 Hz."""
    prompt_mel: FloatArray
    """[2T, 80] log-mel, 50 Hz, cut to the tokens' length."""
    speaker_embedding: FloatArray
    """[192] raw CAM++ output."""
    silence_cut_s: float = 0.0
    """Seconds of silence that were cut from the prompt which came; the same voice may come with more or less."""


@dataclass(frozen=True)
class StreamOptions:
    """What a caller may choose when a stream opens."""

    seed: int = 0
    """Seed of all noise of the stream."""
    priority: int = DEFAULT_PRIORITY
    """Scheduling class, 1 (first) to 10."""
    trace_id: str | None = None
    """Trace id for the log."""
    caller_has_share: bool = False
    """Whether the caller has its share of streams; one with fewer may exceed the engine's limit by a little."""


@dataclass(frozen=True)
class TokenChunk:
    """Speech tokens sent at once; unless last, its final 3 tokens are look-ahead and come again in the next."""

    stream_id: str
    index: int
    token_ids: tuple[int, ...]
    is_last: bool


@dataclass(frozen=True)
class ChunkTiming:
    """One chunk's way through the engine; seconds of the engine's clock."""

    accepted_s: float
    started_s: float
    """Time when the chunk's step began."""
    ended_s: float
    batch_size: int
    """Number of streams in the step."""

    @property
    def queue_s(self) -> float:
        """Seconds between its acceptance and its step."""
        return self.started_s - self.accepted_s


@dataclass(frozen=True)
class AudioChunk:
    """Audio made from one `TokenChunk`; may be empty while the vocoder holds samples back."""

    stream_id: str
    index: int
    samples: FloatArray
    """[N] float32 in +-1 at 24 kHz."""
    is_last: bool
    timing: ChunkTiming | None = None
    """Times of the chunk's way; None if nobody measured."""


@dataclass
class StreamSummary:
    """What became of a stream; enough to make its audio again."""

    stream_id: str
    voice_id: str
    seed: int
    status: StreamStatus
    chunk_schedule: list[int] = field(default_factory=list)
    """Tokens in each chunk, look-ahead included."""
    samples: int = 0
    """Samples delivered."""


@dataclass(frozen=True)
class ServingStats:
    """A moment's counters; totals count from the start."""

    open_streams: int
    voices: int
    voice_bytes: int
    state_bytes: int
    """Bytes that open streams hold, beyond what they share with their voices."""
    steps: int
    batch_size_histogram: dict[int, int]
    """Streams in a step -> steps of that size."""
    chunks: int
    audio_seconds: float
    finished: int
    aborted: int
    slots: int
    """Most streams that may be open at once."""
    queued_chunks: int
    """Chunks that were accepted and are not in a step yet."""
    deadline_misses: int
    """Chunks whose listener ran dry before they came, by the engine's own fault; see `PlaybackDeadline`."""
    voice_hits: int
    """Voices that were looked up and found in the cache."""
    voice_misses: int
    """Voices that were looked up and computed, or not found."""
    voice_evictions: int
