"""The phase of what teachers say: as their audio has it, as the vocoder is excited with it, and as losses hear it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lab.tests.train.test_hibari import FakeHibari
from lab.train.models.excitation import angles, known_cycles, make_loud, served_cycles, served_pitch
from lab.train.models.vocoder_losses import PhaseLoss
from lab.train.sizes import TINY
from lab.train.teachers.cycles import phase_at_frames
from lab.train.teachers.hibari import MANNERS, RATE_HZ, HibariEngine
from lab.train.teachers.kokoro import Made, spoken
from lab.train.utterance import utterance_arrays
from token2wav_service.models.vocoder.source import HarmonicSource

FRAME = 480


@pytest.mark.parametrize("speaker", range(len(MANNERS)), ids=[manner.name for manner in MANNERS])
def test_a_manner_s_audio_has_the_phase_that_it_tells_but_for_a_constant(speaker: int) -> None:
    said = HibariEngine(FakeHibari()).speak("abba abba.", speaker)
    assert said.phase is not None
    pitch = 200 * MANNERS[speaker].pitch
    times = (np.arange(2 * FRAME) - FRAME + 0.5) / RATE_HZ
    probe = np.hanning(2 * FRAME) * np.exp(-2j * np.pi * pitch * times)

    inside = range(8, len(said.phase) - 8)
    heard = [said.samples[k * FRAME - FRAME // 2 :][: 2 * FRAME] @ probe for k in inside]
    off = np.array(heard) * np.exp(-2j * np.pi * said.phase[inside])

    assert np.degrees(np.abs(np.angle(off / off.mean()))).max() < 5


def test_a_teacher_without_phase_says_so_in_every_frame() -> None:
    said = HibariEngine(FakeHibari()).speak("abba.", 0)
    told = utterance_arrays(said)["phase"]
    silent = utterance_arrays(type(said)(said.samples, said.segments, said.rate_hz, said.pitch))["phase"]

    assert np.asarray(told, np.float32).min() >= 0
    assert (silent == -1).all()


def test_phase_is_read_at_the_middle_of_frames() -> None:
    cycles = np.cumsum(np.full(RATE_HZ, 150.0)) / RATE_HZ

    phase = phase_at_frames(cycles, FRAME, 50)

    wanted = 150 * ((np.arange(50) + 0.5) * FRAME + 0.5) / RATE_HZ
    assert np.abs((phase - wanted + 0.5) % 1 - 0.5).max() < 1e-5


def test_kokoro_s_phase_goes_by_its_own_pitch_frames() -> None:
    cycles = np.arange(1, 21) * 120 / 80
    made = Made(np.full(6000, 0.1, np.float32), np.full(20, 120, np.float32), cycles, np.array([2, 3, 5]))

    phase = spoken("a", made).phase

    assert phase is not None
    steps = (np.diff(phase) + 0.5) % 1 - 0.5
    assert steps[1:-1] == pytest.approx((120 * 0.02 + 0.5) % 1 - 0.5, abs=1e-5)


def test_the_excitation_goes_on_as_in_use_and_meets_the_known_phase_in_every_frame() -> None:
    torch.manual_seed(0)
    source = HarmonicSource(TINY.hift)
    pitch = torch.full((1, 12), 170.0)
    served, _ = source.phase(pitch)
    start = served[0, 0, FRAME // 2 - 1 : FRAME // 2 + 1].mean() / (2 * torch.pi)
    phase = (start + 170 * 0.02 * torch.arange(12))[None] % 1

    got = angles(known_cycles(pitch, phase), pitch, source)

    torch.testing.assert_close(got.sin(), served.sin(), atol=0.03, rtol=0)
    gliding = torch.linspace(100, 180, 12)[None]
    wandering = torch.rand(1, 12)
    middles = angles(known_cycles(gliding, wandering), gliding, source)[0, :, FRAME // 2 - 1 :: FRAME]
    wanted = 2 * torch.pi * wandering * torch.arange(1, 10)[:, None]
    torch.testing.assert_close(middles.cos(), wanted.cos(), atol=0.25, rtol=0)  # half a sample beside the middle


def test_an_unknown_phase_begins_anywhere_and_goes_on_by_the_pitch() -> None:
    pitch = torch.full((2, 5), 100.0)

    cycles = known_cycles(pitch, torch.full((2, 5), -1.0))

    assert cycles[0, 0] != cycles[1, 0]
    torch.testing.assert_close(cycles.diff(dim=1), torch.full((2, 4), 2.0))


def test_a_loud_source_begins_with_all_harmonics() -> None:
    source = HarmonicSource(TINY.hift)
    make_loud(source)
    pitch = torch.full((1, 10), 100.0)
    phase, _ = source.phase(pitch)

    samples = source(pitch, torch.zeros(1, 10 * FRAME, 9), phase)[0, 0]

    harmonics = torch.fft.rfft(samples).abs()[20::20][:9] / len(samples)  # 5 Hz a bin
    assert (harmonics > 0.01).all()


def test_the_phase_loss_hears_phase_alone_and_voiced_frames_alone() -> None:
    torch.manual_seed(0)
    loss, true = PhaseLoss(), torch.randn(2, 20 * FRAME)
    voiced = torch.ones(2, 20, dtype=torch.bool)
    other = true.clone()
    other[:, 10 * FRAME :] *= -1

    assert loss(0.3 * true, true, voiced) == pytest.approx(0.0, abs=0.01)
    assert loss(-true, true, voiced) == pytest.approx(2.0, abs=0.01)
    assert loss(torch.randn_like(true), true, voiced) == pytest.approx(1.0, abs=0.1)
    assert loss(other, true, voiced & (torch.arange(20) < 9)) == pytest.approx(0.0, abs=0.01)
    assert loss(-true, true, ~voiced) == 0.0


def test_the_pitch_that_is_learnt_adds_up_to_the_known_phase_as_in_use() -> None:
    torch.manual_seed(0)
    source = HarmonicSource(TINY.hift)
    pitch = torch.linspace(100, 180, 12)[None]
    cycles = known_cycles(pitch, torch.rand(1, 12) * 0.1)

    served, _ = source.phase(served_pitch(pitch, cycles))

    got = served[0, 0, FRAME // 2 :: FRAME]
    wanted = 2 * torch.pi * cycles[0]
    torch.testing.assert_close((got - got[0])[1:], (wanted - wanted[0])[1:], atol=0.05, rtol=0)
    broken = pitch.clone()
    broken[0, 5] = 0
    assert torch.equal(served_pitch(broken, cycles)[0, 5:7], broken[0, 5:7])


def test_pitch_of_one_s_own_adds_up_as_in_use() -> None:
    source = HarmonicSource(TINY.hift)
    pitch = torch.linspace(100, 180, 12)[None]

    served, _ = source.phase(pitch)
    own = angles(served_cycles(pitch), pitch, source)

    turned = torch.polar(torch.ones_like(own), own - served)[0, 0]
    assert (turned / turned[0]).real.min() > 0.999
