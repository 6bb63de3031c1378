"""Receives spans over OTLP/HTTP, as a collector does: protobuf from Python, JSON from Triton."""

from __future__ import annotations

import base64
import gzip
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.workers import QuietHandler, listening

PATIENCE_S = 10.0
_IDS = ("traceId", "spanId", "parentSpanId")


@dataclass(frozen=True)
class ReceivedSpan:
    """A span, and its service."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int


@dataclass
class Receiver:
    """What has come so far."""

    url: str
    spans: list[ReceivedSpan] = field(default_factory=list)

    def trace(self, trace_id: str) -> list[ReceivedSpan]:
        """Return one trace's spans by their begin."""
        return sorted((span for span in self.spans if span.trace_id == trace_id), key=lambda span: span.start_ns)

    def wait(self, trace_id: str, is_whole: Callable[[list[ReceivedSpan]], bool]) -> list[ReceivedSpan] | None:
        """Return a trace once it is whole; None: it was not in time (an exporter drops what it cannot send)."""
        deadline = time.monotonic() + PATIENCE_S
        while not is_whole(self.trace(trace_id)):
            if time.monotonic() > deadline:
                return None
            time.sleep(0.1)
        return self.trace(trace_id)

    def received(self, trace_id: str) -> str:
        """Say how many spans each service sent, of this trace and at all."""
        of_trace = Counter(span.service for span in self.trace(trace_id))
        of_all = Counter(span.service for span in self.spans)
        return ", ".join(f"{service}: {of_trace[service]} of {n}" for service, n in of_all.items())


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Listen on a free port of this machine."""

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            is_json = self.headers["content-type"].startswith("application/json")
            receiver.spans += _spans_of(_from_json(body) if is_json else ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

    with listening(Handler) as port:
        receiver = Receiver(f"http://127.0.0.1:{port}")
        yield receiver


def _spans_of(request: ExportTraceServiceRequest) -> list[ReceivedSpan]:
    return [
        ReceivedSpan(
            service=next(a.value.string_value for a in resource.resource.attributes if a.key == "service.name"),
            name=span.name,
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            start_ns=span.start_time_unix_nano,
            end_ns=span.end_time_unix_nano,
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _from_json(body: bytes) -> ExportTraceServiceRequest:
    """Parse OTLP's JSON, whose ids are hexadecimal where protobuf's JSON has base64."""
    document = json.loads(body)
    for resource in document["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for name in _IDS:
                    if name in span:
                        span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    request = ExportTraceServiceRequest()
    json_format.ParseDict(document, request, ignore_unknown_fields=True)
    return request
