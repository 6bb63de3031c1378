"""Refusals in OpenAI's shape."""

from __future__ import annotations

from fastapi.responses import JSONResponse
from pydantic import BaseModel

from gateway.dialects.answers import error_headers
from gateway.errors import GatewayError, InvalidRequestError, public_text, wire_status


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
    headers = error_headers(error)
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
