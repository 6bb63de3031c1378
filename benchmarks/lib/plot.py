"""Draws sweeps of load. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.lib.sweep import FinishedRun
from cosydit.bench.report import SIZE_INCHES, figure_class, save_figure

_MS = 1000


def draw_sweep(path: Path, runs: Sequence[FinishedRun]) -> None:
    """Write a PNG: time to first audio against callers and against the request rate, with the throughput.

    Raises:
        BenchmarkError: matplotlib is not installed.
    """
    figure = figure_class()(figsize=SIZE_INCHES, layout="constrained")
    axes = figure.subplots(2, 2)
    closed = [run for run in runs if run.load["requests_per_s"] is None and not run.is_unseen]
    opened = [run for run in runs if run.load["requests_per_s"] is not None]
    _draw_sweep_row(axes[0], closed, "num_tasks", "callers at once")
    _draw_sweep_row(axes[1], opened, "requests_per_s", "requests a second (Poisson)")
    save_figure(figure, path)


def _draw_sweep_row(axes: Any, runs: Sequence[FinishedRun], load: str, label: str) -> None:
    ascending = sorted(runs, key=lambda run: float(run.load[load]))
    loads, summaries = [run.load[load] for run in ascending], [run.summary for run in ascending]
    for point in ("p50", "p95", "p99"):
        times = [_MS * summary["ttfa_s"][point] if summary["ttfa_s"] else None for summary in summaries]
        axes[0].plot(loads, times, marker="o", label=point)
    axes[0].set(title="time to first audio", xlabel=label, ylabel="ms", ylim=(0, None))
    axes[0].legend()
    axes[0].grid(True)
    axes[1].plot(loads, [summary["audio_s_per_s"] for summary in summaries], marker="o")
    axes[1].set(title="audio made", xlabel=label, ylabel="s a second", ylim=(0, None))
    axes[1].grid(True)
