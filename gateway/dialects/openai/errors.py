"""Refusals in OpenAI's shape, with what its clients need to know about trying again.

Those repeat every 408, 409, 429 and 5xx twice by themselves. That is a second synthesis where it can't help, so that
such answers say no; the others say when.
"""

from __future__ import annotations

from fastapi.responses import JSONResponse
from pydantic import BaseModel

from gateway.dialects.answers import error_headers
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
    VoiceExistsError,
    VoiceStoreFullError,
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
_FINAL = (VoiceExistsError, VoiceStoreFullError)
"""Errors that a repeated request cannot mend, although clients repeat their statuses on their own."""
_RETRY_AFTER_S = 1


class ErrorObject(BaseModel):
    """An error as OpenAI describes it."""

    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str


class ErrorBody(BaseModel):
    """The body of an answer that is an error."""

    error: ErrorObject


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
    described = ErrorObject(message=public_text(error), type=status.openai_type, param=param, code=status.code)
    return described.model_dump()


def described(message: str, code: str, param: str | None = None) -> dict[str, dict[str, str | None]]:
    """Return the body of an answer to a mistake that is no `GatewayError`."""
    return ErrorBody(error=ErrorObject(message=message, param=param, code=code)).model_dump()


def _retry_headers(error: GatewayError) -> dict[str, str]:
    if isinstance(error, _FINAL):
        return {**error_headers(error), "x-should-retry": "false"}
    if known := error_headers(error):
        return known
    if isinstance(error, _PASSING):
        return {"retry-after": str(_RETRY_AFTER_S)}
    return {"x-should-retry": "false"} if wire_status(error).http >= HTTP_SERVER_ERROR else {}
