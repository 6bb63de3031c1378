"""`servicekit.tracing` on OpenTelemetry's SDK; imported only where tracing is on."""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from servicekit.tracing import TRACEPARENT, Attribute, Span, SpanKind, Tracer

_SCOPE = "cosydit"
_TRACES_PATH = "/v1/traces"
_KINDS = {
    SpanKind.INTERNAL: trace.SpanKind.INTERNAL,
    SpanKind.SERVER: trace.SpanKind.SERVER,
    SpanKind.CLIENT: trace.SpanKind.CLIENT,
}
_PROPAGATOR = TraceContextTextMapPropagator()


class OtelTracer(Tracer):
    """Records through a provider of its own; OpenTelemetry's global one is left alone."""

    def __init__(self, service: str, processor: SpanProcessor) -> None:
        """Hand finished spans to `processor`."""
        self._provider = TracerProvider(resource=Resource.create({SERVICE_NAME: service}))
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer(_SCOPE)

    @classmethod
    def to(cls, service: str, endpoint: str) -> OtelTracer:
        """Send spans in batches to an OTLP/HTTP receiver."""
        exporter = OTLPSpanExporter(endpoint=endpoint.rstrip("/") + _TRACES_PATH)
        return cls(service, BatchSpanProcessor(exporter))

    def begin(self, name: str, traceparent: str | None, kind: SpanKind = SpanKind.SERVER) -> Span:
        """See `Tracer.begin`."""
        carrier = {TRACEPARENT: traceparent} if traceparent else {}
        parent = _PROPAGATOR.extract(carrier, context=Context())
        return _OtelSpan(self._tracer, self._tracer.start_span(name, context=parent, kind=_KINDS[kind]))

    def close(self) -> None:
        """See `Tracer.close`."""
        self._provider.shutdown()


class _OtelSpan(Span):
    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        self._tracer = tracer
        self._span = span

    @property
    def traceparent(self) -> str | None:
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, context=self._context())
        return carrier.get(TRACEPARENT)

    @property
    def trace_id(self) -> str | None:
        return trace.format_trace_id(self._span.get_span_context().trace_id)

    def child(self, name: str, kind: SpanKind = SpanKind.INTERNAL, start_ns: int | None = None) -> Span:
        span = self._tracer.start_span(name, context=self._context(), kind=_KINDS[kind], start_time=start_ns)
        return _OtelSpan(self._tracer, span)

    def note(self, **attributes: Attribute) -> None:
        self._span.set_attributes({name.replace("__", "."): value for name, value in attributes.items()})

    def event(self, name: str) -> None:
        self._span.add_event(name)

    def end(self, error: BaseException | None = None, end_ns: int | None = None) -> None:
        if error is not None:
            self._span.set_status(StatusCode.ERROR, f"{type(error).__name__}: {error}")
        self._span.end(end_time=end_ns)

    def _context(self) -> Context:
        return trace.set_span_in_context(self._span, Context())
