"""The certificate's file and page, and what the command's status says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cosydit.certify.check import CERTIFICATE_FILE, PAGE_FILE, CheckpointCertificate, Findings, Result
from cosydit.cli.main import main
from tests.workers import random_checkpoint


def certificate_of(*found: Findings) -> CheckpointCertificate:
    return CheckpointCertificate("H100", "abc", "random", {"device": "cuda"}, {}, list(found))


@pytest.mark.parametrize(
    ("results", "whole"),
    [
        ([Result.PASS, Result.NOT_RUN], Result.PASS),
        ([Result.PASS, Result.FAIL, Result.NOT_RUN], Result.FAIL),
        ([Result.NOT_RUN], Result.NOT_RUN),
        ([], Result.NOT_RUN),
    ],
)
def test_one_failure_fails_the_whole_and_what_was_not_run_does_not(results: list[Result], whole: Result) -> None:
    found = certificate_of(*(Findings(f"host/{number}", result) for number, result in enumerate(results)))
    assert found.result is whole


def test_file_and_page_have_figures_audio_and_how_to_repair(tmp_path: Path) -> None:
    found = Findings("token2wav/reference", Result.FAIL, reason="2 < 3 & more", page="performance.md")
    found.audio, found.log_tail = ["audio/one.opus"], "the end <of> the log"
    found.tell("memory", 80, "GiB", least=6)
    found.tell("streams", 3, "ms", most=2)
    certificate_of().add(found, tmp_path)
    told = json.loads((tmp_path / CERTIFICATE_FILE).read_text("utf-8"))
    assert {"schema", "gpu", "commit", "weights", "settings", "environment", "result", "checks"} == set(told)
    assert told["checks"][0]["figures"][0] == {
        **{"name": "memory", "value": 80.0, "unit": "GiB", "bound": "at least 6", "is_within": True}
    }
    page = (tmp_path / PAGE_FILE).read_text("utf-8")
    assert "2 &lt; 3 &amp; more" in page and "&lt;of&gt;" in page and "docs/performance.md" in page
    assert "<audio controls src='audio/one.opus'>" in page and page.count("class='outside'") == 1


@pytest.mark.slow
def test_a_wrong_option_is_told_with_what_is_possible(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = ["--device", "cpu", "--work-dir", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main(["certify", "--only", "hots", *work]) == 2
    assert "AREA one of host, checkpoint, llm" in capsys.readouterr().err
    assert main(["certify", "--checkpoint", str(tmp_path / "none"), *work]) == 2


@pytest.mark.slow
def test_where_nothing_can_run_the_status_says_so(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    work = ["--checkpoint", str(random_checkpoint(tmp_path_factory)), "--out", str(tmp_path / "out"), "--device", "cpu"]
    assert main(["certify", "--only", "host/gpu", "--only", "host/docker", *work]) == 3
    told = json.loads((tmp_path / "out" / "certificate.json").read_text("utf-8"))
    assert told["result"] == "not run" and [entry["check"] for entry in told["checks"]] == ["host/gpu", "host/docker"]
