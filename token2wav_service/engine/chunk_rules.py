"""What a stream may be opened with and which chunk may come next. Pure: nothing is changed here."""

from __future__ import annotations

from token2wav_service.config import HistoryPolicy, Token2WavConfig
from token2wav_service.contract import DEFAULT_PRIORITY
from token2wav_service.engine.runner import ModelFacts
from token2wav_service.engine.stream import Stream
from token2wav_service.errors import InvalidChunkError, InvalidRequestError
from token2wav_service.models.history import UPSTREAM_LIMIT_FRAMES
from token2wav_service.types import StreamOptions, TokenChunk

MEL_RATE_HZ = 50


def check_options(options: StreamOptions) -> None:
    """Check a seed and a priority.

    Raises:
        InvalidRequestError: one is out of range.
    """
    if not 0 <= options.seed < 2**63:
        raise InvalidRequestError(f"got seed {options.seed}, expected 0..2^63-1")
    if not 1 <= options.priority <= DEFAULT_PRIORITY:
        raise InvalidRequestError(f"got priority {options.priority}, expected 1 (first) to {DEFAULT_PRIORITY}")


class ChunkRules:
    """Of one engine."""

    def __init__(self, config: Token2WavConfig, facts: ModelFacts) -> None:
        self._config = config
        self._facts = facts

    def checked_tokens(self, stream: Stream, chunk: TokenChunk) -> tuple[int, ...]:
        """Return the tokens that the chunk speaks.

        Raises:
            InvalidChunkError: it can't follow what the stream has had.
        """
        lookahead = self._facts.lookahead_tokens
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
        if len(token_ids) > self._config.max_chunk_tokens:
            raise InvalidChunkError(
                f"got {len(token_ids)} tokens, expected at most {self._config.max_chunk_tokens}: send smaller chunks"
            )
        vocabulary = self._facts.vocab_size
        wrong = [token for token in token_ids if not 0 <= token < vocabulary]
        if wrong:
            raise InvalidChunkError(f"got speech token {wrong[0]}, expected 0..{vocabulary - 1} (no LLM offset)")
        self._check_limit(stream, self._facts.new_frames(len(token_ids), chunk.is_last))
        return token_ids

    def _check_limit(self, stream: Stream, new_frames: int) -> None:
        frames = stream.planned_frames + new_frames
        if self._config.synthesis.history is HistoryPolicy.UPSTREAM and frames > UPSTREAM_LIMIT_FRAMES:
            raise InvalidChunkError(
                f"prompt and audio would reach {frames / MEL_RATE_HZ:.1f} s, history policy `upstream` ends at "
                f"{UPSTREAM_LIMIT_FRAMES / MEL_RATE_HZ:.0f} s; set history to auto or prompt_and_recent"
            )
