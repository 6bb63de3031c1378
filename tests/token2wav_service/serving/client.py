"""Small tritonclient programs: one bidirectional stream, answers by request id."""

from __future__ import annotations

import queue
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tritonclient.grpc as grpc_client
from tritonclient.utils import np_to_triton_dtype

from token2wav_service.serving.process.server import TritonProcess

WAIT_S = 30.0


@dataclass(frozen=True)
class Answer:
    """One message of the server."""

    request_id: str
    tensors: dict[str, Any]
    error: str | None
    is_final: bool


class StreamClient:
    """Sends operations over one gRPC stream and collects what comes back."""

    def __init__(self, address: str) -> None:
        self._client = grpc_client.InferenceServerClient(address)
        self._answers: queue.Queue[Answer] = queue.Queue()
        self._is_closed = False
        self._client.start_stream(self._collect)

    def send(self, operation: str, request_id: str, **tensors: Any) -> None:
        self.send_to("token2wav_dit", {"operation": text(operation), **tensors}, request_id=request_id)

    def send_to(self, model: str, tensors: Mapping[str, Any], **options: Any) -> None:
        """Send tensors to any model that is decoupled; `options` are those of tritonclient."""
        inputs = [infer_input(name, value) for name, value in tensors.items()]
        self._client.async_stream_infer(model, inputs, enable_empty_final_response=True, **options)

    def next(self) -> Answer:
        return self._answers.get(timeout=WAIT_S)

    def ask(self, operation: str, request_id: str = "ask", **tensors: Any) -> list[Answer]:
        """Send one request and return its answers up to the final one."""
        self.send(operation, request_id, **tensors)
        answers = [self.next()]
        while not (answers[-1].is_final or answers[-1].error):
            answers.append(self.next())
        return answers

    def until_final(self) -> Iterator[dict[str, Any]]:
        """Yield the tensors of a request's answers; fail if one is an error."""
        while not (answer := self.next()).is_final:
            yield answer.tensors
        if answer.error is not None:
            raise RuntimeError(answer.error)

    def open_stream(self) -> Any:
        """Register a voice, open a stream and return its stream_id tensor; the lease's request id is `lease`."""
        voice = self.ask("register_voice", reference_wav=np.ones(16000, np.float32))[0].tensors["voice_id"]
        self.send("open", "lease", voice_id=text(voice[0].decode()))
        return self.opened()

    def opened(self) -> Any:
        """Wait for the answer to an open."""
        return text(self.next().tensors["stream_id"][0].decode())

    def push(self, stream_id: Any, index: int, first: int, is_last: bool = False) -> None:
        self.send(
            "push",
            f"push-{index}",
            stream_id=stream_id,
            chunk_index=np.array([index], np.int32),
            token_ids=np.array([first, 1, 2, 3, 4], np.int32),
            is_last=np.array([is_last]),
        )

    def received(self) -> list[Answer]:
        """Return what came and was not read yet."""
        return [self._answers.get_nowait() for _ in range(self._answers.qsize())]

    def close(self, cancel: bool = False) -> None:
        """End the stream: after what is under way, or at once."""
        if not self._is_closed:
            self._is_closed = True
            self._client.stop_stream(cancel_requests=cancel)
            self._client.close()

    def _collect(self, result: Any, error: Any) -> None:
        if error is not None:
            self._answers.put(Answer("", {}, error.message(), True))
            return
        response = result.get_response()
        tensors = {output.name: result.as_numpy(output.name) for output in response.outputs}
        final = response.parameters["triton_final_response"].bool_param
        self._answers.put(Answer(response.id, tensors, None, final))


@contextmanager
def connected(server: TritonProcess) -> Iterator[StreamClient]:
    """Connect, and cancel whatever is still open on leaving."""
    client = StreamClient(f"127.0.0.1:{server.options.grpc_port}")
    try:
        yield client
    finally:
        client.close(cancel=True)


def token2wav_metric(server: TritonProcess, name: str) -> float:
    """Return one of the engine's metrics, 0 before it first appears."""
    return read_metrics(f"127.0.0.1:{server.options.metrics_port}").get(f"cosydit_token2wav_{name}", 0.0)


def infer_input(name: str, value: Any) -> Any:
    """Wrap a numpy array as a tensor of the request."""
    tensor = grpc_client.InferInput(name, list(value.shape), np_to_triton_dtype(value.dtype))
    tensor.set_data_from_numpy(value)
    return tensor


def text(value: str) -> Any:
    """Return a BYTES tensor of one element."""
    return np.array([value.encode()], dtype=np.object_)


def read_metrics(address: str) -> Mapping[str, float]:
    """Return the server's Prometheus metrics by name, the label `model` and the like dropped."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=WAIT_S) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    return {name: float(value) for name, value in pairs}
