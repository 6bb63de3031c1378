"""What can go wrong in token2wav.

Token2WavError
 +- InvalidRequestError
 |   +- InvalidPromptError
 |   +- InvalidChunkError
 +- VoiceNotFoundError
 +- StreamNotFoundError
 +- CapacityError
 +- EngineStoppedError
 +- StreamAbortedError
 +- CheckpointError
"""

from __future__ import annotations

from token2wav_service.contract import ErrorCode


class Token2WavError(Exception):
    """Base of all; `code` is what a client sees."""

    code: ErrorCode = ErrorCode.INTERNAL


class InvalidRequestError(Token2WavError):
    """The request itself is wrong; repeating it can't help."""

    code = ErrorCode.INVALID_REQUEST


class InvalidPromptError(InvalidRequestError):
    """The voice prompt can't be used: unreadable, silent, too short or too long."""

    code = ErrorCode.INVALID_PROMPT


class InvalidChunkError(InvalidRequestError):
    """A chunk was refused before it changed any state: token ids out of range, wrong index, too short."""

    code = ErrorCode.INVALID_CHUNK


class VoiceNotFoundError(Token2WavError):
    """The voice is not (or no longer) cached; register it again."""

    code = ErrorCode.VOICE_NOT_FOUND


class StreamNotFoundError(Token2WavError):
    """The stream was never opened, or has ended."""

    code = ErrorCode.STREAM_NOT_FOUND


class CapacityError(Token2WavError):
    """No room for another stream or voice now; retry later."""

    code = ErrorCode.RESOURCE_EXHAUSTED


class EngineStoppedError(Token2WavError):
    """The engine is shutting down or has failed."""

    code = ErrorCode.UNAVAILABLE


class StreamAbortedError(Token2WavError):
    """The stream was aborted while this chunk waited."""

    code = ErrorCode.CANCELLED


class CheckpointError(Token2WavError):
    """A checkpoint directory is incomplete or not of the expected layout."""
