"""What attackers' inputs are made of: bodies, messages and frames. Pure."""

from __future__ import annotations

import random
import struct
from functools import cache

from riva.proto import riva_tts_pb2
from tts_api.tts.v1 import speech_pb2, tts_service_pb2

from lab.attack.target import LOUD
from tests.gateway.voices.recorded import matroska
from tests.raw_clients import HOST, PREFACE, SETTINGS, frame

MIB = 2**20
LARGEST = 4 * MIB - 5
"""Bytes of the largest message that gRPC's door takes."""
SPEECH = "/v1/audio/speech"
_VOICES = "/v1/audio/voices"
_PING_ACK = frame(6, 1, 0, bytes(8))


@cache
def film(rate_hz: float) -> bytes:
    return matroska(rate_hz)


def _entries(field: str, most: int) -> str:
    """Write as many entries as fit."""
    is_map = field == "pronunciations"
    entries = ", ".join(f'"w{number}": "v"' if is_map else f'"w{number}"' for number in range(most // 8))
    opened, closed = ("{", "}") if is_map else ("[", "]")
    within = entries[:most].rpartition(", ")[0] or entries
    return f'"{field}": {opened}{within}{closed}'


@cache
def speech(field: str) -> bytes:
    return f'{{"model": "m", "voice": "default", "input": "Hello.", {_entries(field, MIB - 300)}}}'.encode()


@cache
def tiny_temperature() -> bytes:
    return b'{"model": "m", "voice": "default", "input": "Hello.", "response_format": "pcm", "temperature": 5e-324}'


@cache
def config(count: int) -> bytes:
    config = speech_pb2.SpeechConfig(pronunciations={f"word{number}": "v" for number in range(count)})
    return bytes(tts_service_pb2.SynthesizeRequest(text="Hello.", config=config).SerializeToString()[:LARGEST])


@cache
def dictionary(megabytes: float) -> bytes:
    words = ",".join(f"w{number}  v" for number in range(int(megabytes * MIB / 12)))
    request = riva_tts_pb2.SynthesizeSpeechRequest(text="hello", sample_rate_hz=24000, custom_dictionary=words)
    return bytes(request.SerializeToString())


def head(rng: random.Random) -> bytes:
    return b"GET / HTTP/1.1\r\nx: " + b"x" * rng.randrange(60_000)


def body(rng: random.Random) -> bytes:
    head = f"POST /v1/audio/speech HTTP/1.1\r\nhost: {HOST}\r\nauthorization: Bearer {LOUD}\r\n"
    return f"{head}content-length: {MIB}\r\n\r\n".encode() + b" " * rng.randrange(MIB // 2, MIB)


def event(rng: random.Random) -> bytes:
    return b'{"type": "synthesize", "data_length": 1000000}\n' + b" " * rng.randrange(900_000)


def garbage(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(1, 100_000))


@cache
def settings() -> str:
    return f'{{"type": "session.config", {_entries("pronunciations", 250_000)}}}'


def _request(path: str, *headers: str) -> bytes:
    lines = (f"POST {path} HTTP/1.1", f"host: {HOST}", f"authorization: Bearer {LOUD}", *headers)
    return "\r\n".join((*lines, "", "")).encode()


def chunks(rng: random.Random) -> bytes:
    """Make a body of many chunks of a byte."""
    head = _request(SPEECH, "content-type: application/json", "transfer-encoding: chunked")
    return head + b"1\r\n \r\n" * rng.randrange(20_000, 80_000)


def headers(rng: random.Random) -> bytes:
    """Make a head of many short lines."""
    return b"GET /healthz HTTP/1.1\r\nhost: x\r\n" + b"a:b\r\n" * rng.randrange(2000, 12_000) + b"\r\n"


def form(rng: random.Random) -> bytes:
    """Make a form whose only part has many short headers."""
    body = b"--b\r\n" + b"a:b\r\n" * rng.randrange(20_000, 100_000)
    kind = "content-type: multipart/form-data; boundary=b"
    return _request(_VOICES, kind, f"content-length: {len(body) + 100}") + body


def parts(rng: random.Random) -> bytes:
    """Make a form of many empty parts."""
    body = b'--b\r\ncontent-disposition: form-data; name="a"\r\n\r\n\r\n' * rng.randrange(2000, 8000)
    kind = "content-type: multipart/form-data; boundary=b"
    return _request(_VOICES, kind, f"content-length: {len(body) + 100}") + body


def pipelined(rng: random.Random) -> bytes:
    """Make many requests."""
    return b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n" * rng.randrange(1000, 5000)


def escapes() -> bytes:
    """Make JSON whose only long string is nothing but escapes."""
    return b'{"model": "m", "voice": "default", "input": "' + b"\\n" * (MIB // 2 - 100) + b'"}'


def events(rng: random.Random) -> bytes:
    """Make many small events."""
    return b'{"type": "ping"}\n' * rng.randrange(5000, 30_000)


def frames(rng: random.Random) -> bytes:
    """Make many small frames of HTTP/2."""
    return PREFACE + frame(SETTINGS, 0, 0) + _PING_ACK * rng.randrange(10_000, 60_000)


def data_frames(rng: random.Random) -> bytes:
    """Make a message in frames of a byte; the call it belongs to was never begun."""
    return PREFACE + frame(SETTINGS, 0, 0) + frame(0, 0, 1, struct.pack(">B", 0)) * rng.randrange(10_000, 60_000)
