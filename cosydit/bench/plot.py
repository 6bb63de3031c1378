"""Draws runs: how long the first audio took, when the chunks of each request came. Needs matplotlib."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cosydit.bench.types import BenchmarkError, RequestRecord
from servicekit.extras import install_command

_MS = 1000
_MAX_BINS = 30
_MAX_TIMELINES = 60
SIZE_INCHES = (11, 8)
_WHOLE = 100
_WEBP = {"quality": 60, "method": 6}
"""Settings for pictures that are kept in the repository: a quarter of a PNG's size."""


def draw_latencies(path: Path, title: str, records: Sequence[RequestRecord]) -> None:
    """Write a PNG: histogram and cumulative share of the time to first audio, and every request's chunks in time.

    Args:
        path: where to write; replaced whole.
        title: one line.
        records: failed ones are left out.

    Raises:
        BenchmarkError: matplotlib is not installed.
    """
    good = [record for record in records if record.is_ok]
    figure = figure_class()(figsize=SIZE_INCHES, layout="constrained")
    figure.suptitle(f"{title} ({len(good)} requests)")
    axes = figure.subplots(2, 2)
    times_ms = sorted(record.arrivals[0].at_s * _MS for record in good)
    _draw_histogram(axes[0][0], times_ms)
    _draw_cumulative(axes[0][1], times_ms)
    _draw_timeline(axes[1][0], good[:_MAX_TIMELINES])
    _draw_lead(axes[1][1], good[:_MAX_TIMELINES])
    save_figure(figure, path)


def require_matplotlib() -> None:
    """Fail before a long run, not after it.

    Raises:
        BenchmarkError: matplotlib is not installed.
    """
    figure_class()


def figure_class() -> Any:
    """Return a maker of matplotlib figures that need no display.

    Raises:
        BenchmarkError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise BenchmarkError(f"the plot needs: {install_command('bench')} ({error}); or give --no-plot") from error

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


def _draw_histogram(axes: Any, times_ms: Sequence[float]) -> None:
    if times_ms:
        axes.hist(times_ms, bins=min(_MAX_BINS, max(1, len(times_ms))))
    axes.set(title="time to first audio", xlabel="ms", ylabel="requests")


def _draw_cumulative(axes: Any, times_ms: Sequence[float]) -> None:
    shares = [_WHOLE * (index + 1) / len(times_ms) for index in range(len(times_ms))]
    axes.step(times_ms, shares, where="post")
    axes.set(title="time to first audio, cumulative", xlabel="ms", ylabel="% of requests", ylim=(0, _WHOLE))
    axes.grid(True)


def _draw_timeline(axes: Any, records: Sequence[RequestRecord]) -> None:
    for row, record in enumerate(records):
        axes.hlines(row, 0, record.total_s, linewidth=0.5)
        axes.plot([arrival.at_s for arrival in record.arrivals], [row] * len(record.arrivals), "|", markersize=6)
    axes.set(title="arrival of each chunk", xlabel="s since the request", ylabel="request")


def _draw_lead(axes: Any, records: Sequence[RequestRecord]) -> None:
    """How far each request is ahead of its own playback; below zero it has run dry."""
    for record in records:
        heard_s, leads = 0.0, []
        for arrival in record.arrivals:
            leads.append(heard_s - (arrival.at_s - record.arrivals[0].at_s))
            heard_s += arrival.audio_s
        axes.plot([arrival.at_s for arrival in record.arrivals], leads, marker=".", linewidth=0.7)
    axes.axhline(0.0, linestyle="--", linewidth=0.7)
    axes.set(title="lead over playback when a chunk comes", xlabel="s since the request", ylabel="s")
