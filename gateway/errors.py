"""What can go wrong between a caller and its audio, and the one table that turns it into wire codes."""

from __future__ import annotations

from dataclasses import dataclass

from servicekit.logs import PlainError
from token2wav_service.contract import ErrorCode

_MAX_MESSAGE = 2000
"""Most characters of an error's message; they go into a log and an answer."""


class GatewayError(PlainError):
    """Base of all errors; the message says what was got, what was expected and what to do."""

    def __init__(self, message: str = "") -> None:
        """Keep the message, whose end is cut if a caller's own words made it very long."""
        super().__init__(message if len(message) <= _MAX_MESSAGE else f"{message[:_MAX_MESSAGE]}...")

    @property
    def code(self) -> str:
        """Machine-readable name, e.g. `text_too_long`."""
        return wire_status(self).code


class LaterError(GatewayError):
    """The same request may succeed later."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ConfigError(GatewayError):
    """The gateway can't start with these settings."""


class AccessError(GatewayError):
    """This caller may never do what it asked for."""


class UnauthenticatedError(AccessError):
    """The request has no API key, or one that the gateway does not know."""


class ForeignOriginError(AccessError):
    """A web page of another site sent the request, perhaps without its visitor's knowledge."""


class ForeignHostError(AccessError):
    """The request names another host: perhaps a web page let its own name point to this machine."""


class LimitError(AccessError, LaterError):
    """The caller has reached one of its limits and may try again later."""


class StreamLimitError(LimitError):
    """The caller has as many open streams as it may have."""


class AudioLimitError(LimitError):
    """The caller has used up its seconds of audio."""


class OverloadedError(LaterError):
    """No replica will have room for the stream in time."""


class StalledReaderError(GatewayError):
    """The caller did not read its answer for too long, so the gateway closed it."""


class NotReadyError(GatewayError):
    """The gateway runs but can't make speech now."""


class InvalidRequestError(GatewayError):
    """The request itself is wrong."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidTextError(InvalidRequestError):
    """The text has nothing to speak, or is not valid text."""


class TextTooLongError(InvalidRequestError):
    """The text is longer than one request may have."""


class UndeclaredLanguageError(InvalidRequestError):
    """The text is in a language that the checkpoint does not declare."""


class UnsupportedOptionError(InvalidRequestError):
    """This server does not offer the option or its value."""


class InvalidVoicePromptError(InvalidRequestError):
    """The voice prompt is unreadable, silent, too short or too long."""


class VoiceNotFoundError(InvalidRequestError):
    """No voice has that name."""


class VoiceExistsError(InvalidRequestError):
    """A voice of that name exists already."""


class VoiceProtectedError(InvalidRequestError):
    """The voice is the operator's: callers may use it, not delete it."""


class UploadTooLargeError(InvalidRequestError):
    """The upload is larger than the limit."""


class LexiconNotFoundError(InvalidRequestError):
    """The server has no pronunciation dictionary of that name."""


class VoiceStoreError(GatewayError):
    """The gateway can't write or read its voice files."""


class VoiceStoreFullError(VoiceStoreError):
    """The gateway already keeps as many voices as allowed."""


class VoiceRateError(VoiceStoreError, LaterError):
    """The caller creates voices faster than allowed."""


class VoiceFileError(VoiceStoreError):
    """The file of a kept voice is damaged."""


class VoiceOutdatedError(VoiceStoreError):
    """The kept voice was made with another model."""


class LLMError(GatewayError):
    """Base of all errors of the LLM service."""


class LLMUnavailableError(LLMError):
    """The LLM service can't be reached or is overloaded."""


class LLMBusyError(LLMUnavailableError):
    """The LLM service answers that it is overloaded or starting."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        """Keep the seconds after which it expects to have room."""
        super().__init__(message)
        self.retry_after_s = retry_after_s


class LLMRejectedError(LLMError):
    """The LLM service answered 4xx."""


class LLMFailedError(LLMError):
    """The LLM service answered 5xx or reported an error in its stream."""


class LLMInterruptedError(LLMError):
    """The connection to the LLM service ended in mid-stream."""


class LLMProtocolError(LLMError):
    """The LLM service sent something that its contract does not allow."""


class LLMDeadlineError(LLMError):
    """The LLM service did not answer in time."""


class LLMUnconnectedError(LLMUnavailableError, LLMDeadlineError):
    """The LLM service could not be reached in time."""


class EmptySpeechError(LLMError):
    """The LLM ended before its first speech token."""


class Token2WavError(GatewayError):
    """Base of all errors of the token2wav service."""


class Token2WavUnavailableError(Token2WavError):
    """The token2wav service can't be reached."""


class Token2WavStoppingError(Token2WavUnavailableError):
    """The token2wav service answers that it is stopping."""


class Token2WavBusyError(Token2WavError):
    """The token2wav service has no room for another stream or voice now."""


class Token2WavRejectedError(Token2WavError):
    """The token2wav service refused a chunk or an option of ours."""


class Token2WavFailedError(Token2WavError):
    """The token2wav service reported an internal error."""


class Token2WavInterruptedError(Token2WavError):
    """The stream ended before its audio was complete."""


class StreamLostError(Token2WavInterruptedError):
    """The token2wav service answers that the stream has ended: aborted, idle for too long, or never known."""


class Token2WavProtocolError(Token2WavError):
    """The token2wav service sent something that its contract does not allow."""


class Token2WavDeadlineError(Token2WavError):
    """The token2wav service did not answer in time."""

    def __init__(self, message: str, *, serves_others: bool = True) -> None:
        """Keep whether the service worked for other streams meanwhile; if not, it or the connection is stuck."""
        super().__init__(message)
        self.serves_others = serves_others


class VoiceEvictedError(Token2WavError):
    """token2wav dropped the registered voice from its cache; register it again."""


@dataclass(frozen=True)
class WireStatus:
    """The codes of one error in each protocol."""

    code: str
    """Machine-readable name of the error."""
    http: int
    grpc: str
    """Name of the gRPC status code."""
    triton: ErrorCode
    """Code that an error response of the drop-in Triton model begins with."""

    @property
    def openai_type(self) -> str:
        """`type` of an OpenAI-shaped error body."""
        return "invalid_request_error" if self.http < HTTP_SERVER_ERROR else "server_error"


HTTP_SERVER_ERROR = 500

_WIRE: dict[type[GatewayError], WireStatus] = {
    GatewayError: WireStatus("internal_error", 500, "INTERNAL", ErrorCode.INTERNAL),
    ConfigError: WireStatus("config_error", 500, "INTERNAL", ErrorCode.INTERNAL),
    AccessError: WireStatus("permission_denied", 403, "PERMISSION_DENIED", ErrorCode.INVALID_REQUEST),
    UnauthenticatedError: WireStatus("invalid_api_key", 401, "UNAUTHENTICATED", ErrorCode.INVALID_REQUEST),
    ForeignOriginError: WireStatus("foreign_origin", 403, "PERMISSION_DENIED", ErrorCode.INVALID_REQUEST),
    ForeignHostError: WireStatus("foreign_host", 403, "PERMISSION_DENIED", ErrorCode.INVALID_REQUEST),
    LimitError: WireStatus("limit_reached", 429, "RESOURCE_EXHAUSTED", ErrorCode.RESOURCE_EXHAUSTED),
    StreamLimitError: WireStatus("stream_limit_reached", 429, "RESOURCE_EXHAUSTED", ErrorCode.RESOURCE_EXHAUSTED),
    AudioLimitError: WireStatus("audio_limit_reached", 429, "RESOURCE_EXHAUSTED", ErrorCode.RESOURCE_EXHAUSTED),
    OverloadedError: WireStatus("overloaded", 429, "RESOURCE_EXHAUSTED", ErrorCode.RESOURCE_EXHAUSTED),
    StalledReaderError: WireStatus("stalled_reader", 408, "CANCELLED", ErrorCode.INVALID_REQUEST),
    NotReadyError: WireStatus("not_ready", 503, "UNAVAILABLE", ErrorCode.UNAVAILABLE),
    InvalidRequestError: WireStatus("invalid_request", 400, "INVALID_ARGUMENT", ErrorCode.INVALID_REQUEST),
    InvalidTextError: WireStatus("invalid_text", 400, "INVALID_ARGUMENT", ErrorCode.INVALID_REQUEST),
    TextTooLongError: WireStatus("text_too_long", 400, "INVALID_ARGUMENT", ErrorCode.INVALID_REQUEST),
    UndeclaredLanguageError: WireStatus("undeclared_language", 400, "INVALID_ARGUMENT", ErrorCode.INVALID_REQUEST),
    UnsupportedOptionError: WireStatus("unsupported_option", 400, "INVALID_ARGUMENT", ErrorCode.INVALID_REQUEST),
    InvalidVoicePromptError: WireStatus("invalid_voice_prompt", 400, "INVALID_ARGUMENT", ErrorCode.INVALID_PROMPT),
    VoiceNotFoundError: WireStatus("voice_not_found", 404, "NOT_FOUND", ErrorCode.VOICE_NOT_FOUND),
    VoiceExistsError: WireStatus("voice_exists", 409, "ALREADY_EXISTS", ErrorCode.INVALID_REQUEST),
    VoiceProtectedError: WireStatus("voice_protected", 403, "PERMISSION_DENIED", ErrorCode.INVALID_REQUEST),
    UploadTooLargeError: WireStatus("upload_too_large", 413, "INVALID_ARGUMENT", ErrorCode.INVALID_REQUEST),
    VoiceStoreError: WireStatus("voice_store_failed", 500, "INTERNAL", ErrorCode.INTERNAL),
    VoiceStoreFullError: WireStatus("voice_store_full", 429, "RESOURCE_EXHAUSTED", ErrorCode.RESOURCE_EXHAUSTED),
    VoiceRateError: WireStatus("voice_rate_limited", 429, "RESOURCE_EXHAUSTED", ErrorCode.RESOURCE_EXHAUSTED),
    VoiceFileError: WireStatus("voice_file_damaged", 500, "DATA_LOSS", ErrorCode.INVALID_VOICE_FILE),
    VoiceOutdatedError: WireStatus("voice_outdated", 422, "FAILED_PRECONDITION", ErrorCode.VOICE_MODEL_MISMATCH),
    LexiconNotFoundError: WireStatus("lexicon_not_found", 404, "NOT_FOUND", ErrorCode.INVALID_REQUEST),
    LLMError: WireStatus("llm_failed", 502, "INTERNAL", ErrorCode.INTERNAL),
    LLMUnavailableError: WireStatus("llm_unavailable", 503, "UNAVAILABLE", ErrorCode.UNAVAILABLE),
    LLMUnconnectedError: WireStatus("llm_unavailable", 503, "UNAVAILABLE", ErrorCode.UNAVAILABLE),
    LLMBusyError: WireStatus("llm_unavailable", 503, "UNAVAILABLE", ErrorCode.UNAVAILABLE),
    LLMRejectedError: WireStatus("llm_rejected", 502, "INTERNAL", ErrorCode.INTERNAL),
    LLMFailedError: WireStatus("llm_failed", 502, "INTERNAL", ErrorCode.INTERNAL),
    LLMInterruptedError: WireStatus("llm_interrupted", 502, "UNAVAILABLE", ErrorCode.UNAVAILABLE),
    LLMProtocolError: WireStatus("llm_protocol_error", 502, "INTERNAL", ErrorCode.INTERNAL),
    LLMDeadlineError: WireStatus("llm_deadline_exceeded", 504, "DEADLINE_EXCEEDED", ErrorCode.UNAVAILABLE),
    EmptySpeechError: WireStatus("empty_speech", 502, "INTERNAL", ErrorCode.INTERNAL),
    Token2WavError: WireStatus("token2wav_failed", 502, "INTERNAL", ErrorCode.INTERNAL),
    Token2WavUnavailableError: WireStatus("token2wav_unavailable", 503, "UNAVAILABLE", ErrorCode.UNAVAILABLE),
    Token2WavStoppingError: WireStatus("token2wav_unavailable", 503, "UNAVAILABLE", ErrorCode.UNAVAILABLE),
    Token2WavBusyError: WireStatus("token2wav_busy", 429, "RESOURCE_EXHAUSTED", ErrorCode.RESOURCE_EXHAUSTED),
    Token2WavRejectedError: WireStatus("token2wav_rejected", 502, "INTERNAL", ErrorCode.INTERNAL),
    Token2WavFailedError: WireStatus("token2wav_failed", 502, "INTERNAL", ErrorCode.INTERNAL),
    Token2WavInterruptedError: WireStatus("token2wav_interrupted", 502, "UNAVAILABLE", ErrorCode.UNAVAILABLE),
    StreamLostError: WireStatus("token2wav_interrupted", 502, "UNAVAILABLE", ErrorCode.UNAVAILABLE),
    Token2WavProtocolError: WireStatus("token2wav_protocol_error", 502, "INTERNAL", ErrorCode.INTERNAL),
    Token2WavDeadlineError: WireStatus("token2wav_deadline_exceeded", 504, "DEADLINE_EXCEEDED", ErrorCode.UNAVAILABLE),
    VoiceEvictedError: WireStatus("voice_evicted", 503, "UNAVAILABLE", ErrorCode.VOICE_NOT_FOUND),
}


def wire_status(error: BaseException) -> WireStatus:
    """Return the wire codes of the nearest class in the table; other exceptions are internal errors."""
    known = (_WIRE[cls] for cls in type(error).__mro__ if cls in _WIRE)
    return next(known, _WIRE[GatewayError])


def known_codes() -> tuple[str, ...]:
    """Return every machine-readable name that `wire_status` can give, sorted."""
    return tuple(sorted({status.code for status in _WIRE.values()}))


def known_statuses() -> dict[int, tuple[str, ...]]:
    """Return every HTTP status that `wire_status` can give, in order, with the names that come with it, sorted."""
    found: dict[int, set[str]] = {}
    for status in _WIRE.values():
        found.setdefault(status.http, set()).add(status.code)
    return {http: tuple(sorted(codes)) for http, codes in sorted(found.items())}


_PUBLIC: dict[type[GatewayError], str] = {
    GatewayError: "the server failed; its log says why",
    LLMError: "the speech LLM failed; try again",
    LLMUnavailableError: "no speech LLM can be had now; try again in a moment",
    LLMInterruptedError: "the speech LLM was interrupted; try again",
    LLMDeadlineError: "the speech LLM did not answer in time; try again",
    Token2WavError: "the audio could not be made; try again",
    Token2WavUnavailableError: "no token2wav server can be had now; try again in a moment",
    Token2WavBusyError: "every token2wav server is full; try again in a moment",
    Token2WavInterruptedError: "the audio was interrupted; try again",
    Token2WavDeadlineError: "the audio did not come in time; try again",
    VoiceStoreError: "the voice can't be read or written now; the server's log says why",
    VoiceFileError: "the voice's file is damaged; create the voice again",
}
_TOLD_WHOLE = (EmptySpeechError, VoiceStoreFullError, VoiceRateError, VoiceOutdatedError)
"""Errors whose own text is told although a base class is in `_PUBLIC`: it is about what the caller sent."""


def public_text(error: BaseException) -> str:
    """Return the text of an error for a caller, without addresses and answers of the services behind the gateway.

    The error itself says more; write that to the log.
    """
    if isinstance(error, _TOLD_WHOLE):
        return str(error)
    for cls in type(error).__mro__:
        if cls in _PUBLIC and (cls is not GatewayError or type(error) is GatewayError):
            return _PUBLIC[cls]
    return str(error) if isinstance(error, GatewayError) else _PUBLIC[GatewayError]
