"""Small clients of both doors: the HTTP gateway and the drop-in Triton model `cosyvoice2_dit`.

Each speaks one text, hands every piece of audio on as it comes, and reports when it came. Knows nothing of files.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import httpx
import numpy as np

from gateway.audio.codecs import PCM16_BYTES, to_pcm16
from gateway.core import FloatArray
from servicekit.clock import Clock
from servicekit.logs import PlainError
from servicekit.timeouts import timeout
from token2wav_service.contract import DROP_IN_MODEL, SAMPLE_RATE_HZ, decode_error

_HTTP_OK = 200
_FINAL, _ASK_FINAL = "triton_final_response", "triton_enable_empty_final_response"
UNLIMITED = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))
"""Options of a channel to Triton: a prompt or a waveform may be longer than gRPC's usual 4 MB."""

OnAudio = Callable[[bytes], None]
"""Takes signed 16-bit little endian mono PCM at 24 kHz."""


class ClientError(PlainError):
    """The door refused, failed or could not be reached; the message says what to do."""


@dataclass(frozen=True)
class SpeechTiming:
    """When the audio of one text came."""

    ttfa_s: float
    """Seconds from sending the request to its first audio."""
    total_s: float
    audio_s: float
    warning: str | None = None
    """The server's warning about the text, if any."""

    @property
    def rtf(self) -> float:
        """Real-time factor: seconds spent per second of audio."""
        return self.total_s / self.audio_s


class _Meter:
    """Measures one request while its audio passes through."""

    def __init__(self, clock: Clock, on_audio: OnAudio) -> None:
        self._clock = clock
        self._on_audio = on_audio
        self._began_s = clock.now()
        self._ttfa_s: float | None = None
        self._bytes = 0

    def hear(self, pcm: bytes) -> None:
        if not pcm:
            return
        if self._ttfa_s is None:
            self._ttfa_s = self._clock.now() - self._began_s
        self._bytes += len(pcm)
        self._on_audio(pcm)

    def timing(self) -> SpeechTiming:
        if self._ttfa_s is None:
            raise ClientError("the answer ended without any audio; see the server's log")
        return SpeechTiming(self._ttfa_s, self._clock.now() - self._began_s, self._bytes / PCM16_BYTES / SAMPLE_RATE_HZ)


def speak_over_http(
    url: str,
    text: str,
    voice: str,
    on_audio: OnAudio,
    clock: Clock,
    timeout_s: float,
    seed: int | None = None,
    api_key: str | None = None,
) -> SpeechTiming:
    """Speak `text` through POST /v1/audio/speech.

    Args:
        url: the gateway, e.g. http://127.0.0.1:8080; http:// may be left out, and OpenAI's /v1 may follow.
        timeout_s: longest silence of the server.

    Raises:
        ClientError: refused, failed, broken off, or not reachable.
    """
    body: dict[str, Any] = {"model": "cosydit", "input": text, "voice": voice, "response_format": "pcm"}
    if seed is not None:
        body["seed"] = seed
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    address = f"{_with_scheme(url).removesuffix('/v1')}/v1/audio/speech"
    meter = _Meter(clock, on_audio)
    try:
        with (
            httpx.Client(timeout=timeout_s, trust_env=False) as http,
            http.stream("POST", address, json=body, headers=headers) as response,
        ):
            _check_http(response)
            _hear_samples(response, meter)
            kinds = ("language", "voice", "speech")
            warnings = [response.headers.get(f"x-{kind}-warning") for kind in kinds]
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ClientError(f"{url}: {error!r}; is the gateway running there? see its log") from error
    return replace(meter.timing(), warning="; ".join(filter(None, warnings)) or None)


def speak_over_triton(
    url: str,
    text: str,
    reference: FloatArray | None,
    reference_text: str | None,
    on_audio: OnAudio,
    clock: Clock,
    timeout_s: float,
    model: str = DROP_IN_MODEL,
    is_http: bool = False,
) -> SpeechTiming:
    """Speak `text` through the drop-in model, with the original runtime's tensors.

    Args:
        url: host:port of Triton's gRPC service; if `is_http` of its HTTP service, with or without http://.
        reference: [N] mono float32 samples in +-1 at 16 kHz; None leaves the voice to the server.
        timeout_s: longest silence of the server.
        model: name of the drop-in, which differs between families of checkpoints.
        is_http: over plain HTTP, as the original's client does: one request, one waveform.

    Raises:
        ClientError: refused, failed, broken off, or not reachable; a model that streams takes no plain HTTP.
    """
    tensors = drop_in_tensors(text, reference, reference_text)
    meter = _Meter(clock, on_audio)
    if is_http:
        meter.hear(to_pcm16(_whole_waveform(url, model, tensors, timeout_s)))
    else:
        asyncio.run(_hear_answers(url, model, tensors, timeout_s, meter))
    return meter.timing()


async def _hear_answers(url: str, model: str, tensors: dict[str, Any], timeout_s: float, meter: _Meter) -> None:
    import grpc

    async with (
        grpc.aio.insecure_channel(url, options=UNLIMITED) as channel,
        aclosing(drop_in_answers(channel, url, model, tensors, timeout_s)) as answers,
    ):
        async for samples in answers:
            meter.hear(to_pcm16(samples))


async def drop_in_answers(
    channel: Any,
    url: str,
    model: str,
    tensors: dict[str, Any],
    timeout_s: float,
    request_id: str = "",
    is_whole: bool = False,
) -> AsyncGenerator[FloatArray, None]:
    """Yield the audio [N] of each answer of the drop-in model as it comes, empty if it has none.

    Args:
        channel: of grpc.aio, to Triton.
        url: where that is, for messages.
        tensors: see `drop_in_tensors`.
        timeout_s: longest silence of the server.
        is_whole: the model was assembled with DECOUPLED_MODE=False: one whole waveform comes.

    Raises:
        ClientError: refused, failed, broken off, or not reachable. Leaving early cancels the request.
    """
    import grpc
    from tritonclient.grpc import InferResult, service_pb2_grpc

    async def in_time(answer: Any) -> Any:
        try:
            async with timeout(timeout_s):
                return await answer
        except asyncio.TimeoutError as error:
            raise ClientError(f"{url}: no answer within {timeout_s} s; is Triton overloaded? see its log") from error
        except grpc.aio.AioRpcError as error:
            told = f"{error.code().name}: {error.details()}"
            raise ClientError(f"{url}: {told}; is Triton running there? see its log") from error

    def audio(response: Any) -> FloatArray:
        samples = InferResult(response).as_numpy("waveform")
        return np.ascontiguousarray([] if samples is None else samples, dtype=np.float32).ravel()

    stub, request = service_pb2_grpc.GRPCInferenceServiceStub(channel), _infer_request(model, tensors, request_id)
    call = stub.ModelInfer(request) if is_whole else stub.ModelStreamInfer()
    try:
        if is_whole:
            yield audio(await in_time(call))
            return
        await in_time(call.write(request))
        is_final = False
        while not is_final:
            answer = await in_time(call.read())
            if answer is grpc.aio.EOF:
                raise ClientError(f"{url}: the server closed the stream before its final response; see its log")
            if answer.error_message:
                code, message = decode_error(answer.error_message)
                raise ClientError(f"{url}: {code.value}: {message}")
            is_final = answer.infer_response.parameters[_FINAL].bool_param
            yield audio(answer.infer_response)
    finally:
        call.cancel()


def _whole_waveform(url: str, model: str, tensors: dict[str, Any], timeout_s: float) -> FloatArray:
    """Ask over plain HTTP."""
    try:
        with httpx.Client(timeout=timeout_s, trust_env=False) as http:
            body = {"inputs": [_json_input(name, value) for name, value in tensors.items()]}
            document: Any = http.post(f"{_with_scheme(url)}/v2/models/{model}/infer", json=body).json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise ClientError(f"{url}: {error!r}; is Triton running there? see its log") from error
    try:
        if "error" in document:
            code, message = decode_error(str(document["error"]))
            raise ClientError(f"{url}: {code.value}: {message}")
        (output,) = (each for each in document["outputs"] if each["name"] == "waveform")
        return np.asarray(output["data"], dtype=np.float32).ravel()
    except (LookupError, TypeError, ValueError) as error:
        raise ClientError(f"{url}: the answer holds no waveform ({error!r}); is that Triton's HTTP service?") from error


def _with_scheme(url: str) -> str:
    return (url if "://" in url else f"http://{url}").rstrip("/")


def _json_input(name: str, value: Any) -> dict[str, Any]:
    """Write one tensor in the JSON form of KServe's protocol."""
    kinds = {"f": "FP32", "i": "INT32", "O": "BYTES"}
    data = [each.decode("utf-8") for each in value.ravel()] if value.dtype.kind == "O" else value.ravel().tolist()
    return {"name": name, "shape": list(value.shape), "datatype": kinds[value.dtype.kind], "data": data}


def _check_http(response: httpx.Response) -> None:
    if response.status_code == _HTTP_OK:
        return
    response.read()
    try:
        message = response.json()["error"]["message"]
    except (ValueError, LookupError, TypeError):
        message = response.text
    raise ClientError(f"the gateway answered {response.status_code}: {message}")


def _hear_samples(response: httpx.Response, meter: _Meter) -> None:
    """Pass the body on in whole samples, however the network cut it."""
    rest = b""
    for part in response.iter_bytes():
        pcm = rest + part
        whole = len(pcm) - len(pcm) % PCM16_BYTES
        meter.hear(pcm[:whole])
        rest = pcm[whole:]


def drop_in_tensors(text: str, reference: FloatArray | None, reference_text: str | None) -> dict[str, Any]:
    """Return the original runtime's tensors, batch dimension included; `reference` [N] in +-1 at 16 kHz."""
    tensors: dict[str, Any] = {"target_text": _text_tensor(text)}
    if reference is not None:
        tensors["reference_wav"] = np.ascontiguousarray(reference, dtype=np.float32).reshape(1, -1)
        tensors["reference_wav_len"] = np.array([[reference.size]], np.int32)
    if reference_text is not None:
        tensors["reference_text"] = _text_tensor(reference_text)
    return tensors


def _text_tensor(text: str) -> Any:
    return np.array([[text.encode("utf-8")]], dtype=np.object_)


def _infer_request(model: str, tensors: dict[str, Any], request_id: str) -> Any:
    """Return a request of tensors that asks for the final flag."""
    from tritonclient.grpc import service_pb2
    from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

    request = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    request.parameters[_ASK_FINAL].bool_param = True
    for name, value in tensors.items():
        request.inputs.add(name=name, datatype=np_to_triton_dtype(value.dtype), shape=value.shape)
        raw = serialize_byte_tensor(value).item() if value.dtype == np.object_ else value.tobytes()
        request.raw_input_contents.append(raw)
    return request
