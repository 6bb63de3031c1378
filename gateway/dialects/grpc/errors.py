"""Reports errors to gRPC callers: one interceptor around every method of our services.

A `GatewayError` becomes the status of `errors.wire_status`, its message the details, its code and parameter trailing
metadata. Anything else is an INTERNAL error that tells nothing. Messages that can't be parsed, or
have too many or too long values, are the caller's error.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from copy import copy
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from gateway.dialects.answers import MAX_VALUES, error_metadata, too_many_values
from gateway.errors import (
    GatewayError,
    InvalidRequestError,
    TextTooLongError,
    UploadTooLargeError,
    public_text,
    wire_status,
)
from gateway.voices.draft import MAX_PROMPT_BYTES

logger = logging.getLogger(__name__)

ERROR_CODE_KEY = "error-code"
"""Trailing metadata with `WireStatus.code`."""
ERROR_PARAM_KEY = "error-param"
"""Trailing metadata with the name of the field at fault, if it is known."""
MAX_DETAILS_CHARACTERS = 1000
"""Most characters of an error's details; they travel in a header, whose size clients bound."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}

Behavior = Callable[[Any, Any], Awaitable[Any]]
"""A method's implementation: a coroutine function of the request (or requests) and the context."""


@dataclass(frozen=True)
class _Refused:
    """Stands for a message that can't be parsed or is not to be."""

    error: InvalidRequestError


class ErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Guards the methods of some services; they must be coroutine functions or asynchronous generators."""

    def __init__(self, service_names: list[str], max_string_bytes: int) -> None:
        """Keep which services, by their full names, and the longest string of a message."""
        self._prefixes = tuple(f"/{name}/" for name in service_names)
        self._max_string_bytes = max_string_bytes

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """See `grpc.aio.ServerInterceptor`."""
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(self._prefixes):
            return handler
        return _guarded_handler(handler, handler_call_details.method, self._max_string_bytes)


def _guarded_handler(handler: Any, method: str, max_string_bytes: int) -> Any:
    deserializer = _forgiving(handler.request_deserializer, max_string_bytes)
    kinds: dict[tuple[bool, bool], tuple[Callable[..., Any], Behavior]] = {
        (False, False): (grpc.unary_unary_rpc_method_handler, handler.unary_unary),
        (False, True): (grpc.unary_stream_rpc_method_handler, handler.unary_stream),
        (True, False): (grpc.stream_unary_rpc_method_handler, handler.stream_unary),
        (True, True): (grpc.stream_stream_rpc_method_handler, handler.stream_stream),
    }
    make_handler, behavior = kinds[handler.request_streaming, handler.response_streaming]
    guard: Callable[..., Any] = _guarded_generator if inspect.isasyncgenfunction(behavior) else _guarded
    guarded = guard(behavior, method, handler.request_streaming)
    return make_handler(guarded, deserializer, handler.response_serializer)


def _guarded(behavior: Behavior, method: str, is_streaming: bool) -> Behavior:
    async def call(request: Any, context: Any) -> Any:
        try:
            return await behavior(_parsed_each(request) if is_streaming else _parsed(request), context)
        except GatewayError as error:
            await _refuse(context, error, method)
        except (grpc.aio.AbortError, grpc.aio.InternalError):  # the latter where an answer can't be sent any more
            raise
        except Exception:
            logger.exception("%s failed", method)
            await context.abort(grpc.StatusCode.INTERNAL, "internal error; see the server's log")

    return call


def _guarded_generator(behavior: Callable[[Any, Any], AsyncIterator[Any]], method: str, is_streaming: bool) -> Any:
    async def call(request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            async for answer in behavior(_parsed_each(request) if is_streaming else _parsed(request), context):
                yield answer
        except GatewayError as error:
            await _refuse(context, error, method)

    return call


async def _refuse(context: Any, error: GatewayError, method: str) -> NoReturn:
    status, details = wire_status(error), public_text(error)[:MAX_DETAILS_CHARACTERS]
    logger.warning("%s failed: %s: %s", method, status.code, str(error)[:MAX_DETAILS_CHARACTERS])
    metadata = [(ERROR_CODE_KEY, status.code), *error_metadata(error)]
    if isinstance(error, InvalidRequestError) and error.param is not None:
        metadata.append((ERROR_PARAM_KEY, error.param))
    await context.abort(grpc.StatusCode[status.grpc], details, tuple(metadata))
    raise AssertionError("abort raises")


def _forgiving(deserialize: Any, max_string_bytes: int) -> Callable[[bytes], Any]:
    """Wrap a message class's `FromString`."""
    kind = deserialize.__self__.DESCRIPTOR

    def parse(data: bytes) -> Any:
        try:
            check_protobuf(data, kind, max_string_bytes)
            return deserialize(data)
        except InvalidRequestError as error:
            return _Refused(error.with_traceback(None))  # its traceback would keep the message
        except DecodeError as error:
            got = f"the request message can't be parsed ({error})"
            return _Refused(InvalidRequestError(f"{got}; send what the service's .proto file describes"))

    return parse


def _parsed(message: Any) -> Any:
    if isinstance(message, _Refused):
        raise copy(message.error)  # which no traceback leads back to
    return message


async def _parsed_each(messages: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for message in messages:
        yield _parsed(message)


def check_protobuf(data: bytes, kind: Descriptor, max_string_bytes: int) -> None:
    """Check a message of protobuf; damaged ones are left to the parser.

    Args:
        data: the message.
        kind: its type.
        max_string_bytes: of each field that is a string.

    Raises:
        InvalidRequestError: it has too many values.
        TextTooLongError: a string is too long.
        UploadTooLargeError: a field of bytes, which are recordings, is too long.
    """
    left, messages = MAX_VALUES, [(memoryview(data), kind)]
    while messages:
        view, kind = messages.pop()
        at = 0
        while at < len(view):
            if not (left := left - 1):
                raise too_many_values()
            tag, at = _varint(view, at)
            size, at = _size(view, at, tag & 7)
            field = kind.fields_by_number.get(tag >> 3)
            if tag & 7 == _BYTES and field is not None:
                _check_size(field, size, max_string_bytes)
                if field.message_type is not None:
                    messages.append((view[at : at + size], field.message_type))
            at += size


def _check_size(field: FieldDescriptor, size: int, max_string_bytes: int) -> None:
    if field.type == FieldDescriptor.TYPE_STRING and size > max_string_bytes:
        got = f"{field.name} has {size} bytes, the limit is {max_string_bytes}"
        raise TextTooLongError(f"{got}; send less", param=field.name)
    if field.type == FieldDescriptor.TYPE_BYTES and size > MAX_PROMPT_BYTES:
        got = f"{field.name} has {size} bytes, the limit of a recording is {MAX_PROMPT_BYTES}"
        raise UploadTooLargeError(f"{got}; send 3 to 10 seconds of speech", param=field.name)


def _size(view: memoryview, at: int, wire_type: int) -> tuple[int, int]:
    """Return how many bytes a field's value has, and where they begin."""
    if wire_type == _BYTES:
        return _varint(view, at)
    if wire_type == _VARINT:
        return 0, _varint(view, at)[1]
    return _FIXED_BYTES.get(wire_type, 0), at


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """Return a number and the position behind it."""
    value = shift = 0
    for position in range(at, min(at + 10, len(view))):
        value |= (view[position] & 0x7F) << shift
        shift += 7
        if view[position] < 0x80:
            return value, position + 1
    return 0, len(view)
