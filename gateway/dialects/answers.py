"""What all dialects share: reading a body, waiting for a reader, saying when to try again, streaming an answer.

A streamed answer sends nothing before its first bytes exist, so that an error until then is an answer of its own; a
later error breaks the connection, so that no client takes half of it for the whole. A client that leaves stops the
making at once.

A parser holds the event loop, and a message of many tiny values costs it far more than one of a few large values: 4 MiB
of `[],` took 0.7 s, and 64 MiB of empty messages of protobuf 12 s and 2 GB. Counting the values first is far cheaper.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from gateway.errors import (
    HTTP_SERVER_ERROR,
    GatewayError,
    InvalidRequestError,
    LaterError,
    StalledReaderError,
    TextTooLongError,
    Token2WavBusyError,
    UnauthenticatedError,
    VoiceExistsError,
    VoiceStoreFullError,
    wire_status,
)
from gateway.speech.request import SpeechResult
from gateway.speech.speech_job import warnings_of
from servicekit.tasks import until_first
from servicekit.timeouts import timeout

logger = logging.getLogger(__name__)


_Parsed = TypeVar("_Parsed")
_PARSED_AT_ONCE_BYTES = 64 * 1024
"""Parsing so much holds the event loop for less than a millisecond."""


async def read_body(request: Request, max_bytes: int, param: str, parse: Callable[[bytes], _Parsed]) -> _Parsed:
    """Return what `parse` makes of the whole body.

    Args:
        request: not read yet.
        max_bytes: reading stops behind them.
        param: what the dialect calls the text, for the error.
        parse: is called in a turn of the event loop of its own where the body is large.

    Raises:
        TextTooLongError: it is longer.
        ClientDisconnect: the caller left.
    """
    parts = bytearray()
    async for part in request.stream():
        parts += part
        if len(parts) > max_bytes:
            raise TextTooLongError(f"the request body passes {max_bytes} bytes; send less text", param=param)
    if len(parts) > _PARSED_AT_ONCE_BYTES:
        await request.app.state.host.pipeline.line.turn()
    return parse(bytes(parts))


MAX_VALUES = 2000
"""Most values of one message; 500 words with their pronunciations are 1500 fields of protobuf."""


def checked_json(text: str) -> str:
    """Return JSON as it came.

    Raises:
        InvalidRequestError: it has too many values; whether it is JSON at all is for its parser to say.
    """
    if sum(map(text.count, ",[{")) <= MAX_VALUES:  # it has no more of them outside strings either
        return text
    bare = text.replace("\\\\", "").replace('\\"', "")
    if bare.count('"') > 4 * MAX_VALUES:  # a key and a value have two each
        raise too_many_values()
    outside_strings = "".join(bare.split('"')[::2])
    if sum(map(outside_strings.count, ",[{")) > MAX_VALUES:
        raise too_many_values()
    return text


@contextmanager
def checked_fields(whole: str = "message") -> Iterator[None]:
    """Say of fields that are validated within which one is wrong first and why, and not what was sent.

    Raises:
        InvalidRequestError: one is; `whole` is the name of what has them.
    """
    try:
        yield
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        got, param = f"{where or whole}: {first['msg']}", where.partition(".")[0] or None
        raise InvalidRequestError(f"{got}; correct it and send it again", param=param) from error


def too_many_values() -> InvalidRequestError:
    """Make the error of a message with more values than a parser may be given."""
    return InvalidRequestError(f"the message has more than {MAX_VALUES} values; send fewer words or settings at once")


async def sent(sending: Awaitable[None], timeout_s: float) -> None:
    """Wait until the reader has made room for what is sent.

    Args:
        sending: cancelled when the time has passed.
        timeout_s: a reader who makes no room for so long is taken for gone.

    Raises:
        StalledReaderError: the time has passed.
    """
    try:
        async with timeout(timeout_s):
            await sending
    except asyncio.TimeoutError as error:
        got = f"the reader of the answer stood still for {timeout_s:g} s"
        raise StalledReaderError(f"{got}; read it as it comes, or hang up") from error


LONGEST_RETRY_S = 60.0
"""Longest Retry-After, in seconds, for clients that repeat on their own; beyond it they are told not to."""
GRPC_PUSHBACK_KEY = "grpc-retry-pushback-ms"
"""Trailing metadata that gRPC's own retries obey; a value below 0 means: do not retry."""
RETRY_AFTER_KEY, _SHOULD_RETRY = "retry-after", "x-should-retry"
_NO_RETRY_MS = -1
_MS_PER_S = 1000


def retry_after_s(error: BaseException) -> float | None:
    """Return when the same request may succeed, if that is known."""
    return error.retry_after_s if isinstance(error, LaterError) else None


def error_headers(error: BaseException) -> dict[str, str]:
    """Return what an HTTP answer to the error says in its headers, for clients that repeat or ask on their own.

    OpenAI's repeat every 408, 409, 429 and 5xx twice. That is a second synthesis where it can't help, so that such
    answers say no; the others say when. What gRPC calls UNAVAILABLE may soon be over.
    """
    if isinstance(error, UnauthenticatedError):
        return {"www-authenticate": "Bearer"}
    if (seconds := retry_after_s(error)) is not None:
        is_worthwhile = seconds <= LONGEST_RETRY_S
        return {RETRY_AFTER_KEY: str(math.ceil(seconds)), _SHOULD_RETRY: "true" if is_worthwhile else "false"}
    status = wire_status(error)
    if status.grpc == "UNAVAILABLE" or isinstance(error, Token2WavBusyError):
        return {RETRY_AFTER_KEY: "1"}
    is_in_vain = status.http >= HTTP_SERVER_ERROR or isinstance(error, VoiceExistsError | VoiceStoreFullError)
    return {_SHOULD_RETRY: "false"} if is_in_vain else {}


def error_metadata(error: BaseException) -> list[tuple[str, str]]:
    """Return the same for a gRPC call's trailing metadata."""
    if (seconds := retry_after_s(error)) is None:
        return []
    pushback_ms = math.ceil(seconds * _MS_PER_S) if seconds <= LONGEST_RETRY_S else _NO_RETRY_MS
    return [(RETRY_AFTER_KEY, str(math.ceil(seconds))), (GRPC_PUSHBACK_KEY, str(pushback_ms))]


def warning_headers(*results: SpeechResult) -> dict[str, str]:
    """Return what an answer warns of so far: an undeclared language, a voice's recording, speech off its text."""
    return {f"x-{kind}-warning": warning for kind, warning in warnings_of(*results).items()}


def tell_warnings(context: Any, headers: Mapping[str, str]) -> None:
    """Put `warning_headers` into a gRPC call's trailing metadata."""
    if headers:
        context.set_trailing_metadata(tuple(headers.items()))


IGNORED_FIELDS_KEY = "x-ignored-fields"


def ignored_headers(fields: Sequence[str]) -> dict[str, str]:
    """Return the header that names what of a request changed nothing, if anything did not."""
    return {IGNORED_FIELDS_KEY: ", ".join(fields)} if fields else {}


class StreamedAnswer:
    """One answer to one client."""

    def __init__(
        self,
        body: AsyncGenerator[bytes],
        headers: Mapping[str, str],
        name: str,
        send_timeout_s: float,
        late_headers: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """Take over `body`, which is closed on every way out.

        Args:
            body: pieces of it; empty ones are not sent.
            headers: of the answer.
            name: for logs.
            send_timeout_s: a client that makes no room for the next bytes for so long has its connection broken.
            late_headers: returns further headers, when the first bytes exist.
        """
        self._body = body
        self._headers = headers
        self._late_headers = late_headers
        self._name = name
        self._send_timeout_s = send_timeout_s
        self._is_started = self._is_over = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the body ends, it fails, or the client leaves.

        Raises:
            GatewayError: the body failed.
        """
        await until_first(self._stream(send), self._until_left(receive))

    async def _stream(self, send: Send) -> None:
        try:
            async with aclosing(self._body) as body:
                async for piece in body:
                    if piece:
                        await self._send(send, piece)
        except GatewayError as error:
            if self._is_started:
                logger.warning("request %s failed: %s: %s", self._name, error.code, error)
            raise
        self._is_over = True
        await self._send(send, b"", is_last=True)

    async def _send(self, send: Send, piece: bytes, is_last: bool = False) -> None:
        if not self._is_started:
            self._is_started = True
            told = {**self._headers, **self._late_headers()}
            headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in told.items()]
            start = {"type": "http.response.start", "status": 200, "headers": headers}
            await sent(send(start), self._send_timeout_s)
        body = {"type": "http.response.body", "body": piece, "more_body": not is_last}
        await sent(send(body), self._send_timeout_s)

    async def _until_left(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if not self._is_over:  # uvicorn says so too where all was sent
            logger.info("request %s: the client left", self._name)
