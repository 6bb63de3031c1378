"""The arithmetic of slack and underruns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.telemetry.metrics import Playback, underrun_s


def test_the_first_audio_has_no_slack_and_empty_chunks_none_at_all() -> None:
    listener = Playback()
    assert listener.deliver(0.0, 0.4, 0.0) is None
    assert listener.deliver(0.4, 0.5, 1.0) is None
    assert listener.deliver(0.5, 0.9, 0.0) is None


def test_slack_is_what_is_left_to_play_and_adds_up() -> None:
    listener = Playback()
    listener.deliver(0.0, 0.5, 1.0)
    assert listener.deliver(0.5, 0.7, 2.0) == pytest.approx(0.8)
    assert listener.deliver(0.7, 3.0, 1.0) == pytest.approx(0.5)


def test_after_an_underrun_the_listener_plays_on_from_the_late_chunk() -> None:
    listener = Playback()
    listener.deliver(0.0, 0.0, 1.0)
    late = listener.deliver(0.0, 1.3, 1.0)
    assert late == pytest.approx(-0.3)
    assert late is not None and underrun_s(late) == pytest.approx(0.3)
    assert listener.deliver(1.3, 2.0, 1.0) == pytest.approx(0.3), "the silence moved the end by as much"


def test_who_asks_late_waits_from_then_on() -> None:
    listener = Playback()
    listener.deliver(0.0, 0.0, 1.0)
    assert listener.deliver(5.0, 5.1, 1.0) == pytest.approx(-0.1), "not the 4.1 s in which nobody asked"


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(0.01, 3.0)), min_size=2, max_size=30))
def test_silence_and_audio_fill_the_time_of_a_listener_who_always_asks(chunks: list[tuple[float, float]]) -> None:
    listener, now_s, asked_s, silence_s = Playback(), 0.0, 0.0, 0.0
    for pause_s, audio_s in chunks:
        now_s += pause_s
        slack_s = listener.deliver(asked_s, now_s, audio_s)
        silence_s += underrun_s(slack_s) if slack_s is not None else 0.0
        asked_s = now_s
    last_began_s = now_s - chunks[0][0]
    assert last_began_s <= sum(audio_s for _, audio_s in chunks[:-1]) + silence_s + 1e-6
