"""Writes a run's results: a table for people, JSON with the environment, raw samples as JSONL.

The environment says where a figure was measured: machine, software, arguments. A number without it is not published.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cosydit.bench.metrics import PERCENTILES, Distribution, Summary
from cosydit.bench.types import LoadResult, RequestRecord
from servicekit import files
from servicekit.extras import installed_version
from servicekit.gpu_host import run_program

RESULTS_FILE = "results.json"
SAMPLES_FILE = "samples.jsonl"
TABLE_FILE = "rtf.txt"
_MS = 1000
_MAX_FAILURES_SHOWN = 10


def summary_table(title: str, summary: Summary, result: LoadResult) -> str:
    """Return what a person wants to see of a run."""
    rows = [
        ["", "n", *(f"p{percent}" for percent in PERCENTILES), "mean", "max"],
        _row("time to first audio, ms", summary.ttfa_s, _MS),
        _row("time to second chunk, ms", summary.second_chunk_s, _MS),
        _row("total, ms", summary.total_s, _MS),
        _row("RTF per request", summary.rtf, 1),
    ]
    totals, tables = _totals(summary, result), (aligned_table(rows), aligned_table(_underruns(summary)))
    return "\n".join([title, "", tables[0], *totals, "", tables[1], *_failures(result.records)]) + "\n"


def summary_json(summary: Summary) -> dict[str, Any]:
    """Return a summary ready for JSON; percentiles as p50, p90, ..."""
    report = asdict(summary)
    for name, value in report.items():
        if isinstance(value, dict) and "percentiles" in value:
            points = value.pop("percentiles")
            report[name] = {**value, **{f"p{percent}": point for percent, point in points.items()}}
    return {**report, "audio_s_per_s": summary.throughput, "requests_per_s": summary.requests_per_s}


def write_json(path: Path, content: object) -> None:
    """Write JSON beside `path` and move it there, so that no half file is ever seen."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_records(path: Path, result: LoadResult) -> None:
    """Write the raw samples of each request as one JSON object a line, times in seconds."""
    derived = ("ttfa_s", "second_chunk_s", "audio_s", "rtf")
    samples = [{**asdict(r), **{name: getattr(r, name) for name in derived}} for r in result.warm_up + result.records]
    warm_up = len(result.warm_up)
    write_jsonl(path, ({**each, "is_warm_up": number < warm_up} for number, each in enumerate(samples)))


def write_jsonl(path: Path, entries: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object a line."""
    write_text(path, "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries))


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all, in a folder that is made if missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(path, text)


def aligned_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as columns: the first to the left, the others to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells[1:]]).rstrip() + "\n")
    return "".join(lines)


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


def _underruns(summary: Summary) -> list[list[str]]:
    rows = [["playback ran dry, start buffer", "requests", "gaps", "s short", "worst s"]]
    for each in summary.underruns:
        share, seconds = f"{each.requests}/{each.of_requests}", (f"{each.short_s:.3f}", f"{each.worst_s:.3f}")
        rows.append([f"{each.buffer_s * _MS:.0f} ms", share, str(each.gaps), *seconds])
    return rows


def _failures(records: Sequence[RequestRecord]) -> list[str]:
    failed = [record for record in records if not record.is_ok]
    lines = [f"FAILED {record.utt} ({record.request_id}): {record.error}" for record in failed[:_MAX_FAILURES_SHOWN]]
    more = len(failed) - len(lines)
    return [*lines, *([f"... and {more} more; see {SAMPLES_FILE}"] if more else [])]


PACKAGES = (
    *("cosydit", "torch", "numpy", "onnxruntime", "onnxruntime-gpu", "transformers", "tritonclient"),
    *("nvidia-pytriton", "grpcio", "aiohttp", "httpx", "soundfile", "vllm", "tensorrt-llm"),
)


def describe_environment(arguments: Mapping[str, object], commit: str | None = None) -> dict[str, Any]:
    """Return machine, packages, commit and arguments, ready for JSON. What can't be found is None or left out.

    A `commit` is that of the code, unchanged, where there is no repository; without one git is asked.
    """
    gpus = output_of("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
    git = ("git", "-C", str(Path(__file__).parent))
    status = output_of(*git, "status", "--porcelain", "--untracked-files=no")
    return {
        "date_utc": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpu_model": cpu_model(),
        "cpu_count": os.cpu_count(),
        "cpus_usable": len(os.sched_getaffinity(0)),
        "memory_mib": ram_bytes() // 1024**2,
        "gpus": gpus.splitlines() if gpus else [],
        "packages": {name: version for name in PACKAGES if (version := installed_version(name)) is not None},
        "git_commit": commit or output_of(*git, "rev-parse", "HEAD"),
        "git_is_modified": False if commit else None if status is None else bool(status),
        "arguments": {name: _plain(value) for name, value in sorted(arguments.items())},
    }


def cpu_model() -> str:
    """Return the CPU's model as Linux names it."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text("utf-8", errors="replace").splitlines() if path.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def ram_bytes() -> int:
    """Return the size of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def output_of(*command: str) -> str | None:
    """Return what a command prints; None if it is missing or fails."""
    try:
        return run_program(command).strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _plain(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
