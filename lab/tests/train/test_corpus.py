"""The corpus: what the engine says becomes aligned features, shards are resumable, windows come from where they may."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from lab.train.corpus import LONG_FIRST_SHARD, SHARD_UTTERANCES, make_corpus, wide_jobs, with_long
from lab.train.data import CorpusError, SpeechStreams
from lab.train.teachers.flite import PHONES, Flite, Segment, SourceVoice, Spoken, SynthesisError, phone_number
from lab.train.utterance import LAYOUTS, heard_phones, phones_at_frames, utterance_arrays, whole_tokens
from lab.train.workspace import Workspace
from token2wav_service.features.mel import flow_mel_24k

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def streams(workspace: Workspace) -> SpeechStreams:
    return SpeechStreams(workspace.corpus, list(LAYOUTS), CPU, seed=0)


def test_the_engine_gives_audio_and_phones_up_to_its_end(engines: Path) -> None:
    spoken = Flite(engines).speak("A boat.", SourceVoice("rms"))

    assert np.abs(spoken.samples).max() > 0.1
    assert spoken.segments[0].phone == "pau"
    assert spoken.segments[-1].end_s == pytest.approx(len(spoken.samples) / 16_000)


def test_a_warped_voice_is_higher_and_as_long(engines: Path) -> None:
    from lab.ears.pitch import track_pitch

    plain, warped = (Flite(engines).speak("A boat.", SourceVoice("slt", Fraction(n, 5))) for n in (5, 6))
    pitches = [track_pitch(spoken.samples, 16_000) for spoken in (plain, warped)]
    medians = [float(np.median(pitch[pitch > 0])) for pitch in pitches]

    assert medians[1] / medians[0] == pytest.approx(1.2, rel=0.03)
    assert len(warped.samples) == pytest.approx(len(plain.samples), rel=0.1)


def test_an_engine_that_is_not_there_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SynthesisError, match="install flite"):
        Flite(tmp_path).speak("Hello.", SourceVoice("rms"))


def test_phones_are_those_at_the_middle_of_each_frame() -> None:
    segments = (Segment("pau", 0.045), Segment("aa", 0.075), Segment("s", 0.1))

    numbers = phones_at_frames(segments, 6)

    assert [PHONES[number] for number in numbers] == ["pau", "pau", "aa", "aa", "s", "s"]
    with pytest.raises(KeyError, match="xx"):
        phone_number("xx")


def test_a_phone_does_not_last_into_a_longer_silence() -> None:
    hum = np.tile(np.array([0.3, -0.3], np.float32), 4_000)  # 0.5 s at 16 kHz
    closure, silence = np.zeros(960, np.float32), np.zeros(4_800, np.float32)
    samples = np.concatenate([hum, closure, hum, silence])

    phones = heard_phones(Spoken(samples, (Segment("aa", len(samples) / 16_000),)))

    assert [PHONES[number] for number in phones] == ["aa"] * 53 + ["pau"] * 15
    assert len(phones) == 2 * whole_tokens(Spoken(samples, ()))


def test_every_feature_covers_the_same_whole_tokens() -> None:
    samples = (0.1 * np.random.default_rng(0).standard_normal(16_000)).astype(np.float32)
    spoken = Spoken(samples[:15_000], (Segment("aa", 15_000 / 16_000),))

    arrays = utterance_arrays(spoken)

    assert whole_tokens(spoken) == 23
    assert {name: len(array) for name, array in arrays.items()} == {
        name: 23 * layout.per_token for name, layout in LAYOUTS.items()
    }


@pytest.mark.slow
def test_shards_that_are_there_are_not_made_again(workspace: Workspace) -> None:
    jobs = wide_jobs(workspace.corpus, workspace.texts, workspace.engines, 64, "flite")
    before = [job.path.stat().st_mtime_ns for job in jobs]

    assert make_corpus(jobs, workers=1, deadline_s=60.0) == len(jobs)
    assert [job.path.stat().st_mtime_ns for job in jobs] == before


def test_a_shard_of_long_sentences_stands_behind_each_other_shard(workspace: Workspace) -> None:
    jobs = wide_jobs(workspace.corpus, workspace.texts, None, 3 * SHARD_UTTERANCES, "flite")

    indices = [job.index for job in with_long(jobs)]

    assert indices == [0, 20_000, 1, 20_001, 2, 20_002]


@pytest.mark.slow
def test_a_shard_of_long_sentences_has_no_other_text(workspace: Workspace, tmp_path: Path) -> None:
    (job,) = wide_jobs(tmp_path, workspace.texts, workspace.engines, 1, "flite")

    assert make_corpus([replace(job, index=LONG_FIRST_SHARD)], workers=1, deadline_s=60.0) == 1

    with np.load(tmp_path / f"shard-{LONG_FIRST_SHARD}.npz") as shard:
        texts = json.loads(str(shard["texts"]))
    assert len(texts) == SHARD_UTTERANCES
    assert all(100 <= len(text) <= 200 for text in texts)


def test_no_shard_is_begun_after_the_deadline(workspace: Workspace, tmp_path: Path) -> None:
    jobs = [replace(job, directory=tmp_path) for job in wide_jobs(workspace.corpus, workspace.texts, None, 32, "flite")]

    assert make_corpus(jobs, workers=1, deadline_s=-1.0) == 0


def test_an_utterance_s_mel_and_audio_lie_at_the_same_rows(streams: SpeechStreams) -> None:
    utterance = streams.utterances[3]
    audio = streams.column("audio", utterance.start, utterance.tokens).float().numpy() / 32767

    mel = streams.column("mel", utterance.start, utterance.tokens).float().numpy()

    shifted = np.abs(mel[1:] - flow_mel_24k(audio)[:-1]).mean()
    assert np.abs(mel - flow_mel_24k(audio)).mean() < min(0.05, shifted / 4)  # 16-bit audio has a noise floor


def test_windows_stay_within_their_speaker_and_out_of_what_is_held_out(streams: SpeechStreams) -> None:
    ends = {u.speaker: u.start + u.tokens for u in streams.utterances}
    starts = {u.speaker: u.start for u in reversed(streams.utterances)}
    training, held_out = streams.draw(200, 40), streams.draw(200, 40, is_validation=True)

    for speaker, row in zip(training.speakers.tolist(), training.starts.tolist(), strict=True):
        assert starts[speaker] <= row and row + 40 <= ends[speaker] - 40
    for speaker, row in zip(held_out.speakers.tolist(), held_out.starts.tolist(), strict=True):
        assert ends[speaker] - 40 <= row and row + 40 <= ends[speaker]


def test_windows_longer_than_any_speaker_are_refused(streams: SpeechStreams) -> None:
    with pytest.raises(CorpusError, match="make more corpus"):
        streams.draw(1, streams.tokens)


def test_a_corpus_that_is_not_there_says_how_it_is_made(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="corpus"):
        SpeechStreams(tmp_path, ["mel"], CPU, seed=0)
