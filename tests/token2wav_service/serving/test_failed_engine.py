"""A server whose engine can't compute any more: its callers are answered, and it ends so that it is restarted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.token2wav_service.engine.factory import POISON, make_prompt
from tests.token2wav_service.serving.client import StreamClient, text
from tests.token2wav_service.serving.test_status_and_drain import SERVER_WAIT_S, launched
from token2wav_service.contract import ErrorCode, decode_error

pytestmark = pytest.mark.servers

LOST_GPU_MODEL = """
import triton_python_backend_utils as pb_utils
from servicekit.clock import SystemClock
from tests.token2wav_service.engine.factory import make_engine
from token2wav_service.engine.loop import EngineLoop
from token2wav_service.features.audio import load_prompt_audio
from token2wav_service.python_backend.server_process import server_ender
from token2wav_service.serving.token2wav_model import Token2WavModel


def probe():
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


class TritonPythonModel:
    def initialize(self, args):
        loop = EngineLoop(make_engine(SystemClock(), probe), server_ender())
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
        stream_id = text(client.next().tensors["stream_id"][0].decode())
        client.push(stream_id, 0, first=POISON)
        answers = [client.next(), client.next()]
        (error,) = [answer.error for answer in answers if answer.error]
        assert decode_error(error)[0] is ErrorCode.UNAVAILABLE
        (lease,) = [answer for answer in answers if "stream_summary" in answer.tensors]
        assert lease.is_final and b"aborted" in bytes(lease.tensors["stream_summary"][0])
        client.close(cancel=True)
        assert process.wait(SERVER_WAIT_S) == 1
    assert b"stopping the server" in (tmp_path / "log").read_bytes()
