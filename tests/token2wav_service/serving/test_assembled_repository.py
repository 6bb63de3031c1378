"""The assembled repository in a real tritonserver: the real engine, the original's tensors, a fake LLM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import tritonclient.grpc as grpc_client

from cosydit.cli.main import main as cosydit
from tests.token2wav_service.serving.client import (
    StreamClient,
    connected,
    infer_input,
    read_metrics,
    token2wav_metric,
)
from tests.token2wav_service.serving.fake_llm import FakeLLMServer
from tests.workers import wait_until
from token2wav_service.contract import DROP_IN_MODEL, SAMPLES_PER_TOKEN
from token2wav_service.serving.process.server import TritonProcess

pytestmark = pytest.mark.servers

SPOKEN_TOKENS = 50


def voice_samples() -> Any:
    time = np.arange(16000) / 16000
    return (0.3 * np.sin(2 * np.pi * 150 * time)).astype(np.float32)


def original_tensors(target_text: str = "hello there") -> dict[str, Any]:
    """What a client of the original runtime sends."""
    wave = voice_samples()[None]
    return {
        "reference_wav": wave,
        "reference_wav_len": np.array([[wave.shape[1]]], np.int32),
        "reference_text": np.array([[b"a transcript"]], np.object_),
        "target_text": np.array([[target_text.encode()]], np.object_),
    }


def ask(client: StreamClient, tensors: dict[str, Any], **options: Any) -> None:
    client.send_to(DROP_IN_MODEL, tensors, outputs=[grpc_client.InferRequestedOutput("waveform")], **options)


def hear(client: StreamClient) -> int:
    """Hear one request to its end; return how many samples came."""
    return sum(tensors["waveform"].size for tensors in client.until_final())


def test_a_request_without_reference_speaks_in_the_default_voice(streaming_server: TritonProcess) -> None:
    with connected(streaming_server) as client:
        ask(client, {"target_text": np.array([[b"hello"]], np.object_)})
        assert hear(client) == SPOKEN_TOKENS * SAMPLES_PER_TOKEN


def test_triton_priority_orders_the_requests_that_wait(
    streaming_server: TritonProcess, fake_llm: FakeLLMServer
) -> None:
    fake_llm.hold(100)
    with connected(streaming_server) as client:
        ask(client, original_tensors(), parameters={"seed": 100})
        fake_llm.wait_for(1)
        for priority in (9, 2, 5, 1):
            ask(client, original_tensors(), priority=priority, parameters={"seed": priority})
        wait_until(lambda: pending_requests(streaming_server) == 4, "four requests waiting in Triton")
        fake_llm.release(100)
        assert fake_llm.wait_for(5) == [100, 1, 2, 5, 9]
        for _ in range(5):
            hear(client)


def pending_requests(server: TritonProcess) -> float:
    metrics = read_metrics(f"127.0.0.1:{server.options.metrics_port}")
    return metrics[f'nv_inference_pending_request_count{{model="{DROP_IN_MODEL}",version="1"}}']


def test_an_llm_that_fails_is_a_typed_error(streaming_server: TritonProcess, fake_llm: FakeLLMServer) -> None:
    fake_llm.is_failing = True
    with connected(streaming_server) as client:
        ask(client, original_tensors())
        with pytest.raises(Exception, match="UNAVAILABLE: "):
            hear(client)
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
