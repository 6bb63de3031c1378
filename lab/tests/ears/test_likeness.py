"""The encoder that tells speakers apart: the package's own answers, with weights that anybody can make."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
import torch

from cosydit.certify.recognition import FloatArray
from lab.ears.likeness import (
    MEL_BINS,
    RATE_HZ,
    SIZE,
    VoiceEncoder,
    mean_embedding,
    partial_starts,
    power_mel,
    raised,
    without_pauses,
)
from lab.tests.ears.conftest import Voice, harmonics, noise


def made_up_weights() -> dict[str, torch.Tensor]:
    """Weights of the package's names and shapes, with which the answer depends much on the audio."""
    shapes: dict[str, tuple[int, ...]] = {"linear.weight": (SIZE, SIZE), "linear.bias": (SIZE,)}
    for layer, inputs in enumerate((MEL_BINS, SIZE, SIZE)):
        shapes |= {f"lstm.weight_ih_l{layer}": (4 * SIZE, inputs), f"lstm.weight_hh_l{layer}": (4 * SIZE, SIZE)}
        shapes |= {f"lstm.bias_{way}_l{layer}": (4 * SIZE,) for way in ("ih", "hh")}
    shapes |= {"similarity_weight": (1,), "similarity_bias": (1,)}
    scales = dict.fromkeys(shapes, 0.1) | {name: 0.05 for name in shapes if "bias" in name}
    scales["lstm.weight_ih_l0"] = 1.0
    return {
        name: torch.from_numpy(scales[name] * np.sin(0.7 * number + 1.3 * np.arange(np.prod(shapes[name])) ** 2))
        .float()
        .reshape(shapes[name])
        for number, name in enumerate(sorted(shapes), start=1)
    }


def vibrato() -> FloatArray:
    """3.5 s without a pause."""
    times = np.arange(56_000) / RATE_HZ
    pitch = 110 + 10 * np.sin(4 * np.pi * times)
    buzz = sum(np.sin(2 * np.pi * n * pitch * times) / n for n in range(1, 12))
    return np.float32(0.05) * np.asarray(buzz, np.float32)


GOLDEN_PLACES = [163, 11, 243, 191, 61, 177, 50, 116]
GOLDEN_VALUES = [0.24649729, 0.19466606, 0.18203498, 0.17226487, 0.16986676, 0.16483772, 0.14398821, 0.13724650]
"""The greatest of 256."""


def test_an_embedding_is_the_packages_own() -> None:
    """The values were computed once by Resemblyzer 0.1.4 itself with these weights."""
    vector = VoiceEncoder(made_up_weights()).embed(vibrato())

    assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-5)
    assert np.argsort(-vector)[:8].tolist() == GOLDEN_PLACES
    assert vector[GOLDEN_PLACES] == pytest.approx(GOLDEN_VALUES, abs=1e-5)
    assert int((vector > 0).sum()) == 208


def test_partials_overlap_and_the_last_one_is_mostly_audio() -> None:
    """The places were computed once by Resemblyzer 0.1.4 itself."""
    starts = {samples: partial_starts(samples) for samples in (1_000, 25_600, 37_919, 56_000, 60_000)}

    assert starts == {
        1_000: [0],
        25_600: [0],
        37_919: [0, 77],
        56_000: [0, 77, 154],
        60_000: [0, 77, 154, 231],
    }


def test_a_mel_frame_follows_the_tone_and_its_power() -> None:
    low, high = (power_mel(harmonics(pitch, 1.0)) for pitch in (150.0, 400.0))

    assert low.shape == (RATE_HZ // 160 + 1, MEL_BINS) and low.dtype == np.float32
    assert low[50].argmax() < high[50].argmax()
    assert power_mel(2 * harmonics(150.0, 1.0)) == pytest.approx(4 * low, rel=1e-4)


def test_pauses_are_cut_short_and_quiet_audio_is_raised() -> None:
    speech, pause = harmonics(150.0, 0.96), np.zeros(33 * 480, np.float32)

    assert len(without_pauses(np.concatenate([pause, speech, pause, speech]))) == 2 * len(speech) + 3 * 3 * 480
    assert np.array_equal(without_pauses(speech), speech)
    assert len(without_pauses(speech[:100])) == 100
    assert np.array_equal(raised(speech), speech)
    assert np.sqrt(np.mean(raised(speech / 1e4) ** 2)) == pytest.approx(10**-1.5, rel=1e-3)
    for silence in (pause, pause[:0]):
        with pytest.raises(ValueError, match="without any sound"):
            raised(silence)


def test_an_embedding_is_the_same_each_time_and_does_not_hear_loudness() -> None:
    encoder, speech = VoiceEncoder(made_up_weights()), 0.1 * vibrato()

    vector = encoder.embed(speech)

    assert vector.shape == (SIZE,) and vector.dtype == np.float32
    assert np.array_equal(encoder.embed(speech), vector)
    assert encoder.embed(speech / 10) == pytest.approx(vector, abs=1e-5)
    assert encoder.embed(noise(3.5)) @ vector < 0.9
    assert encoder.embed(speech[:4_000]).shape == (SIZE,)
    mean = mean_embedding([vector, encoder.embed(noise(3.5))])
    assert np.linalg.norm(mean) == pytest.approx(1.0, abs=1e-5)
    with pytest.raises(ValueError, match="no embeddings"):
        mean_embedding([])


def test_weights_that_lack_a_layer_are_refused() -> None:
    weights = made_up_weights()
    del weights["lstm.weight_hh_l2"]

    with pytest.raises(RuntimeError, match="weight_hh_l2"):
        VoiceEncoder(weights)


@pytest.mark.skipif(find_spec("resemblyzer") is None, reason="the encoder's weights are not installed")
def test_halves_of_one_recording_are_more_alike_than_two_voices(voices: list[Voice]) -> None:
    encoder = VoiceEncoder.load()
    halves = [[encoder.embed(half) for half in np.array_split(voice.samples, 2)] for voice in voices]

    for place, (first, second) in enumerate(halves):
        others = [float(first @ other) for own in (*halves[:place], *halves[place + 1 :]) for other in own]
        assert float(first @ second) > max(others)


@pytest.mark.skipif(find_spec("resemblyzer") is not None, reason="the encoder's weights are installed")
def test_without_the_package_the_error_says_how_to_get_it() -> None:
    with pytest.raises(ImportError, match="pip install --no-deps Resemblyzer"):
        VoiceEncoder.load()
