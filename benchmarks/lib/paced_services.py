"""Both services as the gateway sees them over its sockets, without models: tokens and audio come at a steady pace.

`python -m benchmarks.lib.paced_services LLM_PORT TOKENS_PORT TOKEN2WAV_PORT [CAPACITY [SPEECH_S]]` runs until it is
stopped. With CAPACITY all answers of the LLM together get so many seconds of speech a second, in turns. The LLM answers
as vLLM does, SPEECH_S seconds of speech (8) in events of TOKENS_AN_EVENT tokens, and on TOKENS_PORT, over gRPC, as our
own engine does; token2wav answers each chunk with a constant, in Triton's own inference messages.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
from aiohttp import web
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import deserialize_bytes_tensor, np_to_triton_dtype, serialize_byte_tensor, triton_to_np_dtype
from tts_api.llm.v1 import speech_token_service_pb2 as messages
from tts_api.llm.v1 import speech_token_service_pb2_grpc as stubs

from llm_service.embedded.answer import output_wait_s
from llm_service.vocab import COSYVOICE2
from servicekit.process import exempt_startup_objects
from token2wav_service.contract import (
    LOOKAHEAD_TOKENS,
    SAMPLES_PER_TOKEN,
    TOKEN2WAV_MODEL,
    TOKEN_RATE_HZ,
    Operation,
    ServerStatus,
)
from token2wav_service.voice_file import VoiceFile, encode_voice_file

Tensors = dict[str, npt.NDArray[Any]]
"""Tensors by name; BYTES are object arrays of bytes."""


def read_tensors(request: Any) -> Tensors:
    """Return what a ModelInferRequest with raw contents carries, every tensor in its shape."""
    tensors: Tensors = {}
    for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True):
        if tensor.datatype == "BYTES":
            flat = deserialize_bytes_tensor(raw)
        else:
            flat = np.frombuffer(raw, triton_to_np_dtype(tensor.datatype))
        tensors[tensor.name] = flat.reshape(tuple(tensor.shape))
    return tensors


def text_of(tensor: npt.NDArray[Any]) -> str:
    """Return a BYTES tensor's only value as text; what is no UTF-8 is replaced."""
    value: bytes = tensor.item()
    return value.decode(errors="replace")


def bytes_tensor(value: bytes) -> npt.NDArray[Any]:
    """Return a BYTES tensor, shape (1,)."""
    return np.array([value], np.object_)


def stream_response(request_id: str, tensors: Mapping[str, npt.NDArray[Any]], is_final: bool = True) -> Any:
    """Return a ModelStreamInferResponse that carries these tensors.

    Args:
        request_id: of the request that it answers.
        tensors: by name; BYTES are object arrays of bytes.
        is_final: the request gets no further response (Triton's parameter `triton_final_response`).
    """
    response = service_pb2.ModelInferResponse(id=request_id)
    for name, value in tensors.items():
        response.outputs.add(name=name, datatype=np_to_triton_dtype(value.dtype), shape=value.shape)
        raw = serialize_byte_tensor(value).item() if value.dtype == np.object_ else value.tobytes()
        response.raw_output_contents.append(raw)
    response.parameters["triton_final_response"].bool_param = is_final
    return service_pb2.ModelStreamInferResponse(infer_response=response)


HOST = "127.0.0.1"
SPEECH_S, TOKENS_AN_EVENT = 8.0, 4
"""Seconds of an answer, and tokens of one event."""
EVENT_S = 0.012
"""Seconds between two events: 3 ms a token, as measured at 10 callers of one H200."""
STEP_S = 0.01
"""Seconds from a window to its audio."""
TOKEN_STEP_S = 0.0015
"""Seconds of a step at 100 answers."""
PROMPT_TOKENS = 125
_VOICE = VoiceFile(
    "paced",
    np.zeros(PROMPT_TOKENS, np.int32),
    np.zeros((2 * PROMPT_TOKENS, 80), np.float32),
    np.zeros(192, np.float32),
)
_STATUS = ServerStatus(400, 0, 0, None, is_draining=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until stopped."""
    llm_port, tokens_port, token2wav_port, *numbers = sys.argv[1:] if argv is None else argv
    application = llm_application(*(float(number) for number in numbers))
    tokens = PacedTokens(*(float(number) for number in numbers[1:]))
    asyncio.run(_serve(int(llm_port), int(tokens_port), int(token2wav_port), application, tokens))
    return 0


async def _serve(
    llm_port: int, tokens_port: int, token2wav_port: int, llm: web.Application, stream: PacedTokens
) -> None:
    server = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(PacedToken2Wav(), server)
    server.add_insecure_port(f"{HOST}:{token2wav_port}")
    await server.start()
    tokens = grpc.aio.server()
    stubs.add_SpeechTokenServiceServicer_to_server(stream, tokens)  # type: ignore[no-untyped-call]
    add_health(tokens)
    tokens.add_insecure_port(f"{HOST}:{tokens_port}")
    await tokens.start()
    runner = web.AppRunner(llm, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, HOST, llm_port).start()
    await server.wait_for_termination()


def add_health(server: grpc.aio.Server) -> None:
    """Have a server say that it serves."""
    health_pb2_grpc.add_HealthServicer_to_server(health_aio.HealthServicer(), server)


class PacedTokens(stubs.SpeechTokenServiceServicer):
    """The stream of tokens of our own engine: a token a step for all behind their pace, packs behind the first ones."""

    def __init__(self, speech_s: float = SPEECH_S) -> None:
        """Take the seconds of speech of each answer."""
        self._tokens = round(speech_s * TOKEN_RATE_HZ)

    async def GenerateMany(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """See proto/tts_api/llm/v1."""
        drawn: dict[int, _Drawn] = {}
        taking = asyncio.ensure_future(_take(requests, drawn))
        try:
            while True:
                await asyncio.sleep(TOKEN_STEP_S)
                parts = [part for number in list(drawn) if (part := _part(number, drawn, self._tokens)) is not None]
                if parts:
                    yield messages.GenerateManyResponse(parts=parts)
        finally:
            taking.cancel()


@dataclass
class _Drawn:
    """Tokens of one answer: drawn, sent and asked for at once."""

    head_start: int
    tokens_per_s: float
    """Pace behind the head start; 0: a token a step."""
    began_s: float
    count: int = 0
    sent: int = 0
    wait_until_s: float = 0.0
    """Time at which those that are not sent go out."""


async def _take(requests: AsyncIterator[Any], drawn: dict[int, _Drawn]) -> None:
    async for message in requests:
        for begun in message.begin:
            asked = begun.request
            drawn[begun.number] = _Drawn(asked.head_start_tokens, asked.tokens_per_s, time.monotonic())
        for number in message.cancel:
            drawn.pop(number, None)


def _part(number: int, drawn: dict[int, _Drawn], tokens: int) -> Any | None:
    """Draw one token of an answer, unless it is ahead of its pace; return what goes out by now."""
    answer, now_s = drawn[number], time.monotonic()
    if 0.0 < answer.tokens_per_s * (now_s - answer.began_s) < answer.count - answer.head_start:
        return None
    answer.count += 1
    is_last = answer.count >= tokens
    if is_last:
        del drawn[number]
    if not is_last and (answer.count < answer.head_start or now_s < answer.wait_until_s):
        return None
    answer.wait_until_s = now_s + output_wait_s(answer.count, now_s - answer.began_s)
    ids, answer.sent = range(answer.sent, answer.count), answer.count
    reason = messages.FINISH_REASON_STOP if is_last else messages.FINISH_REASON_UNSPECIFIED
    response = messages.GenerateResponse(speech_ids=ids, finish_reason=reason)
    return messages.NumberedPart(number=number, response=response)


class SharedPace:
    """Deals out the turns of an LLM that makes so many seconds of speech a second for all its answers together."""

    def __init__(self, capacity: float) -> None:
        """Begin idle."""
        self._event_s = TOKENS_AN_EVENT / TOKEN_RATE_HZ / capacity
        self._free_s = 0.0

    async def turn(self) -> None:
        """Wait until one more event is made; who asks first is served first."""
        now_s = asyncio.get_running_loop().time()
        self._free_s = max(self._free_s, now_s) + self._event_s
        await asyncio.sleep(self._free_s - now_s)


def llm_application(capacity: float | None = None, speech_s: float = SPEECH_S) -> web.Application:
    """Return the LLM's HTTP server.

    Args:
        capacity: seconds of speech a second of all answers together; None: each has the same pace, however many.
        speech_s: seconds of speech of each answer.
    """
    tokens = max(1, round(speech_s * TOKEN_RATE_HZ))
    pace = None if capacity is None else SharedPace(capacity)

    async def complete(request: web.Request) -> web.StreamResponse:
        return await _complete(request, pace, tokens)

    async def health(request: web.Request) -> web.Response:
        return web.Response()

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "paced", "object": "model"}]})

    application = web.Application()
    application.router.add_get("/health", health)
    application.router.add_get("/v1/models", models)
    application.router.add_post("/v1/completions", complete)
    return application


async def _complete(request: web.Request, pace: SharedPace | None, tokens: int) -> web.StreamResponse:
    await request.read()
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for first in range(0, tokens, TOKENS_AN_EVENT):
        until = min(first + TOKENS_AN_EVENT, tokens)
        ids = [COSYVOICE2.llm_id(place) for place in range(first, until)]
        end = "stop" if until == tokens else None
        choice = {"index": 0, "text": "", "logprobs": None, "finish_reason": end, "token_ids": ids}
        event = {"id": "cmpl-0", "object": "text_completion", "created": 0, "model": "paced", "choices": [choice]}
        if pace is not None:
            await pace.turn()
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        if pace is None:
            await asyncio.sleep(EVENT_S)
    await response.write(b"data: [DONE]\n\n")
    return response


class PacedToken2Wav(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Triton's gRPC service, with token2wav's model alone."""

    async def ModelReady(self, request: Any, context: Any) -> Any:
        """See Triton's protocol."""
        return service_pb2.ModelReadyResponse(ready=request.name == TOKEN2WAV_MODEL)

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """See `token2wav_service.contract`."""
        lease = ""
        async for request in requests:
            tensors = read_tensors(request)
            operation = Operation(text_of(tensors["operation"]))
            if operation is Operation.OPEN:
                lease = request.id
                yield stream_response(lease, {"stream_id": bytes_tensor(b"paced")}, is_final=False)
            elif operation is Operation.PUSH:
                is_last = bool(tensors["is_last"].item())
                spoken = tensors["token_ids"].size - (0 if is_last else LOOKAHEAD_TOKENS)
                await asyncio.sleep(STEP_S)
                yield stream_response(request.id, {"waveform": np.full(spoken * SAMPLES_PER_TOKEN, 0.1, np.float32)})
                if is_last:
                    yield stream_response(lease, {"stream_summary": bytes_tensor(b'{"status": "finished"}')})
            else:
                yield stream_response(request.id, _answer_alone(operation))


def _answer_alone(operation: Operation) -> Tensors:
    """Answer what is no stream's."""
    if operation is Operation.STATUS:
        return {"status": bytes_tensor(_STATUS.to_json().encode())}
    if operation is Operation.EXPORT_VOICE:
        return {"voice_file": bytes_tensor(encode_voice_file(_VOICE))}
    if operation in (Operation.REGISTER_VOICE, Operation.IMPORT_VOICE):
        return {"voice_id": bytes_tensor(b"voice"), "prompt_speech_tokens": np.zeros(PROMPT_TOKENS, np.int32)}
    return {}


if __name__ == "__main__":
    exempt_startup_objects()
    sys.exit(main())
