"""Figures in the documentation are those of the result files that it names."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from tests.docs.pages import ROOT

RESULTS = ROOT / "benchmarks/results"
SWEEP = {
    "1 caller": "closed-001",
    "10 requests/s": "poisson-010",
    "20 requests/s": "poisson-020",
    "32 requests/s": "poisson-032",
    "64 requests/s": "poisson-064",
    "a voice never seen, 1 caller": "unseen-voice",
}
FIRST_CHUNKS = "| {first_chunk_1_ms:.1f} | " + " | ".join(
    f"{{first_chunk_{streams}_last_ms:.1f}}" for streams in (4, 8, 16, 32, 64)
)
RATES = (1, 6, 10, 20, 32)
SAID = (
    ("README.md", "h200", "first audio after {ttfa_1_p50_ms:.0f} ms (median)"),
    ("README.md", "h200", "{ttfa_1_p50_ms:.0f} ms (H200, random weights)"),
    (
        "README.md",
        "h200",
        "95 % heard it within {ttfa_poisson10_p95_ms:.0f} ms, at 32 within {ttfa_poisson32_p95_ms:.0f} ms, "
        "at 64 (510 listeners at once) within {ttfa_poisson64_p95_ms:.0f} ms",
    ),
    ("README.zh.md", "h200", "首包延迟中位数 {ttfa_1_p50_ms:.0f} ms"),
    (
        "README.zh.md",
        "h200",
        "95 % 的首包在 {ttfa_poisson10_p95_ms:.0f} ms 以内，每秒 32 个时在 {ttfa_poisson32_p95_ms:.0f} ms 以内，"
        "每秒 64 个（510 人同时收听）时在 {ttfa_poisson64_p95_ms:.0f} ms 以内",
    ),
    (
        "docs/index.md",
        "h200",
        "first audio after {ttfa_1_p50_ms:.0f} ms (median); at 10 requests a second 95 % heard it within "
        "{ttfa_poisson10_p95_ms:.0f} ms",
    ),
    ("docs/capacity.md", "offline_h200", "one H200 made {times_real_time:.0f} s of speech a second"),
    (
        "docs/performance.md",
        "h200",
        "audible TTFA p50, ms | " + " | ".join(f"{{audible_poisson{rate}_p50_ms:.0f}}" for rate in RATES),
    ),
    (
        "docs/performance.md",
        "h200",
        "p95, ms | " + " | ".join(f"{{audible_poisson{rate}_p95_ms:.0f}}" for rate in RATES),
    ),
    (
        "docs/performance.md",
        "h100",
        "audible TTFA is {audible_poisson1_p95_ms:.0f}, {audible_poisson6_p95_ms:.0f}, "
        "{audible_poisson10_p95_ms:.0f}, {audible_poisson20_p95_ms:.0f} and {audible_poisson32_p95_ms:.0f} ms",
    ),
    ("docs/performance.md", "h200_engine", "last one's first chunk, ms " + FIRST_CHUNKS),
    ("docs/performance.md", "h200_engine", "chunks of 1 s; with 1100 there were gaps | {realtime_streams} |"),
    (
        "docs/performance.md",
        "h100_engine",
        "{first_chunk_1_ms:.1f} ms for one stream and {first_chunk_64_last_ms:.1f} ms for the last of 64, and "
        "serves {realtime_streams} listeners",
    ),
    (
        "docs/performance.md",
        "h200",
        "TTFA p95 {ttfa_poisson10_no_mps_p95_ms:.0f} ms at 10 requests a second, "
        "{ttfa_poisson20_no_mps_p95_ms:.0f} at 20, {ttfa_poisson32_no_mps_p95_ms:.0f} at 32",
    ),
    (
        "docs/performance.md",
        "h200_trace",
        "| {llm_received_ms:.1f} | the LLM has the request | "
        "| {llm_first_token_ms:.1f}, {first_token_at_gateway_ms:.1f} | it has the first token; the gateway has it |"
        "| {window_sent_ms:.1f} | the first chunk (10 tokens) is complete, and sent | "
        "| {step_begins_ms:.1f} to {step_ends_ms:.1f} | token2wav's step | "
        "| {audio_at_gateway_ms:.1f} | the gateway has the audio |",
    ),
    (
        "docs/performance.md",
        "h200_families",
        "{cosyvoice2_first_chunk_1_ms:.1f}; {cosyvoice2_first_chunk_32_last_ms:.1f}; "
        "{cosyvoice2_first_chunk_64_last_ms:.1f} | {cosyvoice3_first_chunk_1_ms:.1f}; "
        "{cosyvoice3_first_chunk_32_last_ms:.1f}; {cosyvoice3_first_chunk_64_last_ms:.1f} |",
    ),
    (
        "docs/performance.md",
        "h200_families",
        "| end to end: TTFA p50 of 1 caller, ms | {cosyvoice2_ttfa_1_p50_ms:.0f} | {cosyvoice3_ttfa_1_p50_ms:.0f} | "
        "| TTFA p95 at 16 requests/s for 30 s, ms | {cosyvoice2_ttfa_poisson16_p95_ms:.0f} | "
        "{cosyvoice3_ttfa_poisson16_p95_ms:.0f} |",
    ),
    (
        "docs/performance.md",
        "offline_h200",
        "real-time factor {rtf:.4f}, which is {times_real_time:.0f} s of audio",
    ),
    (
        "docs/performance.md",
        "voice_speed_cpu",
        "TTFA {ttfa_ms_today:.0f} ms (median), real-time factor {rtf_today:.2f}",
    ),
    ("docs/quick-start-cpu.md", "voice_speed_cpu", "has {rtf_today:.2f} on two idle cores"),
    ("docs/quick-start-cpu.md", "voice_speed_cpu", "comes after {ttfa_ms_today:.0f} ms"),
)
"""Page, result file, and what the page says of the file's `figures`."""


@pytest.mark.parametrize(("page", "result", "said"), SAID)
def test_a_page_says_what_its_result_file_says(page: str, result: str, said: str) -> None:
    assert without_blanks(said.format(**loaded(result)["figures"])) in text_of(page)


@pytest.mark.parametrize("result", ["h200", "h100"])
@pytest.mark.parametrize("load", SWEEP)
def test_the_tables_of_loads_are_the_result_files(result: str, load: str) -> None:
    section = text_of("docs/performance.md").partition("###OnanH100")[0 if result == "h200" else 2]
    row = without_blanks(cells(loaded(result)["end_to_end"][SWEEP[load]]))
    assert re.search(re.escape(without_blanks(load)) + r"(?:\([^|]*\))?\|" + re.escape(row), section), row


@pytest.mark.parametrize(("gpu", "column"), [("h100", 0), ("h200", 2)])
def test_the_table_of_plain_commands_is_the_result_files(gpu: str, column: int) -> None:
    result = loaded(f"gpu_host_{gpu}")
    figures, commands = result["figures"], result["commands"]
    rows = {
        "TTFA p50 of 1 caller, ms": (figures["ttfa_1_p50_ms"], figures["ttfa_1_hand_set_p50_ms"]),
        "TTFA p95 at 20 requests/s for 30 s, ms": (
            figures["ttfa_poisson20_p95_ms"],
            figures["ttfa_poisson20_hand_set_p95_ms"],
        ),
        "ready after, s": (commands["plain"]["ready_s"], commands["hand_set"]["ready_s"]),
    }
    for name, values in rows.items():
        (row,) = re.findall(rf"^\| {name} \| (.*) \|$", (ROOT / "docs/performance.md").read_text("utf-8"), re.MULTILINE)
        assert row.split(" | ")[column : column + 2] == [f"{value:.0f}" for value in values]


def cells(run: Mapping[str, Any]) -> str:
    """Return a run's figures as cells of the tables of loads."""
    times = " | ".join(f"{run['ttfa_ms'][quantile]:.0f}" for quantile in ("p50", "p95", "p99"))
    dry = run["underruns"][0]["requests"]
    return f"{times} | {run['audio_s_per_s']:.0f} | {run['requests']} | {run['failures']} | {dry} |"


@cache
def loaded(result: str) -> dict[str, Any]:
    """Return a result file's content."""
    content: dict[str, Any] = json.loads((RESULTS / f"{result}.json").read_text("utf-8"))
    return content


@cache
def text_of(page: str) -> str:
    """Return a page without its blanks and ends of lines."""
    return without_blanks((ROOT / page).read_text("utf-8"))


def without_blanks(text: str) -> str:
    """Return a text without blanks, so that it does not matter where lines end."""
    return re.sub(r"\s+", "", text)
