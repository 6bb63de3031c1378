"""What the engine says of how busy it is."""

from __future__ import annotations

import pytest

from tests.token2wav_service.engine.factory import drain, make_engine, open_stream, push_all, tokens_of
from token2wav_service.contract import ServerStatus
from token2wav_service.engine.counters import REMEMBERED_STEPS, RecentSteps


def test_an_idle_engine_says_its_slots_and_no_speed() -> None:
    engine = make_engine()
    status = engine.status()
    assert (status.max_streams, status.open_streams, status.steps) == (engine.config.max_streams, 0, 0)
    assert (status.step_seconds, status.audio_seconds_per_second) == (None, None)
    assert not status.is_draining


def test_streams_that_wait_for_a_step_are_ready_and_steps_are_counted() -> None:
    engine = make_engine()
    streams = [open_stream(engine, seed=seed) for seed in range(3)]
    for stream_id in streams[:2]:
        push_all(engine, stream_id, tokens_of(20, seed=1), hop=10)
    busy = engine.status()
    assert (busy.open_streams, busy.ready_streams) == (3, 2)
    drain(engine)
    done = engine.status()
    assert (done.open_streams, done.ready_streams) == (1, 0)
    assert done.steps == engine.stats().steps > 0
    assert done.step_seconds is not None
    engine.abort(streams[2])


def test_the_newest_steps_give_duration_and_speed() -> None:
    steps = RecentSteps()
    assert (steps.mean_s, steps.audio_s_per_s) == (None, None)
    steps.add(100.0, 0.0)
    for _ in range(REMEMBERED_STEPS):
        steps.add(0.05, 2.0)
    assert steps.mean_s == pytest.approx(0.05)
    assert steps.audio_s_per_s == pytest.approx(40.0)


def test_a_status_travels_as_json_and_later_versions_may_say_more() -> None:
    status = ServerStatus(8, 3, 1, 16, 100, 0.02, None, True)
    assert ServerStatus.from_json(status.to_json()) == status
    assert ServerStatus.from_json(status.to_json()[:-1] + ', "news": 1}') == status


STATUS = ServerStatus(8, 3, 1, 16, 100, 0.02, None, True).to_json()


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
