"""The study of cloning: its speakers are held out, its figures are those of its rows, and a quick run of the whole."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from demo_voice.unpack import VOICES
from lab.ears.likeness import VoiceEncoder
from lab.ears.speakers import FloatArray
from lab.tests.ears.conftest import harmonics
from lab.tests.fake_flite import install_fake_flite
from lab.train.make_voices import VOICES_OF
from lab.train.teachers import choices
from lab.train.teachers.flite import RATE_HZ, Spoken, SynthesisError
from lab.train.teachers.kokoro import SPEAKERS, KokoroSpeaker
from lab.voice import cloning
from lab.voice.cloning import HELD_OUT, Bundled, People, Person, compare, figures, sentences
from tests.workers import demo_checkpoint


def mute(text: str) -> Spoken:
    raise SynthesisError(f"nobody says {text!r}")


def test_held_out_speakers_are_no_speakers_of_the_training() -> None:
    trained = [frozenset(speaker.shares) for speaker in SPEAKERS]
    voices = frozenset[str]().union(*trained)

    assert len({speaker.name for speaker in HELD_OUT}) == len(HELD_OUT) == 8
    assert all(sum(speaker.shares.values()) == pytest.approx(1.0) for speaker in HELD_OUT)
    assert not {frozenset(speaker.shares) for speaker in HELD_OUT} & set(trained)
    assert sum(bool(speaker.shares.keys() - voices) for speaker in HELD_OUT) == 5
    assert not {speaker.name for speaker in HELD_OUT} & {path.stem for path in VOICES.iterdir()}


def vector(*values: float) -> FloatArray:
    return np.asarray(values, np.float32) / np.linalg.norm(values).astype(np.float32)


def test_a_clone_is_compared_with_the_other_sentences_only() -> None:
    people = People([Person("new", mute)], [Bundled("old", "learnt")], [Person("learnt", mute)])
    said = {"new": [vector(1, 0, 0), vector(0, 1, 0)], "old": [vector(0, 0, 1)] * 2}
    cloned = {"new": [vector(0, 1, 0), vector(0, 0, 1)], "old": [vector(0, 0, 1), vector(1, 0, 1)]}

    rows = compare(people, ["one", "two"], said, {"learnt": [vector(0, 1, 1)] * 2}, cloned)

    new = [row for row in rows if row.is_held_out]
    assert [row.product.similarity for row in new] == [{"new": 1.0, "old": 0.0}, {"new": 0.0, "old": 1.0}]
    assert [row.teacher.similarity["new"] for row in new] == [0.0, 0.0]
    assert [row.product_to_trained for row in new] == pytest.approx([0.5**0.5] * 2)
    found = figures(rows)
    assert found["clone_top1"] == found["clone_over_trained"] == found["clone_similarity"] == 0.5
    assert found["clone_to_others"] == 0.5 and found["clone_teacher_similarity"] == 0.0
    assert found["bundled_top1"] == 0.5 and found["bundled_teacher_top1"] == 1.0
    assert found["bundled_similarity"] == pytest.approx((1 + 0.5**0.5) / 2)
    told = [row.to_json() for row in rows]
    assert [each["speaker"] for each in told] == ["new", "old"] * 2
    assert told[2]["product"]["nearest"] == "old" and told[2]["sentence"] == "two"
    with pytest.raises(ValueError, match="no embeddings"):
        compare(people, ["one"], said, {"learnt": [vector(0, 1, 1)]}, cloned)


class PitchEar:
    """Knows a voice by its spectrum."""

    def embed(self, samples: FloatArray) -> FloatArray:
        return vector(*np.abs(np.fft.rfft(samples, 1024))[:64])


class FakeMixer:
    """Buzzes."""

    def speak_as(self, text: str, speaker: KokoroSpeaker) -> Spoken:
        return Spoken(harmonics(100.0 + 20 * len(speaker.shares), 3.0), (), RATE_HZ)


@pytest.mark.slow
def test_a_quick_run_clones_and_writes_figures(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VoiceEncoder, "load", lambda _path: PitchEar())
    monkeypatch.setattr(cloning, "HibariAndKokoro", FakeMixer)
    monkeypatch.setattr(cloning, "teachers_of", lambda _checkpoint: choices.FLITE)
    monkeypatch.setattr(cloning, "HELD_OUT", HELD_OUT[:1])
    monkeypatch.setattr(cloning, "sentences", lambda number: ["All right.", "Not now."][:number])
    bundled = choices.FLITE, [voice for voice in VOICES_OF[choices.FLITE] if voice.name == "default"]
    monkeypatch.setitem(VOICES_OF, *bundled)
    checkpoint, out = demo_checkpoint(tmp_path_factory), tmp_path / "cloning.json"
    arguments = ["--checkpoint", str(checkpoint), "--engines", str(install_fake_flite(tmp_path / "engines"))]

    assert cloning.main([*arguments, "--sentences", "2", "--out", str(out)]) == 0

    result = json.loads(out.read_text("utf-8"))
    assert [row["speaker"] for row in result["rows"]] == ["tebukuro", "default"] * 2
    assert all(-1 <= value <= 1 for value in result["figures"].values()) and result["figures"]["clone_similarity"] > 0
    assert sorted(path.name for path in (checkpoint / "voices").iterdir()) == sorted(
        path.name for path in VOICES.iterdir()
    )


def test_sentences_are_held_out_and_about_four_seconds_long() -> None:
    found = sentences(3)

    assert len(set(found)) == 3 and all(55 <= len(text) <= 80 for text in found)


def test_a_study_that_can_t_run_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cloning.main(["--checkpoint", str(tmp_path), "--encoder", str(tmp_path / "no.pt")]) == 2
    assert "cloning: " in capsys.readouterr().err
