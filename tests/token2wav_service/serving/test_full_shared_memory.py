"""Audio that finds no room in Triton's shared memory: its caller is told, and its stream ends.

A limit of the model process's file sizes stands for a full /dev/shm: the server's region can't grow past it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.token2wav_service.serving.client import Answer, StreamClient
from tests.token2wav_service.serving.conftest import FAKE_ENGINE_MODEL
from tests.token2wav_service.serving.test_status_and_drain import launched
from token2wav_service.contract import ErrorCode, decode_error

pytestmark = pytest.mark.servers

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
