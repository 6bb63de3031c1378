"""Which dialect a call speaks, told by its path: the label `dialect`."""

from __future__ import annotations

from gateway.dialects.grpc import riva_grpc, tts_grpc
from gateway.dialects.openai import http as openai_http
from gateway.dialects.speech_ws import socket as speech_ws

OPENAI, SPEECH_WS, ELEVENLABS = "openai", "websocket", "elevenlabs"
RIVA, TTS = "riva", "grpc"
DIALECTS = (OPENAI, SPEECH_WS, ELEVENLABS, RIVA, TTS)
_ELEVENLABS_PREFIX = "/v1/text-to-speech/"
_EXACT = {openai_http.PATH: OPENAI, speech_ws.PATH: SPEECH_WS}
_GRPC = {f"/{riva_grpc.SERVICE_NAME}/": RIVA, f"/{tts_grpc.SERVICE_NAME}/": TTS}


def dialect_of_path(path: str) -> str | None:
    """Return the dialect of an HTTP path or socket; None if no speech is asked for there."""
    return ELEVENLABS if path.startswith(_ELEVENLABS_PREFIX) else _EXACT.get(path)


def dialect_of_method(method: str) -> str | None:
    """Return the dialect of a full gRPC method name; None if it is not of a speech service."""
    return next((dialect for prefix, dialect in _GRPC.items() if method.startswith(prefix)), None)
