"""Bounds the values of a message before it is parsed, whether it is JSON or protobuf. Pure.

A parser holds the event loop, and a message of many tiny values costs it far more than one of a few large values: 4 MiB
of `[],` took 0.7 s, and 64 MiB of empty messages of protobuf 12 s and 2 GB. Counting the values first is far cheaper.
"""

from __future__ import annotations

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from gateway.errors import InvalidRequestError, TextTooLongError, UploadTooLargeError
from gateway.voices.draft import MAX_PROMPT_BYTES

MAX_VALUES = 2000
"""Most values of one message; 500 words with their pronunciations are 1500 fields of protobuf."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}


def checked_json(text: str) -> str:
    """Return JSON as it came.

    Raises:
        InvalidRequestError: it has too many values; whether it is JSON at all is for its parser to say.
    """
    if sum(map(text.count, ",[{")) <= MAX_VALUES:  # it has no more of them outside strings either
        return text
    bare = text.replace("\\\\", "").replace('\\"', "")
    if bare.count('"') > 4 * MAX_VALUES:  # a key and a value have two each
        raise _too_many()
    outside_strings = "".join(bare.split('"')[::2])
    if sum(map(outside_strings.count, ",[{")) > MAX_VALUES:
        raise _too_many()
    return text


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
                raise _too_many()
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


def _too_many() -> InvalidRequestError:
    return InvalidRequestError(f"the message has more than {MAX_VALUES} values; send fewer words or settings at once")
