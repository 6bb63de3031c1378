"""The list of everything that may be asked of a gateway: addresses of HTTP, calls of gRPC, models of Triton."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus

from fastapi.routing import APIRoute
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from prometheus_client import CollectorRegistry
from riva.proto import riva_tts_pb2
from tts_api.tts.v1 import tts_service_pb2

from gateway.dialects.endpoints import Door, shown_of
from gateway.doors.http import build_app
from sources.markdown import WARNING, code, listing
from token2wav_service.contract import DROP_IN_MODEL, TOKEN2WAV_MODEL

SERVICES: tuple[ServiceDescriptor, ...] = (
    tts_service_pb2.DESCRIPTOR.services_by_name["TextToSpeechService"],
    riva_tts_pb2.DESCRIPTOR.services_by_name["RivaSpeechSynthesis"],
    health_pb2.DESCRIPTOR.services_by_name["Health"],
    reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"],
)
"""Of the gRPC port."""
ROUTES = build_app(None, CollectorRegistry()).routes  # type: ignore[arg-type]
SHOWN = shown_of(ROUTES)
"""Every address of the HTTP port."""
_PAGES = {
    Door.OPENAI: "[OpenAI](openai.md)",
    Door.VOICES: "[Voices](../voices.md)",
    Door.OMNI: "[vllm-omni, sglang-omni](websockets.md#speech-stream)",
    Door.ELEVENLABS: "[ElevenLabs](websockets.md#elevenlabs)",
    Door.GATEWAY: "[The gateway](index.md)",
    Door.PAGE: "Pages",
}
_INTRODUCTION = """# All endpoints

Every request that a gateway answers. A running gateway shows those of HTTP, with their fields, at `/docs`, and as
OpenAPI 3.1 at `/openapi.json` ([the same as a file](openapi.json)). Both need no API key.

## HTTP and WebSockets, port 8080
"""
_METRICS_PORT = """Only on `--metrics-port`:

- `GET /metrics`: Metrics for Prometheus
- `GET /livez`: 200 while the event loop turns, 503 once it has stood still for 15 s

## gRPC, port 50051

[The fields](grpc.md).
"""
_OTHER_PORTS = f"""## Wyoming, port 10200

Home Assistant's protocol ([smart homes](../smart-home.md#home-assistant)): `describe`, `ping`, `synthesize`, and for
a text that is still being written `synthesize-start`, `synthesize-chunk`, `synthesize-stop`.

## Triton, port 8001

[`{DROP_IN_MODEL}`](triton.md) for programs of the original runtime, [`{TOKEN2WAV_MODEL}`](triton.md#token2wav_dit)
for the gateway.
"""


def page() -> str:
    """Return the page."""
    parts = [WARNING, _INTRODUCTION, *_http(), _METRICS_PORT, listing(_grpc()), _OTHER_PORTS]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _http() -> Iterator[str]:
    for door, title in _PAGES.items():
        yield f"{title}:"
        asked = [each for each in SHOWN if each.tags == [door]]
        yield listing(
            (code(f"{_method_of(each)} {each.path.replace(':path', '')}"), each.summary, "") for each in asked
        )


def _method_of(shown: APIRoute) -> str:
    """Return the method that a description is of; that of a socket is a GET that is answered 101."""
    return "WEBSOCKET" if shown.status_code == HTTPStatus.SWITCHING_PROTOCOLS else next(iter(shown.methods))


def _grpc() -> Iterator[tuple[str, str, str]]:
    for service in SERVICES:
        yield code(service.full_name), ", ".join(code(call.name) for call in service.methods), ""
