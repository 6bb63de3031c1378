"""Speech through the gateway's gRPC door and both services."""

from __future__ import annotations

from typing import Any

import grpc
import httpx
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc
from riva.proto import riva_tts_pb2, riva_tts_pb2_grpc
from tts_api.tts.v1 import speech_pb2, tts_service_pb2, tts_service_pb2_grpc

from tests.e2e.conftest import RunningStack, pcm_to_floats
from token2wav_service.replay.report import WAVE_SNR_DB, snr_db

pytestmark = pytest.mark.servers

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
