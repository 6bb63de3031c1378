"""A small client of each door: speaks one text and hands on its audio, 16-bit PCM at 24 kHz, as it comes."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import httpx
from riva.proto import riva_tts_pb2, riva_tts_pb2_grpc
from tts_api.tts.v1 import speech_pb2, tts_service_pb2, tts_service_pb2_grpc
from websockets.sync.client import connect
from wyoming.audio import AudioChunk
from wyoming.client import AsyncTcpClient
from wyoming.tts import Synthesize, SynthesizeVoice

from cosydit.certify.check import CheckFailedError
from cosydit.certify.context import VOICE
from cosydit.stack.stack import StackOptions
from gateway.client import OnAudio, speak_over_grpc, speak_over_http
from servicekit.clock import SystemClock
from servicekit.timeouts import timeout
from token2wav_service.contract import SAMPLE_RATE_HZ

TIMEOUT_S = 120.0
_MAX_MESSAGE = 1 << 24
# The stubs have no types.
_tts_stub: Callable[[Any], Any] = tts_service_pb2_grpc.TextToSpeechServiceStub
_riva_stub: Callable[[Any], Any] = riva_tts_pb2_grpc.RivaSpeechSynthesisStub

Door = Callable[[StackOptions, int, str, OnAudio], object]
"""Takes where the services are, the port of Wyoming's door, a text, and what hears the audio."""


def _openai(options: StackOptions, wyoming_port: int, text: str, hear: OnAudio) -> None:
    speak_over_http(options.gateway_url, text, VOICE, hear, SystemClock(), TIMEOUT_S, seed=1)


def _elevenlabs(options: StackOptions, wyoming_port: int, text: str, hear: OnAudio) -> None:
    url = f"{options.gateway_url}/v1/text-to-speech/{VOICE}/stream?output_format=pcm_24000"
    with (
        httpx.Client(timeout=TIMEOUT_S, trust_env=False) as client,
        client.stream("POST", url, json={"text": text, "seed": 1}) as response,
    ):
        if response.status_code != httpx.codes.OK:
            raise CheckFailedError(f"{url} answered {response.status_code}: {response.read()[:300]!r}")
        for pcm in response.iter_bytes():
            hear(pcm)


def _speech_socket(options: StackOptions, wyoming_port: int, text: str, hear: OnAudio) -> None:
    messages = (
        {"type": "session.config", "voice": VOICE, "response_format": "pcm", "stream_audio": True},
        {"type": "input.text", "text": text},
        {"type": "input.done"},
    )
    for answer in _socket_answers(options, "/v1/audio/speech/stream", messages):
        if isinstance(answer, bytes):
            hear(answer)
        elif answer.get("type") == "error":
            raise CheckFailedError(str(answer))
        elif answer.get("type") == "session.done":
            return


def _elevenlabs_socket(options: StackOptions, wyoming_port: int, text: str, hear: OnAudio) -> None:
    path = f"/v1/text-to-speech/{VOICE}/stream-input?output_format=pcm_24000"
    messages = ({"text": " "}, {"text": f"{text} ", "flush": True}, {"text": ""})
    for answer in _socket_answers(options, path, messages):
        if isinstance(answer, dict) and answer.get("audio"):
            hear(base64.b64decode(answer["audio"]))
        if isinstance(answer, dict) and answer.get("isFinal"):
            return


def _socket_answers(options: StackOptions, path: str, messages: tuple[dict[str, Any], ...]) -> Iterator[Any]:
    """Yield binary messages as they are, and texts as what their JSON says, until the door closes."""
    url = f"ws{options.gateway_url.removeprefix('http')}{path}"
    with connect(url, proxy=None, max_size=_MAX_MESSAGE, open_timeout=TIMEOUT_S) as socket:
        for message in messages:
            socket.send(json.dumps(message))
        for raw in socket:
            yield raw if isinstance(raw, bytes) else json.loads(raw)


def _grpc(options: StackOptions, wyoming_port: int, text: str, hear: OnAudio) -> None:
    config = speech_pb2.SpeechConfig(voice=speech_pb2.Voice(name=VOICE))
    request = tts_service_pb2.SynthesizeRequest(text=text, config=config)
    with grpc.insecure_channel(f"127.0.0.1:{options.ports.gateway_grpc}") as channel:
        for answer in _tts_stub(channel).Synthesize(request, timeout=TIMEOUT_S):
            hear(answer.audio.content)


def _riva(options: StackOptions, wyoming_port: int, text: str, hear: OnAudio) -> None:
    request = riva_tts_pb2.SynthesizeSpeechRequest(text=text, voice_name=VOICE, sample_rate_hz=SAMPLE_RATE_HZ)
    with grpc.insecure_channel(f"127.0.0.1:{options.ports.gateway_grpc}") as channel:
        for answer in _riva_stub(channel).SynthesizeOnline(iter([request]), timeout=TIMEOUT_S):
            hear(answer.audio)


def _wyoming(options: StackOptions, wyoming_port: int, text: str, hear: OnAudio) -> None:
    async def listen() -> None:
        async with timeout(TIMEOUT_S), AsyncTcpClient("127.0.0.1", wyoming_port) as client:
            await client.write_event(Synthesize(text=text, voice=SynthesizeVoice(name=VOICE)).event())
            while (event := await client.read_event()) is not None and event.type != "audio-stop":
                if event.type == "error":
                    raise CheckFailedError(str(event.data))
                if AudioChunk.is_type(event.type):
                    hear(AudioChunk.from_event(event).audio)

    asyncio.run(listen())


def _triton(options: StackOptions, wyoming_port: int, text: str, hear: OnAudio) -> None:
    speak_over_grpc(options.token2wav_url, text, None, None, hear, SystemClock(), TIMEOUT_S)


DOORS: dict[str, Door] = {
    "openai": _openai,
    "elevenlabs": _elevenlabs,
    "speech-socket": _speech_socket,
    "elevenlabs-socket": _elevenlabs_socket,
    "grpc": _grpc,
    "riva": _riva,
    "wyoming": _wyoming,
    "triton": _triton,
}
