"""Servers whose engine can't compute any more, or whose shared memory is full: callers are answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.token2wav_service.engine.factory import POISON, make_prompt
from tests.token2wav_service.serving.client import Answer, StreamClient, text
from tests.token2wav_service.serving.conftest import FAKE_ENGINE_MODEL
from tests.token2wav_service.serving.test_status_and_drain import SERVER_WAIT_S, launched
from token2wav_service.contract import ErrorCode, decode_error

pytestmark = pytest.mark.servers

LOST_GPU_MODEL = """
import triton_python_backend_utils as pb_utils
from servicekit.clock import SystemClock
from tests.token2wav_service.engine.factory import make_engine
from token2wav_service.engine.loop import ServingLoop
from token2wav_service.features.audio import load_prompt_audio
from token2wav_service.python_backend.server_process import server_ender
from token2wav_service.serving.token2wav_model import Token2WavModel


def probe():
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


class TritonPythonModel:
    def initialize(self, args):
        loop = ServingLoop(make_engine(SystemClock(), probe), server_ender())
        self._model = Token2WavModel(pb_utils, loop, load_prompt_audio)

    def execute(self, requests):
        self._model.execute(requests)

    def finalize(self):
        self._model.finalize()
"""


def test_a_lost_gpu_answers_the_callers_and_ends_the_server_with_an_error(tmp_path: Path) -> None:
    with launched(tmp_path, LOST_GPU_MODEL) as (process, address):
        client = StreamClient(address)
        voice = client.ask("register_voice", reference_wav=make_prompt().samples)[0].tensors["voice_id"]
        client.send("open", "lease", voice_id=text(voice[0].decode()))
        stream_id = client.opened()
        client.push(stream_id, 0, first=POISON)
        answers = [client.next(), client.next()]
        (error,) = [answer.error for answer in answers if answer.error]
        assert decode_error(error)[0] is ErrorCode.UNAVAILABLE
        (lease,) = [answer for answer in answers if "stream_summary" in answer.tensors]
        assert lease.is_final and b"aborted" in bytes(lease.tensors["stream_summary"][0])
        client.close(cancel=True)
        assert process.wait(SERVER_WAIT_S) == 1
    assert b"stopping the server" in (tmp_path / "log").read_bytes()


LOUD_ENGINE = """
import resource
from functools import partial

import tests.token2wav_service.serving.fakes
import token2wav_service.serving.token2wav_model as adapter

tests.token2wav_service.serving.fakes.SAMPLES_PER_TOKEN = 2_000_000
adapter.Responder = partial(adapter.Responder, free_bytes=lambda: {free_bytes})
resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, 8 << 20))
"""


def _answers_of_a_push(folder: Path, free_bytes: int) -> list[Answer]:
    """Push a chunk whose audio takes 40 MB; return what comes up to the lease's summary."""
    with launched(folder, LOUD_ENGINE.format(free_bytes=free_bytes) + FAKE_ENGINE_MODEL) as (_, address):
        client = StreamClient(address)
        client.push(client.open_stream(), 0, first=5)
        answers = [client.next()]
        while "stream_summary" not in answers[-1].tensors:
            answers.append(client.next())
        client.close(cancel=True)
    return answers


@pytest.mark.parametrize(
    ("free_bytes", "is_told"),
    [
        pytest.param(0, True, id="seen before"),
        pytest.param(1 << 40, False, id="found out by sending, which closes Triton's sender"),
    ],
)
def test_audio_without_room_ends_its_stream(tmp_path: Path, free_bytes: int, is_told: bool) -> None:
    *errors, lease = _answers_of_a_push(tmp_path, free_bytes)
    assert b"aborted" in bytes(lease.tensors["stream_summary"][0])
    codes = [decode_error(answer.error or "")[0] for answer in errors]
    assert codes == ([ErrorCode.INTERNAL] if is_told else [])
