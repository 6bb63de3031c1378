"""What every gRPC call goes through: it is counted, traced and admitted, its errors become statuses, it leaves nothing.

A `GatewayError` becomes the status of `errors.wire_status`, its message the details, its code and parameter trailing
metadata. Anything else is an INTERNAL error that tells nothing.

Calls that came to nothing are kept from holding memory: those that were reset, and those that were refused. gRPC keeps
the exception of a refused call with the call, and the exception's traceback leads back to it: what was sent would be
held until the collector of cycles runs.

A client may open and reset thousands of calls in a second (CVE-2023-44487). gRPC hands them over like all others, and
reading their message fails. grpcio loses 80 bytes with each such read (also in 1.85.3; grpc/grpc#43360), and these
keep the freed memory around them from going back to the kernel. Measured on one process: 240,000 such calls lost 11 MiB
and kept 240 MiB of freed memory. Calls that come more slowly begin at once: what a slow attacker could lose is a few KB
a second.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, aclosing, nullcontext
from typing import Any

import grpc

from gateway.access.grpc_access import GrpcAccess
from gateway.dialects.answers import error_metadata
from gateway.dialects.grpc import riva_grpc, tts_grpc
from gateway.dialects.grpc.messages import forgiving, parsed_each
from gateway.errors import GatewayError, InvalidRequestError, public_text, wire_status
from gateway.telemetry.call import RIVA, TTS, Call
from gateway.telemetry.telemetry import Telemetry
from servicekit.tracing import TRACEPARENT

logger = logging.getLogger(__name__)

ERROR_CODE_KEY = "error-code"
"""Trailing metadata with `WireStatus.code`."""
ERROR_PARAM_KEY = "error-param"
"""Trailing metadata with the name of the field at fault, if it is known."""
MAX_DETAILS_CHARACTERS = 1000
"""Most characters of an error's details; they travel in a header, whose size clients bound."""
PAUSE_S = 0.001
"""Seconds in which a thread of gRPC tells the event loop of a reset: it does so only once a call is handed over."""
FREE_CALLS, _FREE_WITHIN_S = 32, 1.0
"""Calls within a time that begin without the pause."""
_DIALECTS = {riva_grpc.SERVICE_NAME: RIVA, tts_grpc.SERVICE_NAME: TTS}


class CallInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Goes before every method."""

    def __init__(self, telemetry: Telemetry, access: GrpcAccess, max_string_bytes: int) -> None:
        self._telemetry = telemetry
        self._access = access
        self._max_string_bytes = max_string_bytes
        self._latest_s: deque[float] = deque(maxlen=FREE_CALLS)

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """See `grpc.aio.ServerInterceptor`; waits where many calls come, so that gRPC cancels those that were reset."""
        now_s = asyncio.get_running_loop().time()
        are_many = len(self._latest_s) == FREE_CALLS and now_s - self._latest_s[0] < _FREE_WITHIN_S
        self._latest_s.append(now_s)
        if are_many:
            await asyncio.sleep(PAUSE_S)
        handler = await continuation(handler_call_details)
        return None if handler is None else self._guarded(handler, handler_call_details)

    def _guarded(self, handler: Any, details: Any) -> Any:
        """Wrap a method.

        NOTE: gRPC reads the message of a method with one request before it calls it; so all become methods with many.
        """
        method = details.method

        async def call(requests: Any, context: Any) -> Any:
            try:
                with self._served(method, details.invocation_metadata) as served:
                    return await self._answer(handler, requests, context, details, served)
            except grpc.aio.AbortError as error:
                error.__context__ = None
                del requests, context
                raise error.with_traceback(None)  # noqa: B904
            except grpc.aio.InternalError as error:  # NOTE: gRPC raises this where nothing can be sent any more
                logger.info("%s: the caller left or its deadline passed (%s)", method, error)
                raise asyncio.CancelledError from None

        streams = handler.response_streaming
        make_handler = grpc.stream_stream_rpc_method_handler if streams else grpc.stream_unary_rpc_method_handler
        deserialize = handler.request_deserializer and forgiving(handler.request_deserializer, self._max_string_bytes)
        return make_handler(call, deserialize, handler.response_serializer)

    def _served(self, method: str, metadata: Any) -> AbstractContextManager[Call | None]:
        dialect = _DIALECTS.get(method.split("/")[1])
        if dialect is None:
            return nullcontext()
        return self._telemetry.serving(dialect, method, dict(metadata).get(TRACEPARENT))

    async def _answer(
        self, handler: Any, requests: AsyncIterator[Any], context: Any, details: Any, served: Call | None
    ) -> Any:
        method = details.method
        try:
            with self._access.admitted(method, details.invocation_metadata, context.peer()):
                async with aclosing(parsed_each(requests)) as messages:  # left open, it leads back to the call as well
                    return await _run(handler, self._access.begun(messages), context)
        # NOTE: an error kept beyond its `except` would lead back to the call until the collector of cycles runs.
        except GatewayError as error:
            await self._refuse(error, context, method, served)
        except (grpc.aio.AbortError, grpc.aio.InternalError):
            raise
        except Exception:
            logger.exception("%s failed", method)
            await self._refuse(GatewayError("internal error; see the server's log"), context, method, served)

    async def _refuse(self, error: GatewayError, context: Any, method: str, served: Call | None) -> None:
        """End the call, which raises."""
        status, details = wire_status(error), public_text(error)[:MAX_DETAILS_CHARACTERS]
        logger.warning("%s failed: %s: %s", method, status.code, str(error)[:MAX_DETAILS_CHARACTERS])
        if served is not None:
            self._telemetry.observer.refused_at_the_door(served, status.http)
        metadata = [(ERROR_CODE_KEY, status.code), *error_metadata(error)]
        if isinstance(error, InvalidRequestError) and error.param is not None:
            metadata.append((ERROR_PARAM_KEY, error.param))
        await context.abort(grpc.StatusCode[status.grpc], details, tuple(metadata))


async def _run(handler: Any, requests: AsyncIterator[Any], context: Any) -> Any:
    """Call a method as its kind wants it."""
    behavior = handler.stream_stream or handler.stream_unary or handler.unary_stream or handler.unary_unary
    asked: Any = requests if handler.request_streaming else await anext(requests, None)
    if asked is None:
        raise InvalidRequestError("the call ended without a message; send one")
    if not inspect.isasyncgenfunction(behavior):
        return await behavior(asked, context)
    async for answer in behavior(asked, context):
        await context.write(answer)
