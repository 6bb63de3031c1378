"""What can go wrong in token2wav."""

from __future__ import annotations

from servicekit.logs import PlainError
from token2wav_service.contract import ErrorCode


class Token2WavError(PlainError):
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


class InvalidVoiceFileError(InvalidRequestError):
    """A voice file can't be used: damaged, of wrong shapes, or its prompt is too short or too long."""

    code = ErrorCode.INVALID_VOICE_FILE


class VoiceModelMismatchError(InvalidRequestError):
    """A voice file was made by another checkpoint's feature models; the voice must be made again."""

    code = ErrorCode.VOICE_MODEL_MISMATCH


class VoiceNotCachedError(Token2WavError):
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


class DeviceLostError(EngineStoppedError):
    """The GPU can't be used any more from this process: CUDA errors such as an illegal access are for good."""


class StreamAbortedError(Token2WavError):
    """The stream was aborted while this chunk waited, or its caller gave up."""

    code = ErrorCode.CANCELLED


class CheckpointError(Token2WavError):
    """A checkpoint directory is incomplete or not of the expected layout."""


class MemoryBudgetError(Token2WavError):
    """The GPU's memory does not hold what the settings ask for; the message names the setting and a value that fits."""


class ProgramCaptureError(Token2WavError):
    """A step could not be captured as a CUDA graph; its message names the program and the cause."""


class ExportError(Token2WavError):
    """A graph could not be exported as described, or an exported file is missing or not of this version."""


class TensorRTError(Token2WavError):
    """TensorRT can't build or run the engine that was asked for."""


class EngineBuildError(TensorRTError):
    """An engine could not be built, or was built and refused for its numerics."""


class EngineUnfitError(TensorRTError):
    """An engine is missing, or does not fit this GPU, this TensorRT, this checkpoint or these settings."""
