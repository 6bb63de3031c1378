"""Real tritonservers on free ports, one per module, and the neighbours they need."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import ROOT
from tests.token2wav_service.serving.fake_llm import FakeLLMServer
from tests.workers import free_ports, random_checkpoint, wait_until
from token2wav_service.serving.assemble import TEMPLATES, assemble
from token2wav_service.serving.process.installation import ServerOptions
from token2wav_service.serving.process.server import TritonProcess

EXIT_TIMEOUT_S = 5
FAKE_ENGINE_MODEL = """
import triton_python_backend_utils as pb_utils
from tests.token2wav_service.serving.fakes import FakeEngineLoop
from token2wav_service.features.audio import load_prompt_audio
from token2wav_service.serving.token2wav_model import Token2WavModel


class TritonPythonModel:
    def initialize(self, args):
        self._model = Token2WavModel(pb_utils, FakeEngineLoop(), load_prompt_audio, metrics_interval_s=0.02)

    def execute(self, requests):
        self._model.execute(requests)

    def finalize(self):
        self._model.finalize()
"""


def write_model(folder: Path, model_text: str) -> Path:
    """Lay out a repository of a token2wav_dit with this model.py."""
    model = folder / "repository" / "token2wav_dit"
    (model / "1").mkdir(parents=True)
    shutil.copy(TEMPLATES / "token2wav_dit" / "config.pbtxt", model)
    (model / "1" / "model.py").write_text(model_text)
    return model.parent


def options_of(repository: Path) -> ServerOptions:
    return ServerOptions(repository, "127.0.0.1", *free_ports(3), EXIT_TIMEOUT_S)


@contextmanager
def started(options: ServerOptions) -> Iterator[TritonProcess]:
    with TritonProcess(options) as process:
        wait_ready(process)
        yield process


def wait_ready(process: TritonProcess) -> None:
    """Wait until every model is loaded."""
    wait_until(lambda: process.is_ready() or process.returncode is not None, "readiness")
    assert process.is_ready(), f"the server ended with status {process.returncode}"
    process.hide_shared_memory()


@pytest.fixture(scope="module")
def fake_engine_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonProcess]:
    """A real tritonserver that serves token2wav_dit's own configuration and adapter on a fake engine."""
    repository = write_model(tmp_path_factory.mktemp("triton"), FAKE_ENGINE_MODEL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        with started(options_of(repository)) as process:
            yield process


@dataclass(frozen=True)
class Checkpoint:
    """A small random checkpoint in the layout of the real one."""

    folder: Path

    @property
    def settings(self) -> dict[str, str]:
        """The assembler's settings that name its folders."""
        names = {"model_dir": "token2wav", "llm_tokenizer_dir": "llm", "voices_dir": "voices"}
        return {name: str(self.folder / folder) for name, folder in names.items()}


@pytest.fixture(scope="session")
def small_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint(random_checkpoint(tmp_path_factory))


@pytest.fixture(scope="session")
def fake_llm() -> Iterator[FakeLLMServer]:
    with FakeLLMServer().running() as server:
        yield server


@pytest.fixture(autouse=True)
def fresh_llm(request: pytest.FixtureRequest) -> None:
    """What a test did with the LLM is forgotten before the next."""
    if "fake_llm" in request.fixturenames:
        request.getfixturevalue("fake_llm").forget()


@contextmanager
def assembled_server(folder: Path, settings: Mapping[str, str], llm: FakeLLMServer) -> Iterator[TritonProcess]:
    """Assemble the whole repository and serve it."""
    options = options_of(folder / "repository")
    own = {"llm_api_base": llm.url, "triton_grpc_address": f"127.0.0.1:{options.grpc_port}", "num_threads": "1"}
    assemble(options.model_repository, {**settings, **own})
    with started(options) as process:
        yield process


@pytest.fixture(scope="module")
def streaming_server(
    tmp_path_factory: pytest.TempPathFactory, small_checkpoint: Checkpoint, fake_llm: FakeLLMServer
) -> Iterator[TritonProcess]:
    """All four models on the real engine; one request at a time in the only process of the drop-in entry."""
    settings = {**small_checkpoint.settings, "BLS_INSTANCE_NUM": "1", "requests_per_instance": "1"}
    settings |= {"MAX_QUEUE_DELAY_MICROSECONDS": "20000", "TRITON_MAX_BATCH_SIZE": "4"}
    with assembled_server(tmp_path_factory.mktemp("streaming"), settings, fake_llm) as process:
        yield process


@pytest.fixture(scope="module")
def whole_server(
    tmp_path_factory: pytest.TempPathFactory, small_checkpoint: Checkpoint, fake_llm: FakeLLMServer
) -> Iterator[TritonProcess]:
    """The same with DECOUPLED_MODE=False and two processes of the drop-in entry."""
    settings = {**small_checkpoint.settings, "BLS_INSTANCE_NUM": "2", "DECOUPLED_MODE": "False"}
    with assembled_server(tmp_path_factory.mktemp("whole"), settings, fake_llm) as process:
        yield process
