"""Writes a run's results: a table for people, JSON with the environment, raw samples as JSONL."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cosydit.bench.metrics import PERCENTILES, Distribution, Summary
from cosydit.bench.types import LoadResult, RequestRecord

RESULTS_FILE = "results.json"
SAMPLES_FILE = "samples.jsonl"
TABLE_FILE = "rtf.txt"
PLOT_FILE = "latency.png"
_MS = 1000
_MAX_FAILURES_SHOWN = 10


def summary_table(title: str, summary: Summary, result: LoadResult) -> str:
    """Return what a person wants to see of a run."""
    heads = [f"p{percent}" for percent in PERCENTILES]
    rows = [["", "n", *heads, "mean", "max"]]
    rows += [
        _row("time to first audio, ms", summary.ttfa_s, _MS),
        _row("time to second chunk, ms", summary.second_chunk_s, _MS),
        _row("total, ms", summary.total_s, _MS),
        _row("RTF per request", summary.rtf, 1),
    ]
    lines = [title, "", *_aligned(rows), "", *_totals(summary, result), "", *_underruns(summary)]
    return "\n".join([*lines, *_failures(result.records)]) + "\n"


def summary_json(summary: Summary) -> dict[str, Any]:
    """Return a summary ready for JSON; percentiles as p50, p90, ..."""
    report = asdict(summary)
    for name, value in report.items():
        if isinstance(value, dict) and "percentiles" in value:
            points = value.pop("percentiles")
            report[name] = {**value, **{f"p{percent}": point for percent, point in points.items()}}
    return {**report, "audio_s_per_s": summary.throughput, "requests_per_s": summary.requests_per_s}


def record_json(record: RequestRecord) -> dict[str, Any]:
    """Return one request's raw samples, times in seconds."""
    derived = {
        "ttfa_s": record.ttfa_s,
        "second_chunk_s": record.second_chunk_s,
        "audio_s": record.audio_s,
        "rtf": record.rtf,
    }
    return {**asdict(record), **derived}


def write_json(path: Path, content: object) -> None:
    """Write JSON beside `path` and move it there, so that no half file is ever seen."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_records(path: Path, records: Iterable[RequestRecord]) -> None:
    """Write one JSON object a line."""
    write_text(path, "".join(json.dumps(record_json(record), ensure_ascii=False) + "\n" for record in records))


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def aligned_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as columns: the first to the left, the others to the right."""
    return "\n".join(_aligned(rows)) + "\n"


def _row(name: str, values: Distribution | None, scale: float) -> list[str]:
    if values is None:
        return [name, "0", *("-" for _ in PERCENTILES), "-", "-"]
    figures = [values.percentiles[percent] for percent in PERCENTILES] + [values.mean, values.maximum]
    form = "{:.1f}" if scale == _MS else "{:.4f}"
    return [name, str(values.count), *(form.format(figure * scale) for figure in figures)]


def _totals(summary: Summary, result: LoadResult) -> list[str]:
    rtf = f"{summary.wall_s / summary.audio_s:.4f}" if summary.audio_s else "-"
    return [
        f"requests: {summary.requests}, failed: {summary.failures}, warm-up (not counted): {len(result.warm_up)}",
        f"audio: {summary.audio_s:.2f} s in {summary.wall_s:.2f} s of wall time",
        f"RTF of the run: {rtf}, throughput: {summary.throughput:.3f} s of audio a second, "
        f"{summary.requests_per_s:.3f} requests a second",
    ]


def _underruns(summary: Summary) -> list[str]:
    rows = [["playback ran dry, start buffer", "requests", "gaps", "s short", "worst s"]]
    for underrun in summary.underruns:
        share = f"{underrun.requests}/{underrun.of_requests}"
        figures = [str(underrun.gaps), f"{underrun.short_s:.3f}", f"{underrun.worst_s:.3f}"]
        rows.append([f"{underrun.buffer_s * _MS:.0f} ms", share, *figures])
    return _aligned(rows)


def _failures(records: Sequence[RequestRecord]) -> list[str]:
    failed = [record for record in records if not record.is_ok]
    lines = [f"FAILED {record.utt} ({record.request_id}): {record.error}" for record in failed[:_MAX_FAILURES_SHOWN]]
    more = len(failed) - len(lines)
    return [*([""] if lines else []), *lines, *([f"... and {more} more; see {SAMPLES_FILE}"] if more else [])]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if index else cell.ljust(width) for index, (cell, width) in enumerate(pairs)
        ).rstrip()
        for pairs in (list(zip(row, widths, strict=True)) for row in rows)
    ]
