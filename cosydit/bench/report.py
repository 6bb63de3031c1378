"""Writes a run's results: a table for people, JSON with the environment, raw samples as JSONL.

The environment says where a figure was measured: machine, software, arguments. A number without it is not published.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from cosydit.bench.metrics import PERCENTILES, Distribution, Summary
from cosydit.bench.types import LoadResult, RequestRecord
from servicekit import files

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
    """Write a file whole or not at all, in a folder that is made if missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(path, text)


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


PACKAGES = (
    "cosydit",
    "torch",
    "numpy",
    "onnxruntime",
    "onnxruntime-gpu",
    "transformers",
    "tritonclient",
    "nvidia-pytriton",
    "grpcio",
    "aiohttp",
    "httpx",
    "soundfile",
    "vllm",
    "tensorrt-llm",
)
_COMMAND_TIMEOUT_S = 10.0
_MIB = 1024 * 1024


def describe_environment(arguments: Mapping[str, object], commit: str | None = None) -> dict[str, Any]:
    """Return machine, packages, commit and arguments, ready for JSON. What can't be found is None or left out.

    Args:
        arguments: of the command.
        commit: of the code that runs, unchanged, where there is no repository; None: as git says.
    """
    return {
        "date_utc": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpu_model": _cpu_model(),
        "cpu_count": os.cpu_count(),
        "cpus_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory_mib": _memory_mib(),
        "gpus": _gpus(),
        "packages": _packages(),
        "git_commit": commit or _git("rev-parse", "HEAD"),
        "git_is_modified": False if commit else _is_modified(),
        "arguments": {name: _plain(value) for name, value in sorted(arguments.items())},
    }


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or None
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _memory_mib() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _MIB
    except (ValueError, OSError):
        return None


def _gpus() -> list[str]:
    query = ["--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    answer = _output(["nvidia-smi", *query])
    return answer.splitlines() if answer else []


def _packages() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _is_modified() -> bool | None:
    status = _git("status", "--porcelain", "--untracked-files=no")
    return None if status is None else bool(status)


def _git(*arguments: str) -> str | None:
    return _output(["git", "-C", str(Path(__file__).parent), *arguments])


def _output(command: Sequence[str]) -> str | None:
    """Return what a command prints; None if it is missing or fails."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _plain(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
