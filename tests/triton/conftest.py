"""One real tritonserver per module, on free ports."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from token2wav_service.triton.assemble import TEMPLATES
from token2wav_service.triton.server import ServerOptions, TritonProcess, free_ports, triton_server

READY_TIMEOUT_S = 60.0
REPOSITORY_ROOT = Path(__file__).parents[2]

FAKE_ENGINE_MODEL = """
import triton_python_backend_utils as pb_utils
from tests.triton.fakes import FakeEngineLoop
from token2wav_service.features.audio import load_prompt_audio
from token2wav_service.triton.token2wav_model import Token2WavModel


class TritonPythonModel:
    def initialize(self, args):
        self._model = Token2WavModel(pb_utils, FakeEngineLoop(), load_prompt_audio, metrics_interval_s=0.02)

    def execute(self, requests):
        self._model.execute(requests)

    def finalize(self):
        self._model.finalize()
"""


@pytest.fixture(scope="module")
def fake_engine_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonProcess]:
    """A real tritonserver that serves token2wav_dit's own configuration and adapter on a fake engine."""
    folder = tmp_path_factory.mktemp("triton")
    model = folder / "repository" / "token2wav_dit"
    (model / "1").mkdir(parents=True)
    shutil.copy(TEMPLATES / "token2wav_dit" / "config.pbtxt", model)
    (model / "1" / "model.py").write_text(FAKE_ENGINE_MODEL)
    http_port, grpc_port, metrics_port = free_ports(3)
    options = ServerOptions(folder / "repository", "127.0.0.1", http_port, grpc_port, metrics_port)
    env = {"PYTHONPATH": str(REPOSITORY_ROOT)}
    with triton_server(options, log_path=folder / "log", ready_timeout_s=READY_TIMEOUT_S, extra_env=env) as process:
        yield process
