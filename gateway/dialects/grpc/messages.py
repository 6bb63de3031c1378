"""Parses the messages of gRPC callers: those that can't be parsed, or have too many or too long values, are refused."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from copy import copy
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from gateway.dialects.answers import MAX_VALUES, too_many_values
from gateway.errors import InvalidRequestError, TextTooLongError, UploadTooLargeError
from gateway.voices.draft import MAX_PROMPT_BYTES

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}


def forgiving(deserialize: Any, max_string_bytes: int) -> Callable[[bytes], Any]:
    """Wrap a message class's `FromString`; it returns the error of what it refuses, which `parsed_each` raises."""
    kind = deserialize.__self__.DESCRIPTOR

    def parse(data: bytes) -> Any:
        try:
            check_protobuf(data, kind, max_string_bytes)
            return deserialize(data)
        except InvalidRequestError as error:
            return error.with_traceback(None)  # its traceback would keep the message
        except DecodeError as error:
            got = f"the request message can't be parsed ({error})"
            return InvalidRequestError(f"{got}; send what the service's .proto file describes")

    return parse


async def parsed_each(messages: AsyncIterator[Any]) -> AsyncGenerator[Any]:
    """Yield what `forgiving` made of a call's messages.

    Raises:
        InvalidRequestError: one can't be parsed or is not to be.
    """
    async with aclosing(aiter(messages)) as parsed:  # type: ignore[type-var]  # gRPC's can be closed
        async for message in parsed:
            if isinstance(message, InvalidRequestError):
                raise copy(message)  # which no traceback leads back to
            yield message


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
