"""Figures in the documentation are those of the result files that it names."""

from __future__ import annotations

import json
import re
import statistics
import string
import subprocess
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
import yaml

from benchmarks.lib.sweep import RUN_SUFFIX, read_run
from tests.docs.pages import ROOT

RESULTS = ROOT / "benchmarks/results"
SAID: Mapping[str, Mapping[str, list[str]]] = yaml.safe_load((ROOT / "tests/docs/figures.yaml").read_text("utf-8"))
SWEEP = {
    "1 caller": "closed-001",
    "10 requests/s": "poisson-010",
    "20 requests/s": "poisson-020",
    "32 requests/s": "poisson-032",
    "64 requests/s": "poisson-064",
    "80 requests/s": "poisson-080",
    "100 requests/s, more than the GPU serves": "poisson-100",
}
COMMIT = re.compile(r'"(?:git_)?commit": ?"([0-9a-f]{7,40})"')


class Teller(string.Formatter):
    """Fills a template with values of a result."""

    def __init__(self, result: str) -> None:
        self.content = loaded(result)
        figures = self.content.get("figures")
        self.figures = figures if isinstance(figures, dict) else {}

    def get_value(self, key: int | str, args: Any, kwargs: Any) -> Any:
        """Return a figure, another value of the result, or another result."""
        for values in (self.figures, self.content):
            if key in values:
                return values[key]
        return loaded(str(key))

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        """Return the value at a path such as `steps[0][lost]`; keys may be any text without brackets."""
        first, *path = field_name.replace("]", "").split("[")
        value = self.get_value(first, args, kwargs)
        for key in path:
            value = value[int(key)] if isinstance(value, list) else value[key]
        return value, first

    def format_field(self, value: Any, format_spec: str) -> str:
        """Tell a value; `ms` tells seconds in milliseconds."""
        return f"{1000 * value:.0f}" if format_spec == "ms" else format(value, format_spec)


@pytest.mark.parametrize(
    ("page", "result"),
    [
        pytest.param(
            page,
            result,
            marks=[pytest.mark.slow]
            if (RESULTS / result).is_dir() and not (RESULTS / f"{result}.json").exists()
            else [],
        )
        for page, results in SAID.items()
        for result in results
    ],
)
def test_a_page_says_what_its_result_file_says(page: str, result: str) -> None:
    teller, text = Teller(result), text_of(page)
    expected = [teller.format(said) for said in SAID[page][result]]
    assert [said for said in expected if without_blanks(said) not in text] == []


@pytest.mark.parametrize("load", SWEEP)
def test_the_table_of_loads_is_the_result_file(load: str) -> None:
    row = without_blanks(cells(loaded("h200")["end_to_end"][SWEEP[load]]))
    found = re.search(
        re.escape(without_blanks(load)) + r"(?:\([^|]*\))?\|" + re.escape(row), text_of("docs/performance.md")
    )
    assert found, row


def test_the_costs_of_the_doors_and_of_precision_are_the_result_files() -> None:
    times = loaded("dialects_cpu")["first_byte_s"]
    alone, *others = (1000 * statistics.median(seconds) for seconds in times.values())
    added = {name: ms - alone for name, ms in zip([*times][1:], others, strict=True)}
    plain = [ms for name, ms in added.items() if re.search("pcm$|wav|pcm in SSE", name) and "OpenAI" in name]
    encoded = [ms for name, ms in added.items() if re.search("mp3|opus|aac|flac", name)]
    loop_s = [cost["loop_s"] for cost in loaded("gateway_cost_cpu")["costs"]]
    worst = {
        kind: [min(row[name] for row in rows) for name in ("mel_snr_db", "wave_snr_db")]
        for kind, rows in loaded("h200_precision")["precision"].items()
    }
    for said in (
        f"takes {alone:.1f} ms to the first byte",
        f"events add {min(plain):.1f} to {max(plain):.1f} ms",
        f"FLAC {min(encoded):.1f} to {max(encoded):.1f} ms",
        f"{1000 * min(loop_s):.1f} to {1000 * max(loop_s):.1f} ms of the event loop's CPU",
        "{:.1f} dB mel, {:.1f} dB wave".format(*worst["float16"]),
        "{:.1f} dB mel, {:.1f} dB wave".format(*worst["bfloat16"]),
    ):
        assert without_blanks(said) in text_of("docs/performance.md")


@pytest.mark.slow
def test_the_commits_that_results_name_are_in_the_history() -> None:
    git = ["git", "-C", str(ROOT)]
    known = subprocess.run([*git, "rev-list", "HEAD"], capture_output=True, text=True, check=False, timeout=60)
    is_shallow = (ROOT / ".git/shallow").exists()
    if known.returncode or is_shallow:
        pytest.skip("needs the whole history")
    named = {
        commit: path.relative_to(RESULTS).as_posix()
        for path in sorted(RESULTS.rglob("*.json"))
        for commit in COMMIT.findall(path.read_text("utf-8"))
    }
    commits = known.stdout.split()
    assert named
    assert {path for commit, path in named.items() if not any(each.startswith(commit) for each in commits)} == set()


def cells(run: Mapping[str, Any]) -> str:
    """Return a run's figures as cells of the table of loads."""
    times = " | ".join(f"{run['ttfa_ms'][quantile]:.0f}" for quantile in ("p50", "p95", "p99"))
    dry = run["underruns"][0]["requests"]
    return f"{times} | {run['audio_s_per_s']:.0f} | {run['requests']} | {run['failures']} | {dry} |"


@cache
def loaded(result: str) -> dict[str, Any]:
    """Return a result file's content; of a folder, each run's summary by the run's name."""
    if (RESULTS / result).is_dir() and not (RESULTS / f"{result}.json").exists():
        runs = map(read_run, (RESULTS / result).glob(f"*{RUN_SUFFIX}"))
        return {run.name: run.summary for run in runs}
    content: dict[str, Any] = json.loads((RESULTS / f"{result}.json").read_text("utf-8"))
    return content


@cache
def text_of(page: str) -> str:
    """Return a page without its blanks and ends of lines."""
    return without_blanks((ROOT / page).read_text("utf-8"))


def without_blanks(text: str) -> str:
    """Return a text without blanks, so that it does not matter where lines end."""
    return re.sub(r"\s+", "", text)
