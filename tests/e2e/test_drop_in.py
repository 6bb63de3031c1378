"""A program written for the original runtime, unchanged, against `cosyvoice2_dit`."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as httpclient

from cosydit.stack.checkpoint.checkpoints import CheckpointLayout
from cosydit.stack.stack import LocalStack, assemble_repository, triton_spec
from tests.e2e.conftest import RunningStack, make_options, wait_until
from tests.workers import is_whole

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
