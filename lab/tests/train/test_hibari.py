"""The teacher hibari, with a stand-in for its package: manners, phones, pitch, and shards at 24 kHz."""

from __future__ import annotations

import wave
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lab.ears.pitch import heard_pitch, track_pitch
from lab.train import corpus
from lab.train.corpus import make_corpus, wide_jobs
from lab.train.make_voices import VOICES_OF, SourceVoices, make_voices
from lab.train.teachers import choices
from lab.train.teachers.flite import FloatArray, SynthesisError
from lab.train.teachers.hibari import (
    FRAME_SECONDS,
    MANNERS,
    PHONES_OF,
    RATE_HZ,
    HibariEngine,
    Prediction,
    pitch_at_frames,
    segments_of,
)
from lab.train.utterance import LAYOUTS, audio_16k, utterance_arrays, whole_tokens

FRAME_SAMPLES = round(RATE_HZ * FRAME_SECONDS)
UNITS = 4
"""Length of every phoneme of the stand-in at speed 1; two frames each."""


class FakeHibari:
    """Says every letter for 0.1 s at 200 Hz, and its edges without voice."""

    def phonemize(self, text: str) -> list[str]:
        return [f"{sentence.strip()}." for sentence in text.split(".") if sentence.strip()]

    def known(self, phonemes: str) -> str:
        return "".join(phoneme for phoneme in phonemes if phoneme in PHONES_OF or phoneme in " .")

    def predict(self, phonemes: str, speed: float) -> Prediction:
        lengths = np.full(len(phonemes) + 2, round(UNITS / speed), np.int64)
        pitch = np.repeat(np.array([0.0, *[200.0] * len(phonemes), 0.0], np.float32), 2 * lengths)
        return Prediction((), pitch, lengths)

    def samples(self, prediction: Prediction, pitch: FloatArray, draw: np.random.Generator) -> FloatArray:
        phase = 2 * np.pi * np.cumsum(np.repeat(pitch, FRAME_SAMPLES), dtype=np.float64) / RATE_HZ
        tone = sum(np.sin(n * phase) for n in (1, 2, 3)) * 0.2
        return np.asarray(tone + 1e-3 * draw.standard_normal(len(phase)), np.float32)


@pytest.mark.parametrize("speaker", range(len(MANNERS)), ids=[manner.name for manner in MANNERS])
def test_a_manner_has_its_pitch_and_takes_as_long(speaker: int) -> None:
    engine = HibariEngine(FakeHibari())

    plain, spoken = engine.speak("abba abba.", 0), engine.speak("abba abba.", speaker)

    assert spoken.rate_hz == RATE_HZ and spoken.pitch is not None
    assert len(spoken.samples) == pytest.approx(len(plain.samples), rel=0.15)
    assert spoken.segments[-1].end_s == pytest.approx(len(spoken.samples) / RATE_HZ, abs=0.01)
    voiced = spoken.pitch[spoken.pitch > 0]
    assert voiced == pytest.approx(200.0 * MANNERS[speaker].pitch, rel=1e-3)
    heard = track_pitch(audio_16k(spoken), 16_000)
    assert np.median(heard[heard > 0]) == pytest.approx(voiced[0], rel=0.03)


def test_phones_follow_the_phonemes_and_marks_belong_to_what_comes_next() -> None:
    segments = segments_of("ˈkæ t.", [1] * 8, 1.0, 1.8)

    assert [segment.phone for segment in segments] == ["pau", "k", "ae", "t", "pau", "pau"]
    assert [segment.end_s for segment in segments] == pytest.approx([1.07, 1.27, 1.37, 1.57, 1.67, 1.8])


def test_pitch_is_interpolated_between_voiced_values_only() -> None:
    curve = np.array([0, 0, 100, 110, 120, 130, 0, 0], np.float32)

    pitch = pitch_at_frames(curve, FRAME_SECONDS, 5)

    assert pitch == pytest.approx([0, 100, 115, 130, 0])
    assert pitch_at_frames(curve, 0.02, 8) == pytest.approx(curve)


def test_known_pitch_counts_only_where_the_audio_has_it() -> None:
    times = np.arange(16_000) / 16_000
    tone = np.where(times < 0.5, np.sin(2 * np.pi * 150 * times), 0.0)
    samples = (tone + 0.05 * np.random.default_rng(0).standard_normal(16_000)).astype(np.float32)

    heard = heard_pitch(samples, 16_000, np.full(50, 150, np.float32))

    assert (heard[2:23] == 150).all() and (heard[27:] == 0).all()


def test_a_text_without_phonemes_is_told() -> None:
    with pytest.raises(SynthesisError, match="is there a word"):
        HibariEngine(FakeHibari()).speak("!?", 0)


def test_features_of_a_teacher_at_24_khz_cover_the_same_whole_tokens() -> None:
    spoken = HibariEngine(FakeHibari()).speak("abba abba. abba.", 3)

    arrays = utterance_arrays(spoken)

    tokens = whole_tokens(spoken)
    assert {name: len(array) for name, array in arrays.items()} == {
        name: tokens * layout.per_token for name, layout in LAYOUTS.items()
    }
    assert np.array_equal(arrays["audio"], (spoken.samples[: tokens * 960] * 32767).astype(np.int16))
    assert 0.4 < np.greater(arrays["pitch"], 0).mean() < 0.95


@pytest.mark.parametrize("teachers_name", VOICES_OF)
def test_prompt_voices_are_spoken_by_speakers_of_their_teachers(teachers_name: str) -> None:
    speakers = choices.TEACHERS[teachers_name].speakers
    voices = VOICES_OF[teachers_name]

    assert {voice.base for voice in voices} <= set(speakers)
    assert voices[0].name == "default"
    assert len({voice.name for voice in voices}) == len({voice.transcript for voice in voices}) == len(voices)


def test_prompt_voices_are_written_at_16_khz_with_their_words(tmp_path: Path) -> None:
    make_voices(tmp_path, "hibari", HibariEngine(FakeHibari()))

    for voice in VOICES_OF["hibari"]:
        with wave.open(str(tmp_path / f"{voice.name}.wav")) as file:
            assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (16_000, 1, 2)
            assert file.getnframes() > 16_000
        assert (tmp_path / f"{voice.name}.txt").read_text("utf-8").strip() == voice.transcript


def test_the_yardstick_of_a_voice_is_its_own_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    teacher = HibariEngine(FakeHibari())
    monkeypatch.setitem(choices.TEACHERS, "hibari", replace(choices.TEACHERS["hibari"], open=lambda _: teacher))
    source = SourceVoices("hibari")

    low = source.speak("abba abba", "low")

    assert low.rate_hz == 24_000
    assert np.array_equal(low.samples, teacher.speak("abba abba", [m.name for m in MANNERS].index("heart_low")).samples)
    with pytest.raises(SynthesisError, match="got voice 'slt'"):
        source.speak("abba", "slt")
    with pytest.raises(SynthesisError, match="got teachers 'nobody'"):
        SourceVoices("nobody")


@pytest.mark.slow
def test_shards_are_made_by_the_teachers_asked_for(
    monkeypatch: pytest.MonkeyPatch, texts: Path, tmp_path: Path
) -> None:
    choice = replace(choices.TEACHERS["hibari"], open=lambda _: HibariEngine(FakeHibari()))
    monkeypatch.setitem(choices.TEACHERS, "hibari", choice)
    monkeypatch.setattr(corpus, "SHARD_UTTERANCES", 12)
    corpus._engine.cache_clear()

    jobs = wide_jobs(tmp_path, texts, None, 12, "hibari")

    assert make_corpus(jobs, workers=1, deadline_s=60.0) == 1
    with np.load(jobs[0].path) as shard:
        assert set(shard["speaker"]) <= set(range(len(MANNERS))) and len(set(shard["speaker"])) > 2
        assert len(shard["audio"]) == shard["tokens"].sum() * 960
    corpus._engine.cache_clear()


class LoudHibari(FakeHibari):
    """Twice as loud as there is room for."""

    def samples(self, prediction: Prediction, pitch: FloatArray, draw: np.random.Generator) -> FloatArray:
        return 5 * super().samples(prediction, pitch, draw)


def test_a_manner_that_would_be_too_loud_is_turned_down_and_not_cut_off() -> None:
    plain, loud = (HibariEngine(model).speak("abba.", 0).samples for model in (FakeHibari(), LoudHibari()))

    assert loud.dtype == np.float32 and np.abs(loud).max() == pytest.approx(0.95)
    assert loud == pytest.approx(0.95 * plain / np.abs(plain).max(), abs=1e-5)
