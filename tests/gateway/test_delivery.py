"""Speech in frames, each character with the audio that it ends in, and how far it may be ahead of its listener."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from contextlib import aclosing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.delivery import FRAME_S, Delivery, Pacer, frames_of, timed
from gateway.speech.request import SpeechRequest, SpeechResult
from gateway.speech.session import SessionAudio
from gateway.speech.text_clock import CharacterTime
from gateway.voices.registry import NamedVoice
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, ManualClock, make_pipeline, speech_deltas
from token2wav_service.contract import SAMPLE_RATE_HZ

FRAME_SAMPLES = round(FRAME_S * SAMPLE_RATE_HZ)


def audio_of(samples: int, ends_s: list[float], *, is_turn_end: bool = False, began_s: float = 0.0) -> SessionAudio:
    characters = [CharacterTime(chr(97 + i), i, began_s, began_s + end_s) for i, end_s in enumerate(ends_s)]
    return SessionAudio(np.arange(samples, dtype=np.float32), tuple(characters), is_turn_end)


@pytest.mark.parametrize("samples", [0, 1, FRAME_SAMPLES - 1, FRAME_SAMPLES, FRAME_SAMPLES + 1, 5 * FRAME_SAMPLES])
def test_frames_hold_all_samples_and_characters_in_order(samples: int) -> None:
    audio = audio_of(samples, [0.0, samples / SAMPLE_RATE_HZ / 2, samples / SAMPLE_RATE_HZ], is_turn_end=True)
    frames = list(frames_of(audio, 0))
    np.testing.assert_array_equal(np.concatenate([frame.samples for frame in frames]), audio.samples)
    assert [each for frame in frames for each in frame.characters] == list(audio.characters)
    assert [frame.is_turn_end for frame in frames] == [False] * (len(frames) - 1) + [True]
    assert all(len(frame.samples) <= FRAME_SAMPLES for frame in frames)


def test_a_character_comes_with_the_frame_that_it_ends_in() -> None:
    frames = list(frames_of(audio_of(3 * FRAME_SAMPLES, [0.05, 0.1, 0.15, 0.3], began_s=1.0), SAMPLE_RATE_HZ))
    assert ["".join(each.character for each in frame.characters) for frame in frames] == ["ab", "c", "d"]


async def test_a_whole_text_is_timed_as_a_session_does(voices: list[NamedVoice]) -> None:
    pipeline = make_pipeline(FakeLLM(speech_deltas(50)), FakeToken2Wav(), voices)
    request, result = SpeechRequest("Hello, this is it.", seed=1), SpeechResult()
    audio = [piece async for piece in timed(pipeline.synthesize(request, result), result)]
    times = [each for piece in audio for each in piece.characters]
    assert "".join(each.character for each in times) == request.text
    assert times[-1].end_s == pytest.approx(50 / 25)
    assert [piece.is_turn_end for piece in audio] == [False] * (len(audio) - 1) + [True]


async def test_the_account_tells_what_was_made_and_what_was_sent() -> None:
    async def speech() -> AsyncGenerator[SessionAudio]:
        yield audio_of(10 * FRAME_SAMPLES, [0.1, 0.2, 0.9])

    delivery = Delivery(Pacer(ManualClock(), math.inf))
    async with aclosing(delivery.frames(speech())) as frames:
        await anext(frames)
        await anext(frames)
    assert delivery.generated_samples == 10 * FRAME_SAMPLES
    assert delivery.sent_samples == 2 * FRAME_SAMPLES
    assert delivery.sent_characters == 2


async def test_closing_the_frames_closes_the_speech() -> None:
    closed = []

    async def speech() -> AsyncGenerator[SessionAudio]:
        try:
            yield audio_of(10 * FRAME_SAMPLES, [])
        finally:
            closed.append(True)

    async with aclosing(Delivery(Pacer(ManualClock(), math.inf)).frames(speech())) as frames:
        await anext(frames)
    assert closed == [True]


RUN_AHEAD_S = 2.0


def send(pacer: Pacer, clock: ManualClock, audio_s: float) -> None:
    while (wait_s := pacer.wait_s(audio_s)) > 0:
        clock.seconds += wait_s
    pacer.sent(audio_s)


def test_the_run_ahead_goes_at_once_and_the_rest_in_real_time() -> None:
    clock = ManualClock()
    pacer = Pacer(clock, RUN_AHEAD_S)
    for _ in range(20):
        send(pacer, clock, 0.5)
    assert clock.seconds == pytest.approx(20 * 0.5 - RUN_AHEAD_S)


def test_time_without_audio_is_not_caught_up() -> None:
    clock = ManualClock()
    pacer = Pacer(clock, RUN_AHEAD_S)
    send(pacer, clock, 1.0)
    clock.seconds += 60.0
    pacer.sent(RUN_AHEAD_S)
    assert pacer.wait_s(0.5) == pytest.approx(0.5)


def test_a_piece_longer_than_the_run_ahead_goes_when_all_is_played() -> None:
    clock = ManualClock()
    pacer = Pacer(clock, RUN_AHEAD_S)
    send(pacer, clock, 5.0)
    assert clock.seconds == 0
    assert pacer.wait_s(5.0) == pytest.approx(5.0)


def test_an_endless_run_ahead_never_waits() -> None:
    pacer = Pacer(ManualClock(), math.inf)
    pacer.sent(3600.0)
    assert pacer.wait_s(3600.0) == 0


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 5)), max_size=50))
def test_never_more_than_the_run_ahead_waits_to_be_played(steps: list[tuple[float, float]]) -> None:
    clock = ManualClock()
    pacer = Pacer(clock, RUN_AHEAD_S)
    for audio_s, pause_s in steps:
        send(pacer, clock, audio_s)
        assert pacer.ahead_s <= RUN_AHEAD_S + 1e-3 + 1e-6
        clock.seconds += pause_s
