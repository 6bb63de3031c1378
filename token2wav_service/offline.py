"""Turns whole lists of speech tokens into audio: drives the engine until all streams have finished.

The same engine as in the service, without its thread. Knows nothing of texts, files or the wire.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from token2wav_service.build import choose_runner
from token2wav_service.config import RunnerKind, Token2WavConfig
from token2wav_service.contract import CHUNK_SIZES_TOKENS, LOOKAHEAD_TOKENS
from token2wav_service.engine.engine import Token2WavEngine
from token2wav_service.errors import CapacityError, InvalidRequestError, Token2WavError, VoiceNotCachedError
from token2wav_service.types import AudioChunk, FloatArray, StreamOptions, StreamSummary, TokenChunk, VoicePrompt

DEFAULT_CHUNK_TOKENS = 500
"""Default tokens of a chunk: up to 20 s are made in one piece; longer utterances are cut, which bounds a step's
memory."""


@dataclass(frozen=True)
class OfflineUtterance:
    """All speech tokens of one utterance and the voice to say them in."""

    name: str
    """Name that the audio carries; unique among the utterances given together."""
    token_ids: tuple[int, ...]
    """Speech tokens, 0..6560."""
    prompt: VoicePrompt | Callable[[], VoicePrompt]
    """Prompt of the voice, or a function that loads it if it must be made."""
    options: StreamOptions = field(default_factory=StreamOptions)
    voice_id: str | None = None
    """Id of the prompt's voice, if it was registered before: spares hashing it for every utterance."""


@dataclass(frozen=True)
class OfflineSpeech:
    """The outcome of one utterance."""

    name: str
    outcome: FloatArray | Token2WavError
    """[N] float32 in +-1 at 24 kHz, or why there is none."""
    summary: StreamSummary | None
    """Summary of the stream; None if no stream was opened."""


def synthesize_all(
    engine: Token2WavEngine, utterances: Iterable[OfflineUtterance], chunk_tokens: int = DEFAULT_CHUNK_TOKENS
) -> Iterator[OfflineSpeech]:
    """Speak every utterance, as many side by side as the engine's `max_batch_size`; yields each when it has ended.

    An utterance that fails fails alone. One whose voice has no room beside the voices in use waits until a stream has
    ended. Streams still open when the caller stops reading are aborted.

    Args:
        engine: nothing else may step it meanwhile.
        utterances: read as streams become free.
        chunk_tokens: tokens (25 Hz) that one step speaks of a stream, at least 1.

    Raises:
        ValueError: `chunk_tokens` is less than 1 or more than the engine takes in a chunk.
    """
    most = engine.config.max_chunk_tokens - LOOKAHEAD_TOKENS
    if not 1 <= chunk_tokens <= most:
        raise ValueError(f"got chunk_tokens {chunk_tokens}, expected 1 to {most} (max_chunk_tokens less look-ahead)")
    return _synthesize(engine, iter(utterances), chunk_tokens)


def best_chunk_tokens(config: Token2WavConfig) -> int:
    """Return the chunk that costs an engine least: the largest chunk with a program of its own, or long pieces."""
    return (
        DEFAULT_CHUNK_TOKENS
        if choose_runner(config) in (RunnerKind.TORCH, RunnerKind.PACKED)
        else CHUNK_SIZES_TOKENS[-1]
    )


def cut_chunks(token_ids: Sequence[int], chunk_tokens: int, hop_multiple: int = 1) -> list[tuple[int, ...]]:
    """Cut tokens into chunks of `chunk_tokens` plus 3 of look-ahead; the last one carries all that remain.

    Where hops are multiples of blocks, the first chunk is so much shorter that a voice's usual start fits it.
    """
    chunks = []
    hop = chunk_tokens - (chunk_tokens - CHUNK_SIZES_TOKENS[0]) % hop_multiple
    start, hop = 0, hop if hop > 0 else chunk_tokens
    while len(token_ids) - start > hop + LOOKAHEAD_TOKENS:
        chunks.append(tuple(token_ids[start : start + hop + LOOKAHEAD_TOKENS]))
        start, hop = start + hop, chunk_tokens
    return [*chunks, tuple(token_ids[start:])]


def chunk_seconds(
    engine: Token2WavEngine, voice_id: str, streams: int, tokens: int, runs: int, warm_up_runs: int = 2
) -> list[float]:
    """Return, for each run, the seconds from the tokens of one chunk in so many streams to the last one's audio.

    Args:
        engine: nothing else may step it meanwhile.
        tokens: of each chunk, without look-ahead.

    Raises:
        Token2WavError: a stream failed.
    """
    seconds = []
    for run in range(warm_up_runs + runs):
        opened = [engine.open_stream(voice_id, StreamOptions(seed=run * streams + i)) for i in range(streams)]
        began_s, done = time.perf_counter(), 0
        for stream in opened:
            engine.add_chunk(TokenChunk(stream, 0, tuple(range(tokens + LOOKAHEAD_TOKENS)), is_last=False))
        while done < streams:
            results = engine.step()
            for result in results:
                if isinstance(result.outcome, Token2WavError):
                    raise result.outcome
            done += len(results)
        seconds.append(time.perf_counter() - began_s)
        for stream in opened:
            engine.abort(stream)
    return seconds[warm_up_runs:]


@dataclass
class _Open:
    name: str
    pieces: list[FloatArray] = field(default_factory=list)


def _synthesize(
    engine: Token2WavEngine, utterances: Iterator[OfflineUtterance], chunk_tokens: int
) -> Iterator[OfflineSpeech]:
    streams: dict[str, _Open] = {}
    waiting = next(utterances, None)
    try:
        while waiting is not None or streams:
            while waiting is not None and len(streams) < engine.config.max_batch_size:
                try:
                    streams[_open(engine, waiting, chunk_tokens)] = _Open(waiting.name)
                except Token2WavError as error:
                    if isinstance(error, CapacityError) and streams:
                        break
                    yield OfflineSpeech(waiting.name, error, None)
                waiting = next(utterances, None)
            yield from _step(engine, streams)
    finally:
        for stream_id in streams:
            engine.abort(stream_id)


def _open(engine: Token2WavEngine, utterance: OfflineUtterance, chunk_tokens: int) -> str:
    """Open a stream and queue all its chunks; nothing stays open if one is refused."""
    if not utterance.token_ids:
        raise InvalidRequestError(f"utterance {utterance.name!r} has no speech tokens; expected at least one")
    stream_id = _open_stream(engine, utterance)
    chunks = cut_chunks(utterance.token_ids, chunk_tokens, engine.runner.facts.hop_multiple)
    try:
        for index, token_ids in enumerate(chunks):
            engine.add_chunk(TokenChunk(stream_id, index, token_ids, is_last=index == len(chunks) - 1))
    except Token2WavError:
        engine.abort(stream_id)
        raise
    return stream_id


def _open_stream(engine: Token2WavEngine, utterance: OfflineUtterance) -> str:
    """Open a stream; its voice is made unless the engine has it."""
    if utterance.voice_id is not None:
        try:
            return engine.open_stream(utterance.voice_id, utterance.options)
        except VoiceNotCachedError:
            pass  # it was evicted
    prompt = utterance.prompt if isinstance(utterance.prompt, VoicePrompt) else utterance.prompt()
    return engine.open_stream(engine.voices.register(prompt).voice_id, utterance.options)


def _step(engine: Token2WavEngine, streams: dict[str, _Open]) -> Iterator[OfflineSpeech]:
    for result in engine.step():
        stream = streams[result.stream_id]
        if isinstance(result.outcome, AudioChunk):
            stream.pieces.append(result.outcome.samples)
        if result.ended is None:
            continue
        del streams[result.stream_id]
        failed = result.outcome if isinstance(result.outcome, Token2WavError) else None
        yield OfflineSpeech(stream.name, failed or np.concatenate(stream.pieces), result.ended)
