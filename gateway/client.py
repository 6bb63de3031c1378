"""Small clients of both doors: the HTTP gateway and the drop-in Triton model `cosyvoice2_dit`.

Each speaks one text, hands every piece of audio on as it comes, and reports when it came. Knows nothing of files.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import httpx
import numpy as np

from gateway.audio.pcm import PCM16_BYTES, to_pcm16
from gateway.core import FloatArray
from servicekit.clock import Clock
from token2wav_service.contract import DROP_IN_MODEL, SAMPLE_RATE_HZ, decode_error

_HTTP_OK = 200
_FINAL = "triton_final_response"
_REPORT_WAIT_S = 1.0

OnAudio = Callable[[bytes], None]
"""Takes signed 16-bit little endian mono PCM at 24 kHz."""


class ClientError(Exception):
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
        url: the gateway, e.g. http://127.0.0.1:8080; http:// may be left out.
        timeout_s: longest silence of the server.

    Raises:
        ClientError: refused, failed, broken off, or not reachable.
    """
    body: dict[str, Any] = {"model": "cosydit", "input": text, "voice": voice, "response_format": "pcm"}
    if seed is not None:
        body["seed"] = seed
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    meter = _Meter(clock, on_audio)
    try:
        with (
            httpx.Client(timeout=timeout_s, trust_env=False) as http,
            http.stream("POST", f"{_with_scheme(url)}/v1/audio/speech", json=body, headers=headers) as response,
        ):
            _check_http(response)
            _hear_samples(response, meter)
            kinds = ("language", "voice", "speech")
            warnings = [response.headers.get(f"x-{kind}-warning") for kind in kinds]
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ClientError(f"{url}: {error!r}; is the gateway running there? see its log") from error
    return replace(meter.timing(), warning="; ".join(filter(None, warnings)) or None)


def speak_over_grpc(
    url: str,
    text: str,
    reference: FloatArray | None,
    reference_text: str | None,
    on_audio: OnAudio,
    clock: Clock,
    timeout_s: float,
    model: str = DROP_IN_MODEL,
) -> SpeechTiming:
    """Speak `text` through the drop-in model, with the original runtime's tensors.

    Args:
        url: host:port of Triton's gRPC service.
        reference: [N] mono float32 samples in +-1 at 16 kHz; None leaves the voice to the server.
        timeout_s: longest silence of the server.
        model: name of the drop-in, which differs between families of checkpoints.

    Raises:
        ClientError: refused, failed, broken off, or not reachable.
    """
    import tritonclient.grpc as triton

    meter = _Meter(clock, on_audio)
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with triton.InferenceServerClient(url) as client:
        client.start_stream(callback=lambda result, error: answers.put((result, error)))
        is_whole = False
        try:
            _send(client, model, _drop_in_inputs(text, reference, reference_text), answers)
            while not is_whole:
                is_whole = _hear_answer(url, answers, meter, timeout_s)
        finally:
            client.stop_stream(cancel_requests=not is_whole)
    return meter.timing()


def speak_over_triton_http(
    url: str,
    text: str,
    reference: FloatArray | None,
    reference_text: str | None,
    on_audio: OnAudio,
    clock: Clock,
    timeout_s: float,
    model: str = DROP_IN_MODEL,
) -> SpeechTiming:
    """Speak `text` through the drop-in model over plain HTTP, as the original's client does: one request, one waveform.

    Args:
        url: Triton's HTTP service, with or without http://.
        reference: see `speak_over_grpc`, as for the other arguments.

    Raises:
        ClientError: refused, failed, broken off, or not reachable; a model that streams takes no plain HTTP.
    """
    tensors = _drop_in_tensors(text, reference, reference_text)
    meter = _Meter(clock, on_audio)
    try:
        with httpx.Client(timeout=timeout_s, trust_env=False) as http:
            body = {"inputs": [_json_input(name, value) for name, value in tensors.items()]}
            answer = http.post(f"{_with_scheme(url)}/v2/models/{model}/infer", json=body)
            document = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise ClientError(f"{url}: {error!r}; is Triton running there? see its log") from error
    meter.hear(to_pcm16(_waveform_of(url, document)))
    return meter.timing()


def _with_scheme(url: str) -> str:
    return (url if "://" in url else f"http://{url}").rstrip("/")


def _waveform_of(url: str, document: Any) -> FloatArray:
    try:
        if "error" in document:
            code, message = decode_error(str(document["error"]))
            raise ClientError(f"{url}: {code.value}: {message}")
        (output,) = (each for each in document["outputs"] if each["name"] == "waveform")
        return np.asarray(output["data"], dtype=np.float32).ravel()
    except (LookupError, TypeError, ValueError) as error:
        raise ClientError(f"{url}: the answer holds no waveform ({error!r}); is that Triton's HTTP service?") from error


def _json_input(name: str, value: Any) -> dict[str, Any]:
    """Write one tensor in the JSON form of KServe's protocol."""
    kinds = {"f": "FP32", "i": "INT32", "O": "BYTES"}
    data = [each.decode("utf-8") for each in value.ravel()] if value.dtype.kind == "O" else value.ravel().tolist()
    return {"name": name, "shape": list(value.shape), "datatype": kinds[value.dtype.kind], "data": data}


def _send(client: Any, model: str, inputs: list[Any], answers: queue.Queue[tuple[Any, Any]]) -> None:
    from tritonclient.utils import InferenceServerException

    try:
        client.async_stream_infer(model, inputs, enable_empty_final_response=True)
    except InferenceServerException as error:
        # NOTE: tritonclient closes a broken stream a moment before it reports why, and its report says more than this
        try:
            answers.put(answers.get(timeout=_REPORT_WAIT_S))
        except queue.Empty:
            answers.put((None, error))


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


def _hear_answer(url: str, answers: queue.Queue[tuple[Any, Any]], meter: _Meter, timeout_s: float) -> bool:
    """Take one answer; return whether it was the last."""
    try:
        result, error = answers.get(timeout=timeout_s)
    except queue.Empty as empty:
        raise ClientError(f"{url}: no answer within {timeout_s} s; is Triton overloaded? see its log") from empty
    if error is not None and error.status() is not None:
        raise ClientError(f"{url}: {error.message()}; is Triton running there? see its log")
    if error is not None:
        code, message = decode_error(error.message() or "")
        raise ClientError(f"{url}: {code.value}: {message}")
    samples = result.as_numpy("waveform")
    if samples is not None:
        meter.hear(to_pcm16(np.ascontiguousarray(samples, dtype=np.float32).ravel()))
    return bool(result.get_response().parameters[_FINAL].bool_param)


def _drop_in_inputs(text: str, reference: FloatArray | None, reference_text: str | None) -> list[Any]:
    return [_infer_input(name, value) for name, value in _drop_in_tensors(text, reference, reference_text).items()]


def _drop_in_tensors(text: str, reference: FloatArray | None, reference_text: str | None) -> dict[str, Any]:
    tensors: dict[str, Any] = {"target_text": _text_tensor(text)}
    if reference is not None:
        tensors["reference_wav"] = np.ascontiguousarray(reference, dtype=np.float32).reshape(1, -1)
        tensors["reference_wav_len"] = np.array([[reference.size]], np.int32)
    if reference_text is not None:
        tensors["reference_text"] = _text_tensor(reference_text)
    return tensors


def _text_tensor(text: str) -> Any:
    return np.array([[text.encode("utf-8")]], dtype=np.object_)


def _infer_input(name: str, value: Any) -> Any:
    import tritonclient.grpc as triton
    from tritonclient.utils import np_to_triton_dtype

    tensor = triton.InferInput(name, list(value.shape), np_to_triton_dtype(value.dtype))
    tensor.set_data_from_numpy(value)
    return tensor
