"""The silence before the first sound: how much stays, and that no onset is lost, whatever the chunks."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.core import FloatArray
from gateway.delivery import timed
from gateway.speech.pauses import DEFAULT_KEPT_S, SOFTEST_DBFS, LeadingSilence
from gateway.speech.request import SpeechRequest, SpeechResult
from gateway.speech.session import SpeechSession
from gateway.speech.speaker import PipelineSettings
from gateway.speech.text_clock import TOKENS_A_LETTER, WordGatherer
from gateway.voices.registry import NamedVoice
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, make_pipeline, speech_deltas
from token2wav_service.contract import SAMPLE_RATE_HZ

RNG = np.random.default_rng(5)
KEPT = 408


def noise(seconds: float, level_dbfs: float) -> FloatArray:
    return (10 ** (level_dbfs / 20) * RNG.standard_normal(round(seconds * SAMPLE_RATE_HZ))).astype(np.float32)


def vowel(seconds: float) -> FloatArray:
    times = np.arange(round(seconds * SAMPLE_RATE_HZ)) / SAMPLE_RATE_HZ
    return (0.2 * np.sign(np.sin(2 * np.pi * 120 * times))).astype(np.float32)


def rising(seconds: float, from_dbfs: float, to_dbfs: float) -> FloatArray:
    samples = noise(seconds, 0.0)
    return samples * 10 ** (np.linspace(from_dbfs, to_dbfs, len(samples)) / 20).astype(np.float32)


def heard(samples: FloatArray, chunks: tuple[int, ...] = (960, 2880, 9600)) -> FloatArray:
    """Send samples in chunks of these sizes, the last one again and again."""
    silence, parts, at = LeadingSilence(), list[FloatArray](), 0
    while at < len(samples):
        size = chunks[min(len(parts), len(chunks) - 1)]
        parts.append(silence.without(samples[at : at + size], at + size >= len(samples)))
        at += size
    out: FloatArray = np.concatenate(parts)
    assert len(out) == len(samples) - silence.cut_samples
    return out


ONSETS = {
    "vowel": vowel(0.2),
    "fricative, rising from the floor": np.concatenate([rising(0.06, -70.0, -30.0), vowel(0.2)]),
    "soft f": np.concatenate([noise(0.08, -52.0), vowel(0.2)]),
    "stop: closure, burst, aspiration": np.concatenate([noise(0.004, -38.0), noise(0.05, -55.0), vowel(0.2)]),
    "voiced stop": np.concatenate([0.02 * vowel(0.06), vowel(0.2)]),
}


@pytest.mark.parametrize("floor_dbfs", [-200.0, -90.0, -66.0])
@pytest.mark.parametrize("onset", ONSETS.values(), ids=ONSETS.keys())
def test_17_ms_of_silence_stay_and_all_of_the_onset(onset: FloatArray, floor_dbfs: float) -> None:
    """The onset may be found late by as much as 17 ms, since so much stays before the place where it is found."""
    made = np.concatenate([noise(0.17, floor_dbfs), onset])
    out = heard(made)
    assert len(onset) <= len(out) <= len(onset) + KEPT + 120
    assert np.array_equal(out, made[len(made) - len(out) :])


@pytest.mark.parametrize(("silence", "gain"), [(4080, 1.0), (4081, 1.0), (4199, 1.0), (4198, 0.03)])
def test_17_ms_are_17_ms_wherever_the_first_sound_begins(silence: int, gain: float) -> None:
    made = np.concatenate([np.zeros(silence, np.float32), gain * vowel(0.2)])
    assert np.flatnonzero(heard(made))[0] == KEPT


def test_what_is_cut_of_an_onset_is_softer_than_any_sound() -> None:
    """From -75 dBFS on it is silence for the first 20 ms, and so is what is cut of it: less than 1 ms."""
    onset = np.concatenate([rising(0.06, -75.0, -30.0), vowel(0.2)])
    out = heard(np.concatenate([np.zeros(4080, np.float32), onset]))
    cut = onset[: max(len(onset) - len(out), 0)]
    assert len(cut) < 24 and np.all(np.abs(cut) < 10 ** (SOFTEST_DBFS / 20))


@pytest.mark.parametrize("chunks", [(1,), (119, 121), (4800,), (100_000,)])
def test_what_is_heard_does_not_depend_on_the_chunks(chunks: tuple[int, ...]) -> None:
    made = np.concatenate([noise(0.1, -80.0), ONSETS["soft f"]])
    assert np.array_equal(heard(made, chunks), heard(made))


def test_speech_that_begins_at_once_is_untouched() -> None:
    made = vowel(0.3)
    assert np.array_equal(heard(made), made)


def test_noise_without_silence_before_it_is_untouched() -> None:
    """Random weights make such: as loud from the first sample on as later."""
    made = noise(0.3, -30.0)
    assert np.array_equal(heard(made), made)


def test_a_second_is_cut_at_most() -> None:
    made = np.concatenate([np.zeros(3 * SAMPLE_RATE_HZ, np.float32), vowel(0.1)])
    assert len(made) - len(heard(made)) == pytest.approx(SAMPLE_RATE_HZ, abs=9600)


def test_silence_alone_comes_to_an_end() -> None:
    assert 0 < len(heard(np.zeros(12_000, np.float32))) <= KEPT + 120


def test_all_of_it_may_stay() -> None:
    silence, samples = LeadingSilence(None), np.zeros(2400, np.float32)
    assert silence.without(samples, False) is samples and silence.cut_samples == 0


SPEECH = 50 * 960
CUT = 3600
SETTINGS = PipelineSettings(leading_silence_s=DEFAULT_KEPT_S)


async def test_a_stream_begins_with_its_first_sound_and_breaks_lie_where_words_end(voices: list[NamedVoice]) -> None:
    pipeline = make_pipeline(FakeLLM(speech_deltas(50)), FakeToken2Wav(silent_samples=KEPT + CUT), voices, SETTINGS)
    result = SpeechResult()
    request = SpeechRequest('One.<break time="300ms"/>Two.', seed=1)
    samples = np.concatenate([chunk.samples async for chunk in pipeline.synthesize(request, result)])
    sounding = np.flatnonzero(samples)
    assert sounding[0] == KEPT and len(samples) == 2 * SPEECH - CUT + 7200 == result.audio_samples
    gap = np.flatnonzero(np.diff(sounding) > 1)
    assert [(sounding[at] + 1, sounding[at + 1]) for at in gap] == [(SPEECH - CUT, SPEECH - CUT + 7200)]
    assert [span.end_samples for span in result.spans] == [SPEECH - CUT + 7200, len(samples)]


async def test_the_times_of_words_begin_with_the_sound(voices: list[NamedVoice]) -> None:
    pipeline = make_pipeline(FakeLLM(speech_deltas(50)), FakeToken2Wav(silent_samples=KEPT + CUT), voices, SETTINGS)
    result, gatherer, words = SpeechResult(), WordGatherer(), []
    chunks = pipeline.synthesize(SpeechRequest("One two three four.", seed=1), result)
    async for frame in timed(chunks, result):
        words += gatherer.push(frame.characters)
    words += gatherer.finish()
    assert words[-1].end_s == pytest.approx((SPEECH - CUT) / SAMPLE_RATE_HZ)
    estimated_s = TOKENS_A_LETTER * 19 / 25 - CUT / SAMPLE_RATE_HZ
    assert words[1].start_s == pytest.approx(4 / 19 * estimated_s)


async def test_only_the_first_turn_of_a_session_loses_its_silence(voices: list[NamedVoice]) -> None:
    pipeline = make_pipeline(FakeLLM(speech_deltas(50)), FakeToken2Wav(silent_samples=KEPT + CUT), voices, SETTINGS)
    session = SpeechSession(pipeline, SpeechRequest("", seed=1))
    for text in ("One.", "Two."):
        session.write(text)
        session.flush()
    session.end()
    turns, samples = [], 0
    async for audio in session.audio():
        samples += len(audio.samples)
        if audio.is_turn_end:
            turns.append(samples)
            samples = 0
    assert turns == [SPEECH - CUT, SPEECH]
