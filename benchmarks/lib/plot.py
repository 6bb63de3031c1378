"""Draws runs: how long the first audio took, when the chunks of each request came, a sweep. Needs matplotlib."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.lib.sweep import FinishedRun
from benchmarks.lib.types import BenchmarkError, RequestRecord

_MS = 1000
_MAX_BINS = 30
_MAX_TIMELINES = 60
_SIZE_INCHES = (11, 8)
_FLEET_INCHES = (16, 7)
_WHOLE = 100


def draw_latencies(path: Path, title: str, records: Sequence[RequestRecord]) -> None:
    """Write a PNG: histogram and cumulative share of the time to first audio, and every request's chunks in time.

    Args:
        path: where to write; replaced whole.
        title: one line.
        records: failed ones are left out.

    Raises:
        BenchmarkError: matplotlib is not installed.
    """
    figure_class = _figure_class()
    good = [record for record in records if record.is_ok]
    figure = figure_class(figsize=_SIZE_INCHES, layout="constrained")
    figure.suptitle(f"{title} ({len(good)} requests)")
    axes = figure.subplots(2, 2)
    times_ms = sorted(record.arrivals[0].at_s * _MS for record in good)
    _draw_histogram(axes[0][0], times_ms)
    _draw_cumulative(axes[0][1], times_ms)
    _draw_timeline(axes[1][0], good[:_MAX_TIMELINES])
    _draw_lead(axes[1][1], good[:_MAX_TIMELINES])
    _save(figure, path)


def draw_sweep(path: Path, runs: Sequence[FinishedRun]) -> None:
    """Write a PNG: time to first audio against callers and against the request rate, with the throughput.

    Raises:
        BenchmarkError: matplotlib is not installed.
    """
    figure = _figure_class()(figsize=_SIZE_INCHES, layout="constrained")
    axes = figure.subplots(2, 2)
    closed = [run for run in runs if run.load["requests_per_s"] is None and not run.is_unseen]
    opened = [run for run in runs if run.load["requests_per_s"] is not None]
    _draw_sweep_row(axes[0], closed, "num_tasks", "callers at once")
    _draw_sweep_row(axes[1], opened, "requests_per_s", "requests a second (Poisson)")
    _save(figure, path)


def draw_fleets(path: Path, timelines: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write a PNG of simulated fleets: a column each with the time to first audio and the load, second by second.

    Args:
        path: where to write; replaced whole.
        timelines: by scenario, what `benchmarks.lib.simulate.scenarios.fleet_timeline` returns.

    Raises:
        BenchmarkError: matplotlib is not installed.
    """
    figure = _figure_class()(figsize=_FLEET_INCHES, layout="constrained")
    axes = figure.subplots(2, len(timelines), squeeze=False)
    for column, (name, timeline) in enumerate(timelines.items()):
        moments = [moment["at_s"] for moment in timeline]
        for point in ("p50", "p95", "p99"):
            axes[0][column].plot(moments, [(each["ttfa_ms"] or {}).get(point) for each in timeline], label=point)
        axes[0][column].set(title=name, xlabel="s", ylabel="time to first audio, ms", ylim=(0, None))
        axes[0][column].legend()
        for point in ("min", "mean", "max"):
            axes[1][column].plot(moments, [moment["streams"][point] for moment in timeline], label=point)
        axes[1][column].set(xlabel="s", ylabel="open streams a token2wav replica", ylim=(0, None))
        axes[1][column].legend()
    _save(figure, path)


def require_matplotlib() -> None:
    """Fail before a long run, not after it.

    Raises:
        BenchmarkError: matplotlib is not installed.
    """
    _figure_class()


def _figure_class() -> Any:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise BenchmarkError(f"the plot needs `pip install 'cosydit[bench]'` ({error}); or give --no-plot") from error

    def make(**options: Any) -> Any:
        figure = Figure(**options)
        FigureCanvasAgg(figure)
        return figure

    return make


def _save(figure: Any, path: Path) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    figure.savefig(partial, format="png")
    os.replace(partial, path)


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
