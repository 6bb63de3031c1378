"""Which runner an engine gets, and the status that it reports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from servicekit.clock import SystemClock
from servicekit.stream_limit import LEAST_STREAMS, StreamLimit
from tests.token2wav_service.engine.factory import drain, make_engine, open_stream, push_all, tokens_of
from tests.virtual_time import ManualClock
from token2wav_service.build import build_engine, choose_runner
from token2wav_service.checkpoint.family import Family
from token2wav_service.checkpoint.make_random import SMALL_SIZES, make_random_token2wav
from token2wav_service.config import RunnerKind, SynthesisPolicy, Token2WavConfig
from token2wav_service.contract import ServerStatus
from token2wav_service.engine.meter import REMEMBERED_STEPS, EngineMeter
from token2wav_service.errors import CheckpointError, EngineUnfitError
from token2wav_service.runtime.slots.slot_runner import SlotRunner
from token2wav_service.runtime.torch_runner import ModelRunner
from token2wav_service.types import AudioChunk, StreamOptions, TokenChunk, VoicePrompt


@pytest.mark.parametrize(
    ("device", "policy", "expected"),
    [
        pytest.param("cpu", SynthesisPolicy(), RunnerKind.PACKED, id="a CPU"),
        pytest.param("cpu", SynthesisPolicy(is_reference=True), RunnerKind.TORCH, id="upstream noise, a CPU"),
        pytest.param("cuda", SynthesisPolicy(), RunnerKind.SLOTS, id="a GPU"),
        pytest.param("cuda:1", SynthesisPolicy(), RunnerKind.SLOTS, id="another GPU"),
        pytest.param("cuda", SynthesisPolicy(is_reference=True), RunnerKind.TORCH, id="upstream noise"),
    ],
)
def test_auto_takes_what_suits_the_device_unless_a_policy_needs_the_plain_modules(
    device: str, policy: SynthesisPolicy, expected: RunnerKind
) -> None:
    config = Token2WavConfig(Path("unused"), device=device, synthesis=policy)
    assert choose_runner(config) is expected


def test_a_named_runner_is_taken_as_it_is() -> None:
    assert choose_runner(Token2WavConfig(Path("unused"), runner=RunnerKind.SLOTS)) is RunnerKind.SLOTS


@pytest.mark.slow
@pytest.mark.parametrize("family", Family)
def test_a_checkpoint_of_every_family_speaks(family: Family, tmp_path: Path) -> None:
    make_random_token2wav(tmp_path, 0, *SMALL_SIZES[family])
    engine = build_engine(Token2WavConfig(tmp_path, synthesis=SynthesisPolicy(ode_steps=1)), SystemClock())
    noise = np.random.default_rng(0).standard_normal(4 * 16_000).astype(np.float32)
    voice = engine.voices.register(VoicePrompt(0.1 * noise))
    stream = engine.open_stream(voice.voice_id, StreamOptions(seed=1))
    engine.add_chunk(TokenChunk(stream, 0, tuple(range(10)), False))
    engine.add_chunk(TokenChunk(stream, 1, tuple(range(7, 40)), True))
    heard = [result.outcome for _ in range(2) for result in engine.step()]
    assert all(isinstance(audio, AudioChunk) for audio in heard)
    assert sum(len(audio.samples) for audio in heard if isinstance(audio, AudioChunk)) == 40 * 960
    assert engine.open_stream_ids() == []


@pytest.mark.slow
@pytest.mark.parametrize("family", [Family.COSYVOICE2, Family.COSYVOICE3])
def test_block_masked_families_get_their_runner(family: Family, tmp_path: Path) -> None:
    make_random_token2wav(tmp_path, 0, *SMALL_SIZES[family])
    policy = SynthesisPolicy(ode_steps=1)
    for runner, kind in ((RunnerKind.AUTO, ModelRunner), (RunnerKind.SLOTS, SlotRunner)):
        config = Token2WavConfig(tmp_path, runner=runner, max_streams=2, synthesis=policy)
        assert isinstance(build_engine(config, SystemClock()).runner, kind)


@pytest.mark.slow
def test_cpu_cores_admit_few_streams_until_they_are_measured(tmp_path: Path) -> None:
    make_random_token2wav(tmp_path, 0, *SMALL_SIZES[Family.COSYVOICE3])
    engine = build_engine(Token2WavConfig(tmp_path, max_streams=100), SystemClock(), is_realtime=True)
    assert engine.status().max_streams == LEAST_STREAMS


@pytest.mark.slow
def test_what_does_not_serve_the_family_is_refused(tmp_path: Path) -> None:
    make_random_token2wav(tmp_path / "3", 0, *SMALL_SIZES[Family.COSYVOICE3])
    with pytest.raises(CheckpointError, match=r"cosyvoice3.*packed"):
        build_engine(Token2WavConfig(tmp_path / "3", runner=RunnerKind.PACKED), SystemClock())
    with pytest.raises(EngineUnfitError, match="needs device=cuda"):
        build_engine(Token2WavConfig(tmp_path / "3", runner=RunnerKind.TENSORRT), SystemClock())


def test_an_idle_engine_says_its_slots_and_no_speed() -> None:
    engine = make_engine()
    status = engine.status()
    assert (status.max_streams, status.open_streams, status.steps) == (engine.config.max_streams, 0, 0)
    assert status.step_seconds is None
    assert not status.is_draining


def test_streams_that_wait_for_a_step_are_ready_and_steps_are_counted() -> None:
    engine = make_engine()
    streams = [open_stream(engine, seed=seed) for seed in range(3)]
    for stream_id in streams[:2]:
        push_all(engine, stream_id, tokens_of(20, seed=1), hop=10)
    assert (engine.status().open_streams, engine.ready_streams()) == (3, 2)
    drain(engine)
    done = engine.status()
    assert (done.open_streams, engine.ready_streams()) == (1, 0)
    assert done.steps == engine.stats().steps > 0
    assert done.step_seconds is not None
    engine.abort(streams[2])


def test_the_newest_steps_give_the_duration() -> None:
    meter, clock = EngineMeter(), ManualClock()
    meter.step(1, 100.0)
    for _ in range(REMEMBERED_STEPS):
        meter.step(1, 0.05)
    status = meter.status([], StreamLimit(1, clock), 1)
    assert status.step_seconds == pytest.approx(0.05)


def test_a_status_travels_as_json_and_later_versions_may_say_more() -> None:
    status = ServerStatus(8, 3, 100, 0.02, True)
    assert ServerStatus.from_json(status.to_json()) == status
    assert ServerStatus.from_json(status.to_json()[:-1] + ', "news": 1}') == status


STATUS = ServerStatus(8, 3, 100, 0.02, True).to_json()


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '{"max_streams": 1}', "[" * 3000),
        *(STATUS.replace("8", wrong, 1) for wrong in ("null", "true", '"8"', "8.5")),
        STATUS.replace("0.02", '"0.02"'),
    ],
)
def test_what_is_no_status_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        ServerStatus.from_json(text)
