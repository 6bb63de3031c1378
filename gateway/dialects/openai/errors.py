"""Refusals in OpenAI's shape, with what its clients need to know about trying again.

Those repeat every 408, 409, 429 and 5xx twice by themselves. That is a second synthesis where it can't help, so that
such answers say no; the others say when.
"""

from __future__ import annotations

from fastapi.responses import JSONResponse

from gateway.dialects.common.answers import error_headers
from gateway.errors import (
    HTTP_SERVER_ERROR,
    GatewayError,
    InvalidRequestError,
    LLMInterruptedError,
    LLMUnavailableError,
    NotReadyError,
    Token2WavBusyError,
    Token2WavInterruptedError,
    Token2WavUnavailableError,
    VoiceEvictedError,
    public_text,
    wire_status,
)

_PASSING = (
    NotReadyError,
    LLMUnavailableError,
    LLMInterruptedError,
    Token2WavBusyError,
    Token2WavInterruptedError,
    Token2WavUnavailableError,
    VoiceEvictedError,
)
"""Errors that may soon be over, so that a repeated request may succeed."""
_RETRY_AFTER_S = 1
_NOT_FOUND = 404


def error_response(error: GatewayError, request_id: str | None = None) -> JSONResponse:
    """Make the OpenAI-shaped answer to an error."""
    headers = _retry_headers(error)
    if request_id is not None:
        headers["x-request-id"] = request_id
    return JSONResponse({"error": error_object(error)}, wire_status(error).http, headers)


def error_object(error: GatewayError) -> dict[str, str | None]:
    """Describe an error as OpenAI does."""
    status = wire_status(error)
    param = error.param if isinstance(error, InvalidRequestError) else None
    return _described(public_text(error), status.openai_type, status.code, param)


def model_not_found(model: str, known: str) -> JSONResponse:
    """Make the answer to a question about a model that is not here."""
    message = f"got model {model!r}, the only one here is {known!r}"
    described = _described(message, "invalid_request_error", "model_not_found", "model")
    return JSONResponse({"error": described}, _NOT_FOUND)


def described(message: str, code: str) -> dict[str, dict[str, str | None]]:
    """Return the body of an answer to a mistake that is no `GatewayError`."""
    return {"error": _described(message, "invalid_request_error", code, None)}


def _described(message: str, kind: str, code: str, param: str | None) -> dict[str, str | None]:
    return {"message": message, "type": kind, "param": param, "code": code}


def _retry_headers(error: GatewayError) -> dict[str, str]:
    if known := error_headers(error):
        return known
    if isinstance(error, _PASSING):
        return {"retry-after": str(_RETRY_AFTER_S)}
    return {"x-should-retry": "false"} if wire_status(error).http >= HTTP_SERVER_ERROR else {}
