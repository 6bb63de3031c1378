"""The list of everything that may be asked of a gateway: addresses of HTTP, calls of gRPC, models of Triton."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from riva.proto import riva_tts_pb2
from tts_api.tts.v1 import tts_service_pb2

from gateway.doors.endpoints import ENDPOINTS, WEBSOCKET, Door
from sources.markdown import WARNING, code, table
from token2wav_service.contract import DROP_IN_MODEL, TOKEN2WAV_MODEL

SERVICES: tuple[ServiceDescriptor, ...] = (
    tts_service_pb2.DESCRIPTOR.services_by_name["TextToSpeechService"],
    riva_tts_pb2.DESCRIPTOR.services_by_name["RivaSpeechSynthesis"],
    health_pb2.DESCRIPTOR.services_by_name["Health"],
    reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"],
)
"""Of the gRPC port."""
_PAGES = {
    Door.OPENAI: "[OpenAI](openai.md)",
    Door.VOICES: "[voices](../voices.md)",
    Door.OMNI: "[vllm-omni, sglang-omni](websockets.md#speech-stream)",
    Door.ELEVENLABS: "[ElevenLabs](websockets.md#elevenlabs)",
    Door.GATEWAY: "[the gateway](index.md)",
    Door.PAGE: "pages",
}
_INTRODUCTION = """# All endpoints

This page lists every request that a gateway answers; a script makes it from the code. A running gateway shows the HTTP
endpoints, with their fields, at `/docs`, and as OpenAPI 3.1 at `/openapi.json` ([the same as a file](openapi.json)).
Both need no API key.
"""


def page() -> str:
    """Return the page."""
    parts = [
        WARNING,
        _INTRODUCTION.strip(),
        "## HTTP and WebSockets, port 8080",
        table(("", "address", "door", "what it does"), _http_rows()),
        "## Only on `--metrics-port`",
        table(("", "address", "what it does"), _METRICS_PORT),
        "## gRPC, port 50051",
        table(("service", "call", "takes", "answers"), _grpc_rows()),
        "The fields: [gRPC](grpc.md).",
        "## Wyoming, port 10200",
        table(("event", "answers", "what it does"), WYOMING),
        "Home Assistant's protocol: [smart homes](../smart-home.md#home-assistant).",
        "## Triton, port 8001",
        table(("model", "for"), _TRITON),
    ]
    return "\n\n".join(parts) + "\n"


_METRICS_PORT = (
    ("GET", code("/metrics"), "Metrics for Prometheus."),
    ("GET", code("/livez"), "200 while the event loop turns, 503 once it has stood still for 15 s."),
)
WYOMING = (
    (code("describe"), code("info"), "List the voices."),
    (code("ping"), code("pong"), "Show that the connection lives."),
    (code("synthesize"), "`audio-start`, `audio-chunk` ..., `audio-stop`", "Speak a text."),
    (
        "`synthesize-start`, `synthesize-chunk` ..., `synthesize-stop`",
        "the same, and `synthesize-stopped`",
        "Speak a text that is still being written.",
    ),
)
_TRITON = (
    (f"[{code(DROP_IN_MODEL)}](triton.md)", "For programs that were written for the original runtime."),
    (f"[{code(TOKEN2WAV_MODEL)}](triton.md#token2wav_dit)", "For the gateway itself: speech tokens to audio."),
)


def _http_rows() -> Iterator[tuple[str, ...]]:
    for each in ENDPOINTS:
        method = "WebSocket" if each.method == WEBSOCKET else each.method
        yield method, code(each.path.replace(":path", "")), _PAGES[each.door], each.summary


def _grpc_rows() -> Iterator[tuple[str, ...]]:
    for service in SERVICES:
        for call in service.methods:
            takes = ("stream " if call.client_streaming else "") + code(call.input_type.name)
            answers = ("stream " if call.server_streaming else "") + code(call.output_type.name)
            yield code(service.full_name), code(call.name), takes, answers
