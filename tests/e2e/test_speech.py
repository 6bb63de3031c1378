"""Speech through the gateway's door and both services."""

from __future__ import annotations

import io
import json
import wave
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
import pytest
import torch
from websockets.sync.client import ClientConnection, connect

from tests.e2e.conftest import RunningStack, pcm_to_floats
from token2wav_service.replay.vectors import WAVE_SNR_DB, snr_db
from token2wav_service.runtime.cpu.packed_solver import product_type

pytestmark = pytest.mark.servers

TEXT = "Numbers one to four speak at once."
CALLERS = 4
COMPANY_SNR_DB = WAVE_SNR_DB if product_type() is torch.float32 else 15.0
"""Of speech in other company: bfloat16 products, on cores with AMX, move the pitch by 0.01 %, and the wave's phase
drifts."""


def _speak(running: RunningStack, seed: int) -> bytes:
    answer = running.speak(TEXT, seed=seed)
    assert answer.status_code == 200, answer.text
    return answer.content


@lru_cache
def _spoken(running: RunningStack, seed: int) -> bytes:
    """Return what a caller without neighbours hears."""
    return _speak(running, seed)


def _assert_same_speech(got: bytes, expected: bytes, least_db: float) -> None:
    a, b = torch.from_numpy(pcm_to_floats(got)), torch.from_numpy(pcm_to_floats(expected))
    assert a.shape == b.shape
    assert snr_db(a, b) >= least_db


def test_wav_comes_out_and_is_not_silent(idle_after: RunningStack) -> None:
    answer = idle_after.speak(TEXT, response_format="wav")
    assert answer.headers["content-type"].startswith("audio/")
    assert answer.headers["x-request-id"]
    with wave.open(io.BytesIO(answer.content)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24000, 1, 2)
    assert np.abs(pcm_to_floats(answer.content[44:])).max() > 0.01


def test_equal_seeds_give_equal_speech_and_others_do_not(idle_after: RunningStack) -> None:
    first, again, other = (_speak(idle_after, seed) for seed in (3, 3, 6))
    _assert_same_speech(again, first, WAVE_SNR_DB)
    assert other != first


def test_concurrent_callers_share_steps_and_hear_what_they_hear_alone(idle_after: RunningStack) -> None:
    alone = [_spoken(idle_after, seed=seed) for seed in range(CALLERS)]
    steps, streams = (idle_after.token2wav_metric(f"step_batch_size_{kind}") for kind in ("count", "sum"))
    with ThreadPoolExecutor(CALLERS) as pool:
        together = list(pool.map(lambda seed: _speak(idle_after, seed), range(CALLERS)))
    for got, expected in zip(together, alone, strict=True):
        _assert_same_speech(got, expected, COMPANY_SNR_DB)
    new_steps = idle_after.token2wav_metric("step_batch_size_count") - steps
    new_streams = idle_after.token2wav_metric("step_batch_size_sum") - streams
    assert new_streams > new_steps, "no step ran more than one stream"


def test_a_caller_who_leaves_frees_both_services(idle_after: RunningStack) -> None:
    idle_after.leave(TEXT * 10)
    idle_after.wait_idle()


def test_a_text_may_be_taken_by_the_llm_while_it_is_written(running: RunningStack) -> None:
    url = f"ws://127.0.0.1:{running.options.ports.gateway}/v1/audio/speech/stream"
    config = {"type": "session.config", "voice": "default", "stream_audio": True, "text_mode": "interleaved", "seed": 1}
    with connect(url, proxy=None) as socket:
        socket.send(json.dumps(config))
        for word in f"{TEXT} {TEXT}".split():
            socket.send(json.dumps({"type": "input.text", "text": f"{word} "}))
        socket.send(json.dumps({"type": "input.done"}))
        heard = list(socket_messages(socket))
    done = json.loads(heard[-1])
    assert (done["total_sentences"], done["progress"]["cancelled"]) == (1, False), heard
    audio = b"".join(message for message in heard if isinstance(message, bytes))
    assert len(audio) % (2 * 960) == 0 and len(audio) > 48000 and any(audio)
    running.wait_idle()


def socket_messages(socket: ClientConnection) -> Iterator[str | bytes]:
    """Yield what comes, up to the end of the utterance."""
    while True:
        message = socket.recv(timeout=120)
        yield message
        if isinstance(message, str) and json.loads(message)["type"] == "session.done":
            return
