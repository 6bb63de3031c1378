"""The certificate's file and page, what an interrupted run keeps, and what the command's status says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cosydit.certify.check import CERTIFICATE_FILE, CheckOutcome, CheckpointCertificate, Findings, Result, write_page
from cosydit.cli.main import main
from tests import ROOT


def outcome(path: str, result: Result = Result.PASS, **fields: object) -> CheckOutcome:
    return CheckOutcome(path, result, 1.0, **fields)  # type: ignore[arg-type]


def certificate_of(*outcomes: CheckOutcome, commit: str = "abc") -> CheckpointCertificate:
    return CheckpointCertificate(
        "H100", commit, "random", {"device": "cuda"}, {}, {each.check: each for each in outcomes}
    )


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
    found = certificate_of(*(outcome(f"host/{number}", result) for number, result in enumerate(results)))
    assert found.result is whole


def written(folder: Path, *outcomes: CheckOutcome) -> None:
    found = certificate_of()
    for each in outcomes:
        found.add(each, [each.check for each in outcomes], folder)


def test_the_file_has_what_a_reader_of_many_needs(tmp_path: Path) -> None:
    found = Findings()
    found.tell("memory", 80, "GiB", least=6)
    written(tmp_path, outcome("host/gpu", figures=found.figures))
    told = json.loads((tmp_path / CERTIFICATE_FILE).read_text("utf-8"))
    assert {"schema", "gpu", "commit", "weights", "settings", "environment", "result", "checks"} == set(told)
    assert told["checks"][0]["figures"] == [
        {"name": "memory", "value": 80.0, "unit": "GiB", "bound": "at least 6", "is_within": True}
    ]


def test_resume_goes_on_with_a_run_of_the_same_commit_whose_failures_stay(tmp_path: Path) -> None:
    written(tmp_path, outcome("host/gpu"), outcome("llm/ids", Result.FAIL), outcome("x", Result.NOT_RUN))
    again = certificate_of()
    assert again.resume(tmp_path) == ["host/gpu"]
    assert again.result is Result.FAIL and list(again.outcomes) == ["host/gpu", "llm/ids", "x"]
    with pytest.raises(ValueError, match="of another commit; leave --resume out"):
        certificate_of(commit="def").resume(tmp_path)
    assert certificate_of().resume(tmp_path / "empty") == []


def test_resume_refuses_a_damaged_file(tmp_path: Path) -> None:
    (tmp_path / CERTIFICATE_FILE).write_text('{"checks": [1', "utf-8")
    with pytest.raises(ValueError, match="can't be read"):
        certificate_of().resume(tmp_path)


def test_the_page_shows_figures_audio_and_how_to_repair(tmp_path: Path) -> None:
    found = Findings()
    for number in range(5):
        found.tell(f"{number} streams", number, "ms", most=2)
    failed = outcome(
        "token2wav/prompts",
        Result.FAIL,
        reason="2 < 3 & more",
        page="performance.md",
        figures=found.figures,
        audio=["audio/one.opus"],
        log_tail="the end <of> the log",
    )
    text = write_page(certificate_of(failed), tmp_path).read_text("utf-8")
    assert "2 &lt; 3 &amp; more" in text and "&lt;of&gt;" in text and "docs/performance.md" in text
    assert "<audio controls src='audio/one.opus'>" in text and text.count("class='outside'") == 2


@pytest.mark.slow
def test_a_wrong_option_is_told_with_what_is_possible(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = ["--work-dir", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main(["certify", "--device", "cpu", "--only", "hots", *work]) == 2
    assert "AREA one of host, checkpoint, llm" in capsys.readouterr().err
    assert main(["certify", "--set", "dtype", "--device", "cpu", *work]) == 2
    assert main(["certify", "--checkpoint", str(tmp_path / "none"), "--device", "cpu", *work]) == 2
    assert main(["certify", "--load-s", "0", "--device", "cpu", *work]) == 2


@pytest.mark.slow
def test_where_nothing_can_run_the_status_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unpacks the demo voice."""
    monkeypatch.setenv("PATH", str(tmp_path))
    work = ["--work-dir", str(tmp_path), "--out", str(tmp_path / "out"), "--device", "cpu"]
    assert main(["certify", "--only", "host/gpu", "--only", "host/docker", *work]) == 3
    told = json.loads((tmp_path / "out" / "certificate.json").read_text("utf-8"))
    assert told["result"] == "not run" and [entry["check"] for entry in told["checks"]] == ["host/gpu", "host/docker"]
    assert (tmp_path / "out" / "certificate.html").is_file()


def test_the_certificates_that_people_sent_can_be_read() -> None:
    paths = sorted((ROOT / "certificates").glob("*/certificate.json"))
    read = [
        [CheckOutcome.from_json(entry) for entry in json.loads(path.read_text("utf-8"))["checks"]] for path in paths
    ]
    assert len(read) >= 4 and all(len(outcomes) >= 40 for outcomes in read)
