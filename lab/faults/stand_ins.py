"""Both services and the gateway as processes of the fault campaign: exact answers, and misbehaviour on request.

`python -m lab.faults.stand_ins llm PORT`, `... token2wav PORT STATE_PORT` and `... gateway ARGUMENTS`. An
answer's tokens follow from its text, and a sample from the stream's seed, its token and its place: whoever takes over
at any point makes the same, so that audio can be compared bit by bit. The gateway is the product's own; SIGUSR1 and
SIGUSR2 set its wall clock an hour forward and back, and a signal of `LACKS` takes something from it or gives it back.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import python_multipart.multipart
from aiohttp import web
from tritonclient.grpc import service_pb2, service_pb2_grpc

from benchmarks.lib.paced_services import bytes_tensor, read_tensors, stream_response, text_of
from gateway.llm.client import LLMDeadlines
from gateway.token2wav.client import Token2WavDeadlines
from llm_service.vocab import COSYVOICE2, SPEECH_TOKEN_COUNT
from token2wav_service.contract import (
    LOOKAHEAD_TOKENS,
    SAMPLES_PER_TOKEN,
    TOKEN2WAV_MODEL,
    Operation,
    ServerStatus,
)
from token2wav_service.voice_file import VoiceFile, encode_voice_file

HOST = "127.0.0.1"
TOKENS, TOKENS_AN_EVENT, EVENT_S = 64, 4, 0.08
"""Tokens of an answer, tokens of an event, seconds of an event: about 2.6 s of speech, made in half the time."""
STEP_S = 0.02
PROMPT_TOKENS = 125
SLOTS = 64
JUMP_S = 3600.0
SILENCE_S = 4.0
LLM_MISBEHAVIOURS = ("status 500", "status 429", "no JSON", "half an event", "foreign tokens", "silence", "early end")
TOKEN2WAV_MISBEHAVIOURS = ("internal error", "not a number", "wrong tensor", "stopping", "no answer", "early end")
NO_FORKS, NO_MEMORY = "failing forks", "no free memory"
LACKS: Mapping[str, tuple[int, type, str, BaseException]] = {
    NO_FORKS: (signal.SIGRTMIN, subprocess.Popen, "__init__", OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))),
    NO_MEMORY: (signal.SIGRTMIN + 1, python_multipart.multipart.MultipartParser, "write", MemoryError()),
}
"""Signal that begins and ends what the gateway lacks; the class and its method that then raise this error. gRPC's core
does not survive a failed allocation, so the memory is taken where a request of HTTP is read."""


@dataclass
class State:
    """What a stand-in has under way, and what it is to do wrong."""

    open: int = 0
    misbehaviour: str | None = None

    def take(self, where: Sequence[str]) -> str | None:
        """Return the misbehaviour if it belongs here, once."""
        found = self.misbehaviour if self.misbehaviour in where else None
        if found is not None:
            self.misbehaviour = None
        return found

    def routes(self) -> list[web.RouteDef]:
        """Return what the campaign asks and orders."""

        async def show(_: web.Request) -> web.Response:
            return web.json_response({"open": self.open, "is_armed": self.misbehaviour is not None})

        async def arm(request: web.Request) -> web.Response:
            self.misbehaviour = request.query.get("misbehaviour") or None
            return web.Response()

        return [web.get("/state", show), web.post("/state", arm)]


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until stopped."""
    kind, *rest = sys.argv[1:] if argv is None else argv
    if kind == "gateway":
        return _gateway(rest)
    ports = [int(text) for text in rest]
    asyncio.run(_serve_llm(*ports) if kind == "llm" else _serve_token2wav(*ports))
    return 0


def _gateway(arguments: list[str]) -> int:
    import gateway.__main__ as program
    from gateway.config import GatewayConfig, parse_args

    def impatient() -> GatewayConfig:
        llm, token2wav = LLMDeadlines(first_token_s=3, between_tokens_s=2.5), Token2WavDeadlines(push_s=3)
        return replace(parse_args(), llm_deadlines=llm, token2wav_deadlines=token2wav)

    real, offset_s = time.time, 0.0

    def jump(number: int, _: FrameType | None) -> None:
        nonlocal offset_s
        offset_s += JUMP_S if number == signal.SIGUSR1 else -JUMP_S

    time.time = lambda: real() + offset_s
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, jump)
    for lack in LACKS.values():
        _fail_on_signal(*lack)
    sys.argv = ["gateway", *arguments]
    program.parse_args = impatient  # type: ignore[attr-defined, assignment]
    return program.main()


def _fail_on_signal(number: int, owner: type, name: str, error: BaseException) -> None:
    """Have a method fail from one signal to the next."""
    real, is_failing = getattr(owner, name), False

    def toggle(_: int, __: FrameType | None) -> None:
        nonlocal is_failing
        is_failing = not is_failing

    def method(*args: Any, **options: Any) -> Any:
        if is_failing:
            raise error
        return real(*args, **options)

    setattr(owner, name, method)
    signal.signal(number, toggle)


async def _serve_llm(port: int) -> None:
    state = State()
    await _listen([*state.routes(), *_llm_routes(state)], port)
    await asyncio.Event().wait()


async def _serve_token2wav(port: int, state_port: int) -> None:
    state = State()
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(ExactToken2Wav(state), server)
    server.add_insecure_port(f"{HOST}:{port}")
    await server.start()
    await _listen(state.routes(), state_port)
    await server.wait_for_termination()


async def _listen(routes: list[web.RouteDef], port: int) -> None:
    application = web.Application(client_max_size=1 << 24)
    application.add_routes(routes)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, HOST, port).start()


def _llm_routes(state: State) -> list[web.RouteDef]:
    async def health(_: web.Request) -> web.Response:
        return web.Response()

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "exact", "object": "model"}]})

    async def complete(request: web.Request) -> web.StreamResponse:
        state.open += 1
        try:
            return await _answer(request, state)
        finally:
            state.open -= 1

    return [web.get("/health", health), web.get("/v1/models", models), web.post("/v1/completions", complete)]


async def _answer(request: web.Request, state: State) -> web.StreamResponse:
    body = await request.json()
    if (wrong := state.take(LLM_MISBEHAVIOURS[:2])) is not None:
        return web.json_response({"error": {"message": wrong}}, status=int(wrong[-3:]))
    text, spoken = _parts(body["prompt"])
    until = min(TOKENS, spoken + int(body["max_tokens"]))
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for first in range(spoken, until, TOKENS_AN_EVENT):
        places = range(first, min(first + TOKENS_AN_EVENT, until))
        wrong = state.take(LLM_MISBEHAVIOURS)
        if not await _write(response, request, _event(text, places, places[-1] + 1 == until), wrong):
            return response
        await asyncio.sleep(EVENT_S)
    await response.write(b"data: [DONE]\n\n")
    return response


async def _write(response: web.StreamResponse, request: web.Request, event: bytes, wrong: str | None) -> bool:
    """Write an event, or what is wrong; False ends the answer."""
    if wrong is None:
        await response.write(event)
        return True
    if wrong == "silence":
        await asyncio.sleep(SILENCE_S)
        return False
    if wrong == "no JSON":
        await response.write(b'data: {"choices": [\xff\xfe}\n\n')
    elif wrong == "foreign tokens":
        await response.write(event.replace(b'"token_ids": [', b'"token_ids": [999999999, -1, '))
    elif wrong == "half an event":
        await response.write(event[: len(event) // 2])
    if request.transport is not None and wrong != "early end":
        request.transport.close()
    return False


def _parts(prompt: list[int]) -> tuple[int, int]:
    """Return what stands for the text, and how many tokens of its answer were spoken before."""
    speech = range(COSYVOICE2.first_id, COSYVOICE2.first_id + SPEECH_TOKEN_COUNT)
    at = len(prompt)
    while at and prompt[at - 1] in speech:
        at -= 1
    return sum((index + 1) * token for index, token in enumerate(prompt[:at])), len(prompt) - at - PROMPT_TOKENS


def _event(text: int, places: range, is_last: bool) -> bytes:
    ids = [COSYVOICE2.llm_id((text + 31 * place) % SPEECH_TOKEN_COUNT) for place in places]
    choice = {"index": 0, "text": "", "finish_reason": "stop" if is_last else None, "token_ids": ids}
    return b"data: " + json.dumps({"object": "text_completion", "choices": [choice]}).encode() + b"\n\n"


def samples_of(seed: int, tokens: npt.NDArray[np.int64], first: int) -> npt.NDArray[np.float32]:
    """Return [N * 960] samples of N tokens that begin at place `first` of their stream."""
    levels = (seed * 7919 + tokens * 131 + np.arange(first, first + len(tokens)) * 17) % 10_007
    return np.repeat((levels / 20_014.0 - 0.25).astype(np.float32), SAMPLES_PER_TOKEN)


_VOICE = VoiceFile(
    "exact", np.zeros(PROMPT_TOKENS, np.int32), np.zeros((2 * PROMPT_TOKENS, 80), np.float32), np.zeros(192, np.float32)
)


class ExactToken2Wav(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Triton's gRPC service, with token2wav's model alone."""

    def __init__(self, state: State) -> None:
        """Keep what the campaign asks for."""
        self._state = state

    async def ModelReady(self, request: Any, context: Any) -> Any:
        """See Triton's protocol."""
        return service_pb2.ModelReadyResponse(ready=request.name == TOKEN2WAV_MODEL)

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """See `token2wav_service.contract`."""
        is_stream = False
        try:
            async for request in requests:
                tensors = read_tensors(request)
                operation = Operation(text_of(tensors["operation"]))
                if operation is Operation.OPEN:
                    self._state.open += 1
                    is_stream, seed, place, lease = True, int(tensors["seed"].item()), 0, request.id
                    yield stream_response(lease, {"stream_id": bytes_tensor(b"exact")}, is_final=False)
                elif operation is Operation.PUSH:
                    await asyncio.sleep(STEP_S)
                    is_last = bool(tensors["is_last"].item())
                    tokens = tensors["token_ids"].astype(np.int64).ravel()
                    tokens = tokens if is_last else tokens[:-LOOKAHEAD_TOKENS]
                    wave = samples_of(seed, tokens, place)
                    place += len(tokens)
                    wrong = self._state.take(TOKEN2WAV_MISBEHAVIOURS)
                    if wrong == "early end":
                        return
                    if wrong == "no answer":
                        await asyncio.sleep(SILENCE_S)
                        return
                    yield _pushed(request.id, wave, wrong)
                    if is_last:
                        yield stream_response(lease, {"stream_summary": bytes_tensor(b'{"status": "finished"}')})
                else:
                    yield stream_response(request.id, self._alone(operation))
        finally:
            self._state.open -= is_stream

    def _alone(self, operation: Operation) -> dict[str, npt.NDArray[Any]]:
        """Answer what is no stream's."""
        if operation is Operation.STATUS:
            status = ServerStatus(SLOTS, self._state.open, 0, None, is_draining=False)
            return {"status": bytes_tensor(status.to_json().encode())}
        if operation is Operation.EXPORT_VOICE:
            return {"voice_file": bytes_tensor(encode_voice_file(_VOICE))}
        if operation in (Operation.REGISTER_VOICE, Operation.IMPORT_VOICE):
            return {"voice_id": bytes_tensor(b"voice"), "prompt_speech_tokens": np.zeros(PROMPT_TOKENS, np.int32)}
        return {}


def _pushed(request_id: str, wave: npt.NDArray[np.float32], wrong: str | None) -> Any:
    if wrong == "not a number":
        return stream_response(request_id, {"waveform": np.full_like(wave, np.nan)})
    if wrong == "wrong tensor":
        return stream_response(request_id, {"waveform": bytes_tensor(b"no samples")})
    if wrong is not None:
        code = "UNAVAILABLE" if wrong == "stopping" else "INTERNAL"
        return service_pb2.ModelStreamInferResponse(error_message=f"{code}: {wrong}")
    return stream_response(request_id, {"waveform": wave})


if __name__ == "__main__":
    sys.exit(main())
