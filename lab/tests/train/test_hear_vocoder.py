"""A vocoder in training is scored on what was held out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from lab.ears.opinion import Opinion
from lab.train import hear_vocoder
from lab.train.data import Utterance
from lab.train.sizes import TINY
from lab.train.trainer import save_state
from lab.train.workspace import Workspace
from token2wav_service.models.vocoder.hift import HiFT
from token2wav_service.types import FloatArray


class Loudness:
    """Stands in for the critic: hears how loud it is."""

    def opinion(self, samples: FloatArray) -> Opinion:
        level = float(np.abs(samples).mean())
        return Opinion(level, level, level, level)


def test_the_newest_long_utterances_of_each_speaker_are_heard() -> None:
    utterances = [
        Utterance(speaker, "", start, tokens) for speaker in (0, 1) for start, tokens in enumerate((60, 70, 9))
    ]

    found = hear_vocoder.newest(utterances, 1)

    assert [(each.speaker, each.tokens) for each in found] == [(0, 70), (1, 70)]


@pytest.mark.slow
def test_a_vocoder_is_scored_beside_its_teachers(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "corpus").symlink_to(workspace.corpus)
    torch.manual_seed(0)
    save_state(Workspace(tmp_path).weights("vocoder"), {"hift": HiFT(TINY.hift)}, 1, 1.0)
    monkeypatch.setattr(hear_vocoder, "DnsMos", Loudness)

    assert hear_vocoder.main(["--work", str(tmp_path), "--sizes", "tiny"]) == 0

    figures = json.loads(capsys.readouterr().out)
    assert figures["utterances"] > 0 and figures["p808_teacher"] > 0
    assert np.isfinite(list(figures.values())).all()
