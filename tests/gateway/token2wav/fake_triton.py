"""A small gRPC server that speaks token2wav_dit's contract, to test the client over a real connection."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2, service_pb2_grpc

from benchmarks.lib.paced_services import bytes_tensor, read_tensors, stream_response, text_of
from token2wav_service.contract import TOKEN2WAV_MODEL, ErrorCode, encode_error

VOICE_FILE = b"\x00\xffany bytes"


@dataclass
class FakeTriton(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Answers opens and pushes; what it does wrong is set by the test."""

    register_error: str | None = None
    open_error: str | None = None
    push_error: str | None = None
    status: str = ""
    status_error: str | None = None
    is_silent: bool = False
    opens_slowly: bool = False
    """An open waits for the end of the silence."""
    silent_tokens: int | None = None
    """Chunks of so many tokens wait for the end of the silence."""
    ends_early: bool = False
    waveform: npt.NDArray[Any] | None = None
    """Answers every push, instead of what belongs there."""
    open_streams: int = 0
    time_left_s: float | None = math.nan
    """Of the last call when it came; None: as long as it takes."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    silence: asyncio.Event = field(default_factory=asyncio.Event)

    async def ModelReady(self, request: Any, context: Any) -> Any:
        return service_pb2.ModelReadyResponse(ready=request.name == TOKEN2WAV_MODEL)

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        is_open = False
        self.time_left_s = context.time_remaining()
        try:
            async for request in requests:
                tensors = read_plain(request)
                self.requests.append(tensors)
                operation = tensors["operation"]
                is_open = is_open or (operation == "open" and self.open_error is None)
                self.open_streams += operation == "open" and self.open_error is None
                answer = self._answer(operation, request.id, tensors)
                is_held = len(tensors.get("token_ids", ())) == self.silent_tokens
                if self.opens_slowly if operation == "open" else self.is_silent or is_held:
                    await self.silence.wait()
                if self.ends_early and operation == "push":
                    return
                yield answer
                if tensors.get("is_last"):
                    summary = json.dumps({"status": "finished"}).encode()
                    yield stream_response("open", {"stream_summary": bytes_tensor(summary)})
        finally:
            self.open_streams -= is_open

    def _answer(self, operation: str, request_id: str, tensors: dict[str, Any]) -> Any:
        if operation == "status":
            if self.status_error is not None:
                return service_pb2.ModelStreamInferResponse(error_message=self.status_error)
            return stream_response(request_id, {"status": bytes_tensor(self.status.encode())})
        if operation == "export_voice":
            return stream_response(request_id, {"voice_file": bytes_tensor(VOICE_FILE)})
        if operation in ("register_voice", "import_voice"):
            if self.register_error is not None:
                return service_pb2.ModelStreamInferResponse(error_message=self.register_error)
            voice = {"voice_id": bytes_tensor(b"v1"), "prompt_speech_tokens": np.array([4, 5], np.int32)}
            return stream_response(request_id, voice)
        if operation == "open":
            if self.open_error is not None:
                return service_pb2.ModelStreamInferResponse(error_message=self.open_error)
            return stream_response(request_id, {"stream_id": bytes_tensor(b"s1")})
        if self.push_error is not None:
            return service_pb2.ModelStreamInferResponse(error_message=self.push_error)
        if self.waveform is not None:
            return stream_response(request_id, {"waveform": self.waveform})
        return stream_response(request_id, {"waveform": np.full(len(tensors["token_ids"]) * 10, 0.25, np.float32)})


@asynccontextmanager
async def serving(fake: FakeTriton) -> AsyncIterator[tuple[str, Any]]:
    """Serve on a free port; yields host:port and the server."""
    server = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(fake, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}", server
    finally:
        await server.stop(None)


def error(code: ErrorCode, message: str) -> str:
    """Write an error as the service does."""
    return encode_error(code, message)


def read_plain(request: Any) -> dict[str, Any]:
    """Return a request's tensors as texts and lists."""
    return {
        name: text_of(value) if value.dtype == np.object_ else value.tolist()
        for name, value in read_tensors(request).items()
    }
