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
    Token2WavBusyError,
    VoiceExistsError,
    VoiceStoreFullError,
    public_text,
    wire_status,
)

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
    """Say when to repeat: what gRPC calls UNAVAILABLE may soon be over; no repeated request mends a voice's name."""
    if known := error_headers(error):
        return known
    status = wire_status(error)
    if status.grpc == "UNAVAILABLE" or isinstance(error, Token2WavBusyError):
        return {"retry-after": str(_RETRY_AFTER_S)}
    is_in_vain = status.http >= HTTP_SERVER_ERROR or isinstance(error, VoiceExistsError | VoiceStoreFullError)
    return {"x-should-retry": "false"} if is_in_vain else {}
