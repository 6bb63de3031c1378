"""Draws figures, and sweeps of load. Needs matplotlib."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.lib.sweep import FinishedRun
from cosydit.bench.types import BenchmarkError
from servicekit.extras import install_command

SIZE_INCHES = (11, 8)
_MS = 1000
_WEBP = {"quality": 60, "method": 6}
"""Settings for pictures that are kept in the repository: a quarter of a PNG's size."""


def figure_class() -> Any:
    """Return a maker of matplotlib figures that need no display.

    Raises:
        BenchmarkError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise BenchmarkError(f"the plot needs: {install_command('bench')} ({error})") from error

    def make(**options: Any) -> Any:
        figure = Figure(**options)
        FigureCanvasAgg(figure)
        return figure

    return make


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure as PNG or, where the path ends so, as WebP: whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    if path.suffix == ".webp":
        figure.savefig(partial, format="webp", pil_kwargs=_WEBP)
    else:
        figure.savefig(partial, format="png")
    os.replace(partial, path)


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
