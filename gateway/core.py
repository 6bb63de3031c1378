"""The gateway's nouns and the seams to its two services. No network, no torch.

The pipeline sees the services only through `SpeechLM` and `Token2Wav`; tests give it fakes of both.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Protocol
from weakref import finalize

import numpy as np
import numpy.typing as npt

from gateway.chunking.chunker import TokenChunk
from gateway.errors import TextTooLongError
from token2wav_service.contract import DEFAULT_PRIORITY, SAMPLE_RATE_HZ

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True)
class AudioChunk:
    """Audio made from one chunk of tokens; may be empty while the vocoder holds samples back."""

    index: int
    samples: FloatArray
    """[N] float32 in +-1 at 24 kHz."""
    is_last: bool

    @property
    def duration_s(self) -> float:
        """Seconds of audio."""
        return len(self.samples) / SAMPLE_RATE_HZ


@dataclass(frozen=True)
class RegisteredVoice:
    """A voice as token2wav knows it."""

    voice_id: str
    """The voice's id: a content hash of the prompt's samples."""
    prompt_speech_tokens: tuple[int, ...]
    """Speech tokens of the prompt, 0..6560, 25 Hz; the LLM continues from them."""
    silence_cut_s: float = 0.0
    """Seconds of silence that token2wav cut from the recording."""


@dataclass(frozen=True)
class SpeechTokenDelta:
    """What one message of the LLM's stream brought."""

    token_ids: tuple[int, ...]
    """Speech tokens 0..6560; may be empty."""
    finish_reason: str | None = None
    """Set on the last delta only: `stop` (end of speech) or `length` (the bound was hit)."""
    fills: tuple[int, ...] = ()
    """Numbers of `token_ids` before each request of the LLM for more text, made before its block of speech was full."""


@dataclass(frozen=True)
class Sampling:
    """How the LLM draws tokens; the original runtime's values."""

    temperature: float = 0.8
    top_p: float = 0.95
    top_k: int = 50
    repetition_penalty: float = 1.1


class ComingText(ABC):
    """The rest of a text that is still being written; an answer that begins again gets what was taken of it at once."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        """Pieces that were taken."""
        self.is_whole = False
        """Whether there is no more."""

    async def next_piece(self) -> str | None:
        """Wait for more of it, with the blank space at its ends as it came; None: that was all.

        May be cancelled and called again.
        """
        piece = None if self.is_whole else await self._coming()
        if piece is None:
            self.is_whole = True
        else:
            self.pieces.append(piece)
        return piece

    @abstractmethod
    async def _coming(self) -> str | None: ...


@dataclass(frozen=True)
class Utterance:
    """What the LLM speaks, in whose voice."""

    text: str
    reference_text: str
    """Transcript of the voice prompt; empty if there is none."""
    reference_tokens: tuple[int, ...]
    """Speech tokens 0..6560 of the voice prompt."""
    spoken_tokens: tuple[int, ...] = ()
    """Speech tokens 0..6560 of `text` that an LLM spoke before it was lost; the answer goes on from there."""
    instruction: str = ""
    """Instruction on how to speak `text`, for checkpoints that take one; empty: none."""
    head_start_tokens: int = 0
    """First tokens of `text`, which the caller waits for; later ones have time until the listener has heard these."""
    coming_text: ComingText | None = None
    """Text after `text`, spoken in the same answer while it is still being written; None: nothing."""
    fills: tuple[int, ...] = ()
    """Requests for text among `spoken_tokens`, in the form of `SpeechTokenDelta.fills`."""
    priority: int = DEFAULT_PRIORITY
    """Scheduling class of the LLM, 1 (first) to 10; below 10 it may exceed the LLM's limit by a little."""

    def behind(self, tokens: Sequence[int], fills: Sequence[int]) -> Utterance:
        """Return what is left to speak behind some tokens of its answer, with their requests for text."""
        spoken = self.spoken_tokens
        places = (len(spoken) + place for place in fills)
        return replace(self, spoken_tokens=(*spoken, *tokens), fills=(*self.fills, *places))


@dataclass(frozen=True)
class InlineVoice:
    """A voice that comes with the request."""

    audio: bytes | FloatArray
    """An encoded audio file, or [N] mono float32 samples in +-1 at 16 kHz."""
    transcript: str = ""


class SpeechLM(Protocol):
    """The LLM service: text in, speech tokens out."""

    def generate(self, utterance: Utterance, sampling: Sampling, seed: int) -> AsyncGenerator[SpeechTokenDelta]:
        """Yield deltas until one has a finish_reason; closing the iterator cancels the request.

        Of an utterance that was begun, only what follows its `spoken_tokens` is yielded.

        Raises:
            LLMError: anything the service did wrong.
        """
        ...


class Token2WavStream(Protocol):
    """One open stream of the token2wav service."""

    @property
    def stream_id(self) -> str:
        """The service's own name of the stream."""
        ...

    @property
    def hop_multiple(self) -> int:
        """Every chunk but the first and the last should speak a multiple of so many tokens."""
        ...

    def push(self, chunk: TokenChunk) -> asyncio.Future[AudioChunk]:
        """Send a chunk at once; the future holds its audio or a Token2WavError. Pushes may be pipelined."""
        ...


class Token2Wav(Protocol):
    """The token2wav service: speech tokens in, audio out."""

    async def register_voice(self, audio: bytes | FloatArray) -> RegisteredVoice:
        """Compute a voice's features, or find them in the cache.

        Raises:
            InvalidVoicePromptError: unreadable, silent, too short or too long.
            Token2WavError: anything the service did wrong.
        """
        ...

    def open_stream(
        self, voice_id: str, seed: int, priority: int = DEFAULT_PRIORITY
    ) -> AbstractAsyncContextManager[Token2WavStream]:
        """Lease a stream; leaving the context frees it, whatever its state.

        Raises:
            VoiceEvictedError: the voice must be registered again.
            Token2WavError: anything the service did wrong.
        """
        ...


def _forget(of_callers: Counter[str], caller: str, unspoken: list[int]) -> None:
    of_callers[caller] -= sum(unspoken)
    if not of_callers[caller]:
        del of_callers[caller]


class UnspokenText:
    """Counts the text that a session has accepted and not spoken yet; all sessions of one caller share a limit."""

    def __init__(self, limit: int | None, of_callers: Counter[str], caller: str) -> None:
        """Begin without text.

        Args:
            limit: characters that all sessions of the caller may have together; None: any number.
            of_callers: characters of each caller; this session's leave when nobody keeps it any more.
        """
        self._limit = limit
        self._own = [0]
        self._of_callers, self._caller = of_callers, caller
        finalize(self, _forget, self._of_callers, caller, self._own).atexit = False

    @property
    def characters(self) -> int:
        """Of this session."""
        return self._own[0]

    def add(self, characters: int) -> None:
        """Take text.

        Raises:
            TextTooLongError: the caller has too much; nothing was taken.
        """
        waiting = self._of_callers[self._caller]
        if self._limit is not None and waiting + characters > self._limit:
            got = f"{waiting} characters of all your streams wait to be spoken and {characters} more came"
            advice = "send text no faster than it is spoken"
            raise TextTooLongError(f"{got}, the limit is {self._limit}; {advice}", param="text")
        self._count(characters)

    def take(self, characters: int) -> None:
        """Give up text that is spoken now."""
        self._count(-characters)

    def _count(self, change: int) -> None:
        self._own[0] += change
        self._of_callers[self._caller] += change


class SessionHold:
    """A session's claim to be waited for between two of its streams by a gateway that is being stopped."""

    def __init__(self, count: Callable[[int], None] = lambda change: None) -> None:
        """Hold nothing yet; `count` adds to what the gateway waits for."""
        self._count = count
        self.is_held = False
        """Whether the gateway waits for the session now."""

    def acquire(self) -> None:
        """Have it wait for the session; harmless if it does."""
        if not self.is_held:
            self.is_held = True
            self._count(1)

    def release(self) -> None:
        """Let it stop without waiting for the session; harmless if it would."""
        if self.is_held:
            self.is_held = False
            self._count(-1)


class Admission(Protocol):
    """Decides whether a stream may begin (`lifecycle.gate.Gate`)."""

    def session_hold(self) -> SessionHold: ...
    def admitted(
        self, priority: int, patience_s: float | None = None, is_under_way: bool = False
    ) -> AbstractAsyncContextManager[None]: ...


class VoiceMaker(Protocol):
    """What keeping voices needs of the token2wav service."""

    async def register_voice(self, audio: bytes | FloatArray) -> RegisteredVoice:
        """See `Token2Wav.register_voice`."""
        ...

    async def export_voice(self, voice_id: str) -> bytes:
        """Return a registered voice as a file (`token2wav_service.voice_file`).

        Raises:
            VoiceEvictedError: the voice must be registered again.
            Token2WavError: anything the service did wrong.
        """
        ...

    async def import_voice(self, voice_file: bytes) -> RegisteredVoice:
        """Register a voice from its file; no feature model runs.

        Raises:
            VoiceOutdatedError: it was made with another model.
            VoiceFileError: it is damaged.
            Token2WavError: anything the service did wrong.
        """
        ...


class VoiceService(Token2Wav, VoiceMaker, Protocol):
    """The whole token2wav service."""
