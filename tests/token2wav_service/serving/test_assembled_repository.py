"""The assembled repository in a real tritonserver: the real engine, the original's tensors, a fake LLM."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import tritonclient.grpc as grpc_client

from cosydit.cli.main import main as cosydit
from tests.token2wav_service.serving.client import (
    infer_input,
    read_metrics,
    token2wav_metric,
    wait_until,
)
from tests.token2wav_service.serving.fake_llm import FakeLLMServer
from token2wav_service.contract import DROP_IN_MODEL, SAMPLES_PER_TOKEN
from token2wav_service.serving.process.server import TritonProcess

pytestmark = pytest.mark.servers

WAIT_S = 30.0
SPOKEN_TOKENS = 50


@pytest.fixture(autouse=True)
def fresh_llm(fake_llm: FakeLLMServer) -> None:
    fake_llm.forget()
    fake_llm.is_failing = False


def voice_samples() -> Any:
    time = np.arange(16000) / 16000
    return (0.3 * np.sin(2 * np.pi * 150 * time)).astype(np.float32)


def original_inputs(target_text: str = "hello there") -> list[Any]:
    """The tensors that a client of the original runtime sends."""
    wave = voice_samples()[None]
    return [
        infer_input("reference_wav", wave),
        infer_input("reference_wav_len", np.array([[wave.shape[1]]], np.int32)),
        infer_input("reference_text", np.array([[b"a transcript"]], np.object_)),
        infer_input("target_text", np.array([[target_text.encode()]], np.object_)),
    ]


class OriginalClient:
    """Does what the original runtime's gRPC client does: one stream, chunks until the final flag."""

    def __init__(self, server: TritonProcess) -> None:
        self._client = grpc_client.InferenceServerClient(f"127.0.0.1:{server.options.grpc_port}")
        self._answers: queue.Queue[Any] = queue.Queue()
        self._client.start_stream(lambda result, error: self._answers.put(error or result))

    def send(self, inputs: list[Any], **options: Any) -> None:
        outputs = [grpc_client.InferRequestedOutput("waveform")]
        self._client.async_stream_infer(
            DROP_IN_MODEL, inputs, outputs=outputs, enable_empty_final_response=True, **options
        )

    def next(self) -> Any:
        answer = self._answers.get(timeout=WAIT_S)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def hear_chunks(self) -> Iterator[Any]:
        """Yield waveforms up to the final flag."""
        while True:
            answer = self.next()
            if answer.get_response().parameters["triton_final_response"].bool_param:
                return
            yield answer.as_numpy("waveform").reshape(-1)

    def close(self, cancel: bool = False) -> None:
        self._client.stop_stream(cancel_requests=cancel)
        self._client.close()


@contextmanager
def original_client(server: TritonProcess) -> Iterator[OriginalClient]:
    client = OriginalClient(server)
    try:
        yield client
    finally:
        client.close(cancel=True)


def test_a_request_without_reference_speaks_in_the_default_voice(streaming_server: TritonProcess) -> None:
    with original_client(streaming_server) as client:
        client.send([infer_input("target_text", np.array([[b"hello"]], np.object_))])
        assert sum(map(len, client.hear_chunks())) == SPOKEN_TOKENS * SAMPLES_PER_TOKEN


def test_triton_priority_orders_the_requests_that_wait(
    streaming_server: TritonProcess, fake_llm: FakeLLMServer
) -> None:
    fake_llm.hold(100)
    with original_client(streaming_server) as client:
        client.send(original_inputs(), parameters={"seed": 100})
        fake_llm.wait_for(1)
        for priority in (9, 2, 5, 1):
            client.send(original_inputs(), priority=priority, parameters={"seed": priority})
        wait_until(lambda: pending_requests(streaming_server) == 4, "four requests waiting in Triton")
        fake_llm.release(100)
        assert fake_llm.wait_for(5) == [100, 1, 2, 5, 9]
        for _ in range(5):
            list(client.hear_chunks())


def pending_requests(server: TritonProcess) -> float:
    metrics = read_metrics(f"127.0.0.1:{server.options.metrics_port}")
    return metrics[f'nv_inference_pending_request_count{{model="{DROP_IN_MODEL}",version="1"}}']


def test_an_llm_that_fails_is_a_typed_error(streaming_server: TritonProcess, fake_llm: FakeLLMServer) -> None:
    fake_llm.is_failing = True
    with original_client(streaming_server) as client:
        client.send(original_inputs())
        with pytest.raises(Exception, match="UNAVAILABLE: "):
            list(client.hear_chunks())
    wait_until(lambda: token2wav_metric(streaming_server, "open_streams") == 0, "the stream's release")


def test_audio_tokenizer_and_speaker_embedding_keep_the_originals_tensors(streaming_server: TritonProcess) -> None:
    client = grpc_client.InferenceServerClient(f"127.0.0.1:{streaming_server.options.grpc_port}")
    wave = infer_input("reference_wav", voice_samples()[None])
    length = infer_input("reference_wav_len", np.array([[8000]], np.int32))
    tokens = client.infer("audio_tokenizer", [wave, length]).as_numpy("prompt_speech_tokens")
    embedding = client.infer("speaker_embedding", [wave]).as_numpy("prompt_spk_embedding")
    client.close()
    assert (tokens.dtype, tokens.shape[0]) == (np.int32, 1)
    assert 12 <= tokens.shape[1] <= 13
    assert (embedding.dtype, embedding.shape) == (np.float16, (1, 192))


def test_the_originals_http_client_gets_its_waveform_or_the_reason_why_not(
    whole_server: TritonProcess, streaming_server: TritonProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    soundfile.write(tmp_path / "voice.wav", voice_samples(), 16000)
    voice = ["--reference-audio", str(tmp_path / "voice.wav"), "--reference-text", "a transcript"]
    options = ["--target-text", "hello", "--output-audio", str(tmp_path / "out.wav")]
    url = ["--server-url", whole_server.options.http_address]
    assert cosydit(["client", "triton-http", *url, *voice, *options]) == 0
    samples, rate_hz = soundfile.read(tmp_path / "out.wav")
    assert (len(samples), rate_hz) == (SPOKEN_TOKENS * SAMPLES_PER_TOKEN, 24000) and np.abs(samples).max() > 0
    assert cosydit(["client", "triton-http", *url, "--target-text", "", *options[2:]]) == 1
    assert "INVALID_REQUEST: the text is empty" in capsys.readouterr().err
    assert cosydit(["client", "triton-http", "--server-url", streaming_server.options.http_address, *options]) == 1
    assert "decoupled" in capsys.readouterr().err
