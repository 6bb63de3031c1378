"""Before all else at the gRPC door: notes which call is served, and how it was refused."""

from __future__ import annotations

from typing import Any

import grpc

from gateway.telemetry.call import Call, serving
from gateway.telemetry.dialects import dialect_of_method
from gateway.telemetry.telemetry import Telemetry
from servicekit.tracing import TRACEPARENT

_HTTP_OF = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
}
"""As refusals at the HTTP door are counted; anything else is 500."""


class TelemetryInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Goes before all other interceptors."""

    def __init__(self, telemetry: Telemetry) -> None:
        """Keep where to tell."""
        self._telemetry = telemetry

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """See `grpc.aio.ServerInterceptor`."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        dialect = dialect_of_method(method)
        if handler is None or dialect is None:
            return handler
        metadata = dict(handler_call_details.invocation_metadata)
        return _observed(handler, method, dialect, metadata.get(TRACEPARENT), self._telemetry)


def _observed(handler: Any, method: str, dialect: str, traceparent: str | None, telemetry: Telemetry) -> Any:
    kinds = {
        (False, False): (grpc.unary_unary_rpc_method_handler, handler.unary_unary),
        (False, True): (grpc.unary_stream_rpc_method_handler, handler.unary_stream),
        (True, False): (grpc.stream_unary_rpc_method_handler, handler.stream_unary),
        (True, True): (grpc.stream_stream_rpc_method_handler, handler.stream_stream),
    }
    make_handler, behavior = kinds[handler.request_streaming, handler.response_streaming]

    async def call(request: Any, context: Any) -> Any:
        served = Call(dialect, telemetry.tracer.begin(method, traceparent))
        error: BaseException | None = None
        try:
            with serving(served):
                return await behavior(request, context)
        except grpc.aio.AbortError as raised:
            error = raised
            telemetry.refused_at_the_door(served, _HTTP_OF.get(context.code(), 500))
            raise
        except BaseException as raised:
            error = raised
            raise
        finally:
            served.span.end(error)

    return make_handler(call, handler.request_deserializer, handler.response_serializer)
