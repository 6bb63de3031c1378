"""Asynchronous client of the Triton model `token2wav_dit`: voices, streams, deadlines, typed errors.

One bidirectional gRPC call per stream. Its first request, `open`, stays unanswered-to-the-end and is the lease:
cancelling the call, or losing the connection, frees the stream on the server. Pushes travel on the same call, in
order, and may be pipelined. The first error of any of them ends the stream.

Knows nothing of text, of the LLM or of when to cut chunks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc import service_pb2_grpc as stubs

from gateway import errors
from gateway.chunking.chunker import TokenChunk
from gateway.core import AudioChunk, FloatArray, RegisteredVoice
from gateway.token2wav.replica import ReplicaStream, Settle
from gateway.token2wav.triton_call import Tensors, TritonCall, text_of
from servicekit.tasks import stop
from servicekit.timeouts import LoopLag, Patience, PatientTimer
from token2wav_service.contract import CALLER_HAS_SHARE, DEFAULT_PRIORITY, TOKEN2WAV_MODEL, Operation, ServerStatus

logger = logging.getLogger(__name__)

_SERVING_SHARE = 0.5
"""Share of a deadline; a server that worked for others for so long was not stuck."""
_CHANNEL = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # A server that comes back must be found at once; gRPC's own pauses grow to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Otherwise clients of one address share a connection, even one that hangs.
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True)
class Token2WavDeadlines:
    """Seconds that each exchange may take."""

    register_s: float = 60.0
    """Seconds from sending a voice prompt to its features; the first one after a start is slow."""
    open_s: float = 10.0
    """Seconds from asking for a stream to its id."""
    push_s: float = 60.0
    """Seconds from pushing a chunk, or from the audio of the one before it, to its audio; a first one may wait for its
    voice."""
    close_s: float = 2.0
    """Seconds from the last audio to the stream's summary; then the call is cancelled."""
    ready_s: float = 3.0


class Token2WavClient:
    """Registers voices and opens streams; one per event loop, closed by its owner."""

    def __init__(self, url: str, deadlines: Token2WavDeadlines | None = None, lag: LoopLag | None = None) -> None:
        """Connect lazily to `url` (host:port of Triton's gRPC service).

        What the running event loop stood still, which `lag` counts, counts against no chunk's deadline.
        """
        self._url = url
        self._deadlines = deadlines or Token2WavDeadlines()
        self._patience = Patience(lag)
        self._connected: _Connection | None = None
        self._retired: set[_Connection] = set()

    async def close(self) -> None:
        """Drop the connection; open streams end."""
        await self._retire()
        while self._retired:
            await self._retired.pop().channel.close()

    async def is_ready(self) -> bool:
        """Tell whether the server answers and has the model."""
        try:
            asked = messages.ModelReadyRequest(name=TOKEN2WAV_MODEL)
            return bool((await self._connection().stub.ModelReady(asked, timeout=self._deadlines.ready_s)).ready)
        except grpc.RpcError:
            return False

    async def status(self) -> ServerStatus:
        """Ask how busy the server is.

        Raises:
            Token2WavError: anything the service did wrong.
        """
        try:
            result = await self._ask(Operation.STATUS, {}, "status", self._deadlines.ready_s)
        except errors.Token2WavDeadlineError:
            await self._retire()
            raise
        try:
            return ServerStatus.from_json(text_of(result["status"]))
        except ValueError as error:
            raise errors.Token2WavProtocolError(f"token2wav at {self._url} sent a status of another form") from error

    async def register_voice(self, audio: bytes | FloatArray) -> RegisteredVoice:
        """Have a voice prompt's features computed and cached; see `Token2Wav.register_voice`."""
        try:
            return _voice_of(await self._ask(Operation.REGISTER_VOICE, _prompt_tensor(audio), "prompt_speech_tokens"))
        except errors.Token2WavRejectedError as error:
            raise errors.InvalidVoicePromptError(str(error), param="voice") from error

    async def export_voice(self, voice_id: str) -> bytes:
        """Fetch a voice's file; see `VoiceMaker.export_voice`."""
        result = await self._ask(Operation.EXPORT_VOICE, {"voice_id": voice_id.encode()}, "voice_file")
        return bytes(result["voice_file"].ravel()[0])

    async def import_voice(self, voice_file: bytes) -> RegisteredVoice:
        """Register a voice from its file; see `VoiceMaker.import_voice`."""
        return _voice_of(await self._ask(Operation.IMPORT_VOICE, {"voice_file": voice_file}, "prompt_speech_tokens"))

    @asynccontextmanager
    async def open_stream(
        self, voice_id: str, seed: int, priority: int = DEFAULT_PRIORITY, caller_has_share: bool = False
    ) -> AsyncIterator[Token2WavCallStream]:
        """Lease a stream; see `Token2Wav.open_stream`.

        Args:
            priority: 1 (first) to 10.
            caller_has_share: it gets none of the room that the server keeps for callers with few streams.
        """
        async with self._in_use() as stub:
            call = TritonCall(stub, self._url)
            try:
                async with self._told_apart():
                    stream = await self._open(call, voice_id, seed, priority, caller_has_share)
                try:
                    yield stream
                    await stream.finish(self._deadlines.close_s)
                finally:
                    await stream.abandon()
            finally:
                call.close()

    @asynccontextmanager
    async def _told_apart(self) -> AsyncIterator[None]:
        """Tell a server that is starting or stopping from one that failed: its errors carry no code of their own."""
        try:
            yield
        except errors.Token2WavFailedError as error:
            if await self.is_ready():
                raise
            got = f"token2wav at {self._url} is not serving {TOKEN2WAV_MODEL} now ({error})"
            raise errors.Token2WavStoppingError(f"{got}; try again, or see its log") from error

    async def _ask(
        self, operation: Operation, tensors: dict[str, Any], answer: str, limit_s: float | None = None
    ) -> Tensors:
        """Send one operation that is no stream's and return the tensors of the response that has `answer`."""
        limit_s = self._deadlines.register_s if limit_s is None else limit_s
        async with self._in_use() as stub:
            call = TritonCall(stub, self._url, limit_s)
            try:
                async with self._told_apart():
                    call.send(operation, operation.value, tensors)
                    call.end_requests()  # the server ends the call with its answer
                    return await call.first_result(answer, limit_s, self._patience)
            finally:
                await call.finish(self._deadlines.close_s)

    async def _open(
        self, call: TritonCall, voice_id: str, seed: int, priority: int, caller_has_share: bool
    ) -> Token2WavCallStream:
        tensors = {
            "voice_id": voice_id.encode(),
            "seed": np.array([seed], np.int64),
            "priority": np.array([priority], np.int32),
        }
        call.send(Operation.OPEN, "open", tensors, {CALLER_HAS_SHARE: "1"} if caller_has_share else {})
        try:
            result = await call.first_result("stream_id", self._deadlines.open_s, self._patience)
        except errors.Token2WavDeadlineError:
            await self._retire()
            raise
        return Token2WavCallStream(call, text_of(result["stream_id"]), self._deadlines.push_s, self._patience)

    def _connection(self) -> _Connection:
        if self._connected is None:
            channel = grpc.aio.insecure_channel(self._url, options=_CHANNEL)
            self._connected = _Connection(channel, stubs.GRPCInferenceServiceStub(channel))
        return self._connected

    async def _retire(self) -> None:
        """Have the next calls make a connection of their own: one over which garbage came may hang.

        Calls under way keep theirs, since a server that is merely slow will answer them.
        """
        connection, self._connected = self._connected, None
        if connection is not None and connection.calls:
            self._retired.add(connection)
        elif connection is not None:
            await connection.channel.close()

    @asynccontextmanager
    async def _in_use(self) -> AsyncIterator[Any]:
        """Yield the connection's stub; a connection that was retired closes with its last call."""
        connection = self._connection()
        connection.calls += 1
        try:
            yield connection.stub
        finally:
            connection.calls -= 1
            if not connection.calls and connection in self._retired:
                self._retired.discard(connection)
                await connection.channel.close()


@dataclass(eq=False)
class _Connection:
    """A connection, and how many calls travel on it."""

    channel: Any
    stub: Any
    calls: int = 0


class Token2WavCallStream(ReplicaStream):
    """An open stream on its own bidirectional call; made by `Token2WavClient.open_stream`."""

    def __init__(self, call: TritonCall, stream_id: str, push_deadline_s: float, patience: Patience) -> None:
        """Start to read the call's responses; `patience` is that of all streams at the server."""
        self._call = call
        self.stream_id = stream_id
        """The server's own name of the stream."""
        self._push_deadline_s = push_deadline_s
        self._patience = patience
        self._waiting: dict[str, tuple[TokenChunk, Settle]] = {}
        """Chunks on their way, oldest first, and what takes their audio; the timer is that of the oldest."""
        self._timer = PatientTimer()
        self._failure: errors.GatewayError | None = None
        self._reader = asyncio.create_task(self._read(), name=f"token2wav-{stream_id}")

    def send(self, chunk: TokenChunk, settle: Settle) -> None:
        """Send a chunk; see `ReplicaStream.send`."""
        if self._failure is not None:
            settle(self._failure)
            return
        request_id, is_oldest = f"push-{chunk.index}", not self._waiting
        self._waiting[request_id] = chunk, settle
        if is_oldest:
            self._await_oldest()
        self._call.send(Operation.PUSH, request_id, _chunk_tensors(self.stream_id, chunk))

    def _await_oldest(self) -> None:
        limit_s = self._push_deadline_s
        for chunk, _ in self._waiting.values():
            return self._timer.begin(limit_s, self._patience.begin(limit_s), partial(self._expire, chunk.index))
        self._timer.end()

    async def finish(self, deadline_s: float) -> None:
        """Say that no more will come and wait for the summary, but not for long."""
        self._call.end_requests()
        await asyncio.wait([self._reader], timeout=deadline_s)

    async def abandon(self) -> None:
        """Cancel the calls under way; does nothing after a clean end."""
        self._call.cancel()
        try:
            await stop(self._reader)
        finally:
            self._fail(errors.Token2WavInterruptedError(f"stream {self.stream_id} was closed before its audio came"))

    async def _read(self) -> None:
        try:
            while (result := await self._call.next_result()) is not None:
                self._deliver(*result)
            self._fail(self._call.interrupted("the server closed the stream before its audio was complete"))
        except errors.GatewayError as error:
            self._fail(error)
        except Exception as error:
            logger.exception("stream %s: unreadable answer from token2wav", self.stream_id)
            self._fail(errors.Token2WavProtocolError(f"token2wav sent what can't be read ({error}); see the log"))

    def _deliver(self, request_id: str, tensors: Tensors) -> None:
        samples = tensors.get("waveform")
        if samples is None:
            return
        finite = self._finite(samples)
        if (push := self._waiting.pop(request_id, None)) is not None:
            self._patience.progressed()
            self._await_oldest()
            chunk, settle = push
            settle(AudioChunk(chunk.index, finite, chunk.is_last))

    def _finite(self, samples: Any) -> FloatArray:
        wave: FloatArray = np.ascontiguousarray(samples, dtype=np.float32).ravel()
        if not np.isfinite(wave).all():
            got = f"token2wav sent samples of stream {self.stream_id} that are not finite"
            raise errors.Token2WavProtocolError(f"{got}; check its checkpoint and its device")
        return wave

    def _expire(self, index: int) -> None:
        got = f"no audio for chunk {index} of stream {self.stream_id} within {self._push_deadline_s} s"
        # NOTE: an extended wait ends a whole deadline after the server's last work for others.
        serves_others = self._patience.has_served(_SERVING_SHARE * self._push_deadline_s)
        told = f"{got}; the token2wav server is {'overloaded' if serves_others else 'stuck'}: see its log"
        self._fail(errors.Token2WavDeadlineError(told, serves_others=serves_others))
        self._call.cancel()

    def _fail(self, error: errors.GatewayError) -> None:
        if self._failure is None:
            self._failure = error
        self._timer.cancel()
        waiting, self._waiting = self._waiting, {}
        for _, settle in waiting.values():
            settle(self._failure)


def _prompt_tensor(audio: bytes | FloatArray) -> dict[str, Any]:
    if isinstance(audio, bytes):
        return {"reference_audio": audio}
    return {"reference_wav": np.ascontiguousarray(audio, dtype=np.float32).ravel()}


def _voice_of(result: Tensors) -> RegisteredVoice:
    tokens = tuple(int(token) for token in result["prompt_speech_tokens"].ravel())
    cut_s = result.get("silence_cut_s")  # that of an import is not told
    return RegisteredVoice(text_of(result["voice_id"]), tokens, 0.0 if cut_s is None else float(cut_s[0]))


def _chunk_tensors(stream_id: str, chunk: TokenChunk) -> dict[str, Any]:
    return {
        "stream_id": stream_id.encode(),
        "chunk_index": np.array([chunk.index], np.int32),
        "token_ids": np.array(chunk.token_ids, np.int32),
        "is_last": np.array([chunk.is_last], np.bool_),
    }
