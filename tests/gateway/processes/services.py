"""Both services for a gateway of several processes: real sockets, no models, and speech that goes on until let go."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from aiohttp import web
from tritonclient.grpc import service_pb2, service_pb2_grpc

from benchmarks.lib.paced_services import (
    PacedToken2Wav,
    bytes_tensor,
    llm_application,
    read_tensors,
    stream_response,
    text_of,
)
from llm_service.vocab import COSYVOICE2
from token2wav_service.contract import ErrorCode, Operation, ServerStatus, encode_error

HOST = "127.0.0.1"
SLOTS = 6
HELD_TEXT = "Please hold the line until somebody who can help you is back at their desk, which may take a good while."
"""Spoken until `Services.let_go`; the LLM sees token ids, and knows it by its length."""
_SHORT_TOKENS = 16
"""Shorter texts than this are spoken at once."""
_EVENT_S = 0.02
_TOKENS, _BEGUN = 40, 25


class Services:
    """What the gateway asks; runs in a thread of its own."""

    def __init__(self, llm_port: int, token2wav_port: int) -> None:
        self._ports = llm_port, token2wav_port
        self._may_end = threading.Event()
        self._up = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._short = 0
        """Tokens of the warm-up's prompt, which is the first."""

    def let_go(self) -> None:
        """Have all that is held end."""
        self._may_end.set()

    def hold(self) -> None:
        """Have speech go on from here on."""
        self._may_end.clear()

    async def _serve(self) -> None:
        llm, token2wav = self._ports
        server = grpc.aio.server()
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(_Token2Wav(), server)
        server.add_insecure_port(f"{HOST}:{token2wav}")
        await server.start()
        application = web.Application()
        plain = llm_application()
        for resource in plain.router.resources():
            for route in resource:
                if route.method == "GET":
                    application.router.add_get(resource.canonical, route.handler)
        application.router.add_post("/v1/completions", self._complete)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, HOST, llm).start()
        self._stop = asyncio.Event()
        self._up.set()
        await self._stop.wait()
        await runner.cleanup()
        await server.stop(0)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        try:
            prompt = (await request.json())["prompt"]
            self._short = self._short or len(prompt)
            return await self._answer(request, len(prompt) > self._short + _SHORT_TOKENS)
        except ConnectionResetError:
            return web.Response()  # the gateway wants no more

    async def _answer(self, request: web.Request, is_held: bool) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number in range(_TOKENS):
            while is_held and number == _BEGUN and not self._may_end.is_set():
                await asyncio.sleep(_EVENT_S)
            end = "stop" if number == _TOKENS - 1 else None
            ids = [COSYVOICE2.llm_id(number)]
            choice = {"index": 0, "text": "", "logprobs": None, "finish_reason": end, "token_ids": ids}
            event = {"id": "cmpl-0", "object": "text_completion", "created": 0, "model": "paced", "choices": [choice]}
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    def run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    def wait_until_up(self) -> None:
        assert self._up.wait(30)

    def stop(self) -> None:
        self.let_go()
        self._loop.call_soon_threadsafe(self._stop.set)


class _Token2Wav(PacedToken2Wav):
    """Says how many streams it holds."""

    _open = 0

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async def seen() -> AsyncIterator[Any]:
            async for request in requests:
                operation = Operation(text_of(read_tensors(request)["operation"]))
                if operation is Operation.OPEN:
                    if self._open >= SLOTS:
                        is_full.append(True)
                        return
                    self._open, opened[0] = self._open + 1, True
                yield request

        opened, is_full = [False], list[bool]()
        try:
            async for response in super().ModelStreamInfer(seen(), context):
                yield self._told(response)
            if is_full:
                message = encode_error(ErrorCode.RESOURCE_EXHAUSTED, f"{SLOTS} streams are open")
                yield service_pb2.ModelStreamInferResponse(error_message=message)
        finally:
            self._open -= opened[0]

    def _told(self, response: Any) -> Any:
        """Put our own status in place of the constant one."""
        inferred = response.infer_response
        if all(tensor.name != "status" for tensor in inferred.outputs):
            return response
        status = ServerStatus(SLOTS, self._open, 0, None, is_draining=False)
        return stream_response(inferred.id, {"status": bytes_tensor(status.to_json().encode())})


@contextmanager
def running_services(llm_port: int, token2wav_port: int) -> Iterator[Services]:
    """Serve until the context is left."""
    services = Services(llm_port, token2wav_port)
    thread = threading.Thread(target=services.run, daemon=True)
    thread.start()
    services.wait_until_up()
    try:
        yield services
    finally:
        services.stop()
        thread.join(30)
