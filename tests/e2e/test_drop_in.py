"""A program written for the original runtime, unchanged, against `cosyvoice2_dit`; and our own gRPC door."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import torch
import tritonclient.http as httpclient
from grpc_health.v1 import health_pb2, health_pb2_grpc
from riva.proto import riva_tts_pb2, riva_tts_pb2_grpc
from tts_api.tts.v1 import speech_pb2, tts_service_pb2, tts_service_pb2_grpc

from cosydit.stack.checkpoint.checkpoints import CheckpointLayout
from cosydit.stack.stack import LocalStack, assemble_repository, triton_spec
from tests.e2e.conftest import RunningStack, make_options, pcm_to_floats, wait_until
from tests.workers import is_whole
from token2wav_service.replay.vectors import WAVE_SNR_DB, snr_db

pytestmark = pytest.mark.servers

CLIENT = Path(__file__).with_name("original_client.py")
LONG_TEXT = "This sentence is long enough to be cut off in the middle of its audio. " * 6


def _command(running: RunningStack, text: str) -> list[str]:
    voices = running.options.checkpoint.voices_dir
    transcript = (voices / "default.txt").read_text("utf-8").strip()
    return [sys.executable, str(CLIENT), running.options.token2wav_url, str(voices / "default.wav"), transcript, text]


def test_the_original_client_gets_audio_chunks_and_the_final_flag(idle_after: RunningStack) -> None:
    done = subprocess.run(
        _command(idle_after, "A program for the original runtime."), capture_output=True, text=True, timeout=120
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and lines[-1] == "FINAL", done.stdout + done.stderr
    chunks = [line.split() for line in lines[:-1]]
    assert len(chunks) >= 2
    assert all(
        kind == "CHUNK" and dtype == "float32" and int(n) > 0 and float(peak) > 0 for kind, dtype, n, peak in chunks
    )


def test_killing_the_original_client_in_mid_stream_frees_its_state(idle_after: RunningStack) -> None:
    aborted = idle_after.token2wav_metric("aborted_total")
    process = subprocess.Popen(_command(idle_after, LONG_TEXT), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("CHUNK")
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    wait_until(lambda: idle_after.token2wav_metric("aborted_total") == aborted + 1, "the stream's abortion")
    wait_until(lambda: idle_after.token2wav_metric("open_streams") == 0, "the stream's release")


@pytest.mark.skipif(not is_whole(), reason="a second Triton; test_assembled_repository.py has it before a stand-in")
def test_decoupled_mode_false_answers_plain_http_with_one_waveform(
    running: RunningStack, checkpoint: CheckpointLayout, tmp_path: Path
) -> None:
    options = make_options(checkpoint, tmp_path, DECOUPLED_MODE="False", BLS_INSTANCE_NUM="1")
    options = type(options)(
        options.checkpoint, tmp_path, options.ports, {**options.settings, "llm_api_base": running.options.llm_url}
    )
    stack = LocalStack(options)
    stack.services = [type(stack.services[0])(triton_spec(options))]
    assemble_repository(options)
    with stack.services[0] as triton:
        triton.wait_ready(120)
        client = httpclient.InferenceServerClient(f"127.0.0.1:{options.ports.triton_http}", network_timeout=60)
        text = httpclient.InferInput("target_text", [1, 1], "BYTES")
        text.set_data_from_numpy(np.array([["One whole waveform."]], object))
        waveform = client.infer("cosyvoice2_dit", [text]).as_numpy("waveform")
        client.close()
    assert waveform.dtype == np.float32 and waveform.size >= 960 and waveform.size % 960 == 0


@pytest.mark.parametrize(
    ("text", "code"),
    [pytest.param(" ", "INVALID_REQUEST", id="empty"), pytest.param("x" * 100_001, "INVALID_REQUEST", id="100 kB")],
)
def test_bad_text_is_a_typed_error_with_the_final_flag(idle_after: RunningStack, text: str, code: str) -> None:
    done = subprocess.run(_command(idle_after, text), capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert code in done.stdout, done.stdout


TEXT = "One text, and two doors."
TIMEOUT_S = 120


@pytest.fixture
def channel(idle_after: RunningStack) -> Any:
    with grpc.insecure_channel(f"127.0.0.1:{idle_after.options.ports.gateway_grpc}") as channel:
        yield channel


def _over_http(running: RunningStack, seed: int) -> bytes:
    body = {"model": "cosydit", "input": TEXT, "voice": "default", "response_format": "pcm", "seed": seed}
    url = f"{running.options.gateway_url}/v1/audio/speech"
    answer = httpx.post(url, json=body, timeout=TIMEOUT_S, trust_env=False)
    assert answer.status_code == 200, answer.text
    return answer.content


def test_both_doors_speak_alike(idle_after: RunningStack, channel: grpc.Channel) -> None:
    request = tts_service_pb2.SynthesizeRequest(text=TEXT, config=speech_pb2.SpeechConfig(seed=5))
    stub = tts_service_pb2_grpc.TextToSpeechServiceStub(channel)
    answers = list(stub.Synthesize(request, timeout=TIMEOUT_S))
    pcm = b"".join(answer.audio.content for answer in answers)
    got, expected = (torch.from_numpy(pcm_to_floats(each)) for each in (pcm, _over_http(idle_after, 5)))
    assert snr_db(got, expected) >= WAVE_SNR_DB
    assert answers[-1].finished.sent_samples == len(got)
    assert answers[-1].finished.sent_characters == len(TEXT)


def test_a_riva_client_that_leaves_frees_both_services(idle_after: RunningStack, channel: grpc.Channel) -> None:
    request = riva_tts_pb2.SynthesizeSpeechRequest(text=TEXT * 10, sample_rate_hz=16000)
    call = riva_tts_pb2_grpc.RivaSpeechSynthesisStub(channel).SynthesizeOnline(iter([request]), timeout=TIMEOUT_S)
    assert next(call).audio
    call.cancel()
    idle_after.wait_idle()


def test_the_door_says_that_it_is_healthy(channel: grpc.Channel) -> None:
    answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
