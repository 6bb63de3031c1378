"""The rehearsal of a training run measures every stage, both ways."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.train.rehearse import main
from lab.train.workspace import Workspace

pytestmark = pytest.mark.slow


def test_every_stage_is_measured_with_graphs_and_without(
    workspace: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("engines", "texts", "corpus"):
        (tmp_path / name).symlink_to(workspace.root / name)
    options = ["--teachers", "flite", "--sizes", "tiny", "--device", "cpu", "--utterances", "64"]

    status = main(["--work", str(tmp_path), *options, "--batch", "2", "--pace-s", "0.1", "--workers", "1"])

    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert status == 0
    assert [record["stage"] for record in records[:4]] == ["corpus", "tokenizer", "speaker", "codes"]
    assert [(record["stage"], record["way"]) for record in records[4:]] == [
        (stage, way)
        for stage in ("tokenizer", "speaker", "vocoder", "vocoder", "flow", "llm")
        for way in ("graphs", "eager")
    ]
    assert all(record["steps_a_second"] > 0 for record in records[4:])
    assert "judges" in records[10] and "judges" not in records[8]
