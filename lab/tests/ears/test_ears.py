"""The ears themselves: they understand the source engine, hear noise as noise, and find each fault that is put in."""

from __future__ import annotations

import math
import shutil
from importlib.util import find_spec

import numpy as np
import pytest

from benchmarks.lib.word_errors import WordErrors, heldout_sentences, total, word_errors
from cosydit.certify.recognition import SphinxRecogniser
from lab.ears.additions import LONGEST_PART_S, Addition, additions, parts_of
from lab.ears.alignment import digit_agreement, token_agreement
from lab.ears.audio_faults import FRAME_SECONDS, clicks, find_faults, silent_frames
from lab.ears.opinion import HOP_SAMPLES, WINDOW_SAMPLES, DnsMos, mean_opinion, p808_mel, windows
from lab.ears.pitch import track_pitch
from lab.ears.seams import contour_distance, seam_jumps
from lab.ears.speakers import rank_speakers, top1
from lab.tests.ears.conftest import RATE_HZ, Voice, harmonics, noise
from lab.train.teachers.flite import Flite, SourceVoice


@pytest.mark.slow
def test_the_recogniser_understands_the_source_engine(voices: list[Voice], recogniser: SphinxRecogniser) -> None:
    errors = {voice.name: word_errors(voice.text, recogniser.transcribe(voice.samples)) for voice in voices}

    assert min(error.rate for error in errors.values()) <= 0.1
    assert errors["default"].rate <= 0.2
    assert total(errors.values()).rate <= 0.2


@pytest.mark.slow
def test_the_recogniser_understands_no_text_in_noise(voices: list[Voice], recogniser: SphinxRecogniser) -> None:
    heard = recogniser.transcribe(noise(4.0))

    assert min(word_errors(voice.text, heard).rate for voice in voices) > 0.8


@pytest.mark.slow
def test_an_answer_depends_on_its_own_audio_alone(default_voice: Voice, recogniser: SphinxRecogniser) -> None:
    first = recogniser.transcribe(default_voice.samples)
    recogniser.transcribe(noise(2.0))

    assert recogniser.transcribe(default_voice.samples) == first


@pytest.mark.skipif(shutil.which("flite") is None, reason="the source engine is not installed")
def test_heldout_sentences_of_the_installed_source_engine_are_understood(recogniser: SphinxRecogniser) -> None:
    engine, voice = Flite(), SourceVoice("rms")
    texts = heldout_sentences()[:6]
    heard = [recogniser.transcribe(engine.speak(text, voice).samples) for text in texts]

    assert total(word_errors(text, words) for text, words in zip(texts, heard, strict=True)).rate <= 0.2


@pytest.mark.parametrize(
    ("reference", "hypothesis", "errors"),
    [
        pytest.param("Yes, it's late.", "yes it's late", 0, id="marks and cases don't count"),
        pytest.param("one two three", "one three", 1, id="deletion"),
        pytest.param("one two three", "one two two three", 1, id="insertion"),
        pytest.param("one two three", "one too three", 1, id="substitution"),
        pytest.param("one two", "", 2, id="nothing heard"),
    ],
)
def test_word_errors_are_the_fewest_edits(reference: str, hypothesis: str, errors: int) -> None:
    assert word_errors(reference, hypothesis).errors == errors


@pytest.mark.parametrize(
    ("heard", "found"),
    [
        ("On the sand without a mast without a mast, but alive.", [("without a mast", True)]),
        ("On the sand, else heels, without a mast, but alive.", [("else heels", False)]),
        ("On the sand with out a mast, but a live.", []),
        ("On this sand, a mast.", []),
    ],
)
def test_words_beyond_the_text_are_additions_and_other_spellings_are_none(
    heard: str, found: list[tuple[str, bool]]
) -> None:
    wanted = [Addition(tuple(words.split()), is_repeat) for words, is_repeat in found]

    assert additions("On the sand, without a mast, but alive.", heard) == wanted


def test_long_audio_is_heard_in_parts_that_are_cut_in_its_pauses() -> None:
    audio = noise(40.0)
    audio[15 * RATE_HZ : 16 * RATE_HZ] = 0

    first, *others = parts_of(audio)

    assert 15 < len(first) / RATE_HZ < 16
    assert all(len(part) <= LONGEST_PART_S * RATE_HZ for part in others)
    assert np.array_equal(np.concatenate([first, *others]), audio)


def test_error_rates_weigh_by_words_and_need_some() -> None:
    assert total([WordErrors(1, 1), WordErrors(0, 9)]).rate == 0.1
    with pytest.raises(ValueError, match="reference words"):
        _ = WordErrors(0, 0).rate


@pytest.mark.parametrize("rate_hz", [16_000, 24_000])
@pytest.mark.parametrize("pitch_hz", [80.0, 125.0, 220.0, 330.0])
def test_the_pitch_of_a_buzz_is_found_within_a_percent(pitch_hz: float, rate_hz: int) -> None:
    pitch = track_pitch(harmonics(pitch_hz, 1.0, rate_hz), rate_hz)

    assert len(pitch) == 50
    np.testing.assert_allclose(pitch[3:-3], pitch_hz, rtol=0.01)


def test_noise_and_silence_have_no_pitch() -> None:
    assert (track_pitch(noise(1.0), RATE_HZ) > 0).mean() < 0.05
    assert not track_pitch(np.zeros(RATE_HZ, np.float32), RATE_HZ).any()
    assert len(track_pitch(np.zeros(10, np.float32), RATE_HZ)) == 0


def test_the_source_engine_s_audio_has_no_faults(voices: list[Voice]) -> None:
    for voice in voices:
        faults = find_faults(voice.samples, RATE_HZ)
        assert (faults.clicks, faults.clipped_samples) == (0, 0)
        assert faults.longest_silence_s < 0.7
        sounding = np.flatnonzero(~silent_frames(voice.samples, RATE_HZ)) * round(RATE_HZ * FRAME_SECONDS)
        between = find_faults(voice.samples[sounding[0] : sounding[-1]], RATE_HZ)
        assert between.longest_silence_s < 0.5 and between.silent_share < 0.3


def test_a_click_is_found_where_it_is(default_voice: Voice) -> None:
    damaged = default_voice.samples.copy()
    place = 2 * RATE_HZ + 37
    damaged[place] += 0.6

    found = clicks(damaged, RATE_HZ)

    assert len(found) == 1
    assert abs(int(found[0]) - place) <= 2


def test_clipping_silence_and_noise_are_told_apart(default_voice: Voice) -> None:
    clipped = find_faults(np.clip(6 * default_voice.samples, -1, 1), RATE_HZ)
    pausing = default_voice.samples.copy()
    pausing[RATE_HZ : 2 * RATE_HZ] = 0

    assert clipped.clipped_samples > 100
    assert find_faults(pausing, RATE_HZ).longest_silence_s == pytest.approx(1.0, abs=0.05)
    assert find_faults(np.zeros(0, np.float32), RATE_HZ).silent_share == 1.0
    assert find_faults(noise(1.0), RATE_HZ).silent_share == 0.0


def test_a_seam_that_jumps_stands_out() -> None:
    seams = [RATE_HZ, 2 * RATE_HZ]
    swell = 0.6 + 0.4 * np.sin(2 * np.pi * np.arange(3 * RATE_HZ) / RATE_HZ, dtype=np.float32)
    even = swell * harmonics(150.0, 3.0)
    loud = even.copy()
    loud[seams[0] : seams[1]] *= 10.0

    clean, broken = (seam_jumps(samples, RATE_HZ, seams) for samples in (even, loud))

    assert broken.loudness_at_seams > clean.loudness_at_seams + 1.0
    assert broken.loudness_elsewhere == pytest.approx(clean.loudness_elsewhere, rel=0.01)


def test_a_pitch_that_jumps_at_a_seam_stands_out() -> None:
    joined = np.concatenate([harmonics(120.0, 1.0), harmonics(180.0, 1.0)])

    jumps = seam_jumps(joined, RATE_HZ, [RATE_HZ])

    assert jumps.pitch_ratio > 20
    assert math.isnan(seam_jumps(np.zeros(RATE_HZ, np.float32), RATE_HZ, [100]).pitch_at_seams)


def test_two_renderings_differ_by_what_was_changed(default_voice: Voice) -> None:
    samples = default_voice.samples

    semitones, decibels = contour_distance(samples, (0.5 * samples).astype(np.float32), RATE_HZ)

    assert semitones == pytest.approx(0.0, abs=0.01)
    assert decibels == pytest.approx(6.02, abs=0.1)


def test_speakers_are_ranked_by_likeness() -> None:
    voices = {"a": np.array([1.0, 0.0], np.float32), "b": np.array([0.0, 1.0], np.float32)}

    right = rank_speakers("a", np.array([3.0, 1.0], np.float32), voices)
    wrong = rank_speakers("a", np.array([1.0, 3.0], np.float32), voices)

    assert (right.is_right, wrong.ranked_first) == (True, "b")
    assert top1([right, wrong]) == 0.5
    with pytest.raises(KeyError, match="expected one of"):
        rank_speakers("c", voices["a"], voices)
    with pytest.raises(ValueError, match="no utterances"):
        top1([])


def test_a_token_off_by_one_value_still_agrees_in_its_other_digits() -> None:
    assert token_agreement([0, 1, 9], [0, 2, 9]) == pytest.approx(2 / 3)
    assert digit_agreement([0, 1, 9], [0, 2, 9]) == pytest.approx(23 / 24)
    assert digit_agreement([0, 6560], [6560, 0]) == 0.0
    with pytest.raises(ValueError, match="at least one"):
        token_agreement([], [1])


def test_short_audio_is_repeated_and_long_audio_is_heard_once_a_second() -> None:
    short, long = np.linspace(-2, 2, 5_000, dtype=np.float32), np.zeros(WINDOW_SAMPLES + 2 * HOP_SAMPLES, np.float32)

    (window,) = windows(short)

    assert len(window) == WINDOW_SAMPLES
    assert np.array_equal(window[5_000:10_000], np.clip(short, -1, 1))
    assert len(windows(long)) == 3
    with pytest.raises(ValueError, match="no samples"):
        windows(short[:0])
    with pytest.raises(ValueError, match="no opinions"):
        mean_opinion([])


def test_the_critic_s_mel_has_its_loudest_value_at_the_top_and_follows_the_tone() -> None:
    times = np.arange(RATE_HZ, dtype=np.float32) / RATE_HZ
    low, high = (p808_mel(np.sin(2 * np.pi * hertz * times).astype(np.float32)) for hertz in (300.0, 3000.0))

    assert low.shape == (100, 120)
    assert low.max() == high.max() == 1.0
    assert low[50].argmax() < high[50].argmax()


@pytest.mark.skipif(find_spec("speechmos") is None, reason="the critic's models are not installed")
def test_the_critic_prefers_speech_to_noise(default_voice: Voice) -> None:
    critic = DnsMos()

    speech, hiss = critic.opinion(default_voice.samples), critic.opinion(noise(4.0))

    assert speech.p808 > hiss.p808 + 0.5 and speech.overall > hiss.overall + 0.5


@pytest.mark.skipif(find_spec("speechmos") is None, reason="the critic's models are not installed")
def test_the_critic_s_scores_are_the_packages_own() -> None:
    """What the package's own code says of this buzz."""
    opinion = DnsMos().opinion(harmonics(150.0, 4.0))

    assert (opinion.p808, opinion.signal, opinion.background) == pytest.approx((2.492, 3.002, 2.386), abs=0.03)
    assert opinion.overall == pytest.approx(2.029, abs=0.03)
