"""A program written for the original runtime, unchanged, against `cosyvoice2_dit`; and our own gRPC door."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from tts_api.tts.v1 import speech_pb2, tts_service_pb2, tts_service_pb2_grpc

from tests.e2e.conftest import RunningStack, pcm_to_floats
from tests.workers import wait_until
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


TEXT = "One text, and two doors."
TIMEOUT_S = 120


@pytest.fixture
def channel(idle_after: RunningStack) -> Any:
    with grpc.insecure_channel(f"127.0.0.1:{idle_after.options.ports.gateway_grpc}") as channel:
        yield channel


def test_both_doors_speak_alike(idle_after: RunningStack, channel: grpc.Channel) -> None:
    request = tts_service_pb2.SynthesizeRequest(text=TEXT, config=speech_pb2.SpeechConfig(seed=5))
    stub = tts_service_pb2_grpc.TextToSpeechServiceStub(channel)
    answers = list(stub.Synthesize(request, timeout=TIMEOUT_S))
    pcm = b"".join(answer.audio.content for answer in answers)
    over_http = idle_after.speak(TEXT, seed=5)
    assert over_http.status_code == 200, over_http.text
    got, expected = (torch.from_numpy(pcm_to_floats(each)) for each in (pcm, over_http.content))
    assert snr_db(got, expected) >= WAVE_SNR_DB
    assert answers[-1].finished.sent_samples == len(got)
    assert answers[-1].finished.sent_characters == len(TEXT)
