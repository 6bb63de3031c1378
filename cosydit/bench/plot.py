"""Draws runs: how long the first audio took, when the chunks of each request came. Needs matplotlib."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cosydit.bench.types import BenchmarkError, RequestRecord
from servicekit.extras import install_command

_MAX_TIMELINES = 60
SIZE_INCHES = (11, 8)
_WHOLE = 100
_WEBP = {"quality": 60, "method": 6}
"""Settings for pictures that are kept in the repository: a quarter of a PNG's size."""


def draw_latencies(path: Path, title: str, records: Sequence[RequestRecord]) -> None:
    """Write a PNG: the cumulative share of the time to first audio, and every request's chunks in time.

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
    shares, timeline = figure.subplots(2, 1)
    times_ms = sorted(1000 * record.arrivals[0].at_s for record in good)
    shares.step(times_ms, [_WHOLE * (index + 1) / len(times_ms) for index in range(len(times_ms))], where="post")
    shares.set(title="time to first audio", xlabel="ms", ylabel="% of requests", ylim=(0, _WHOLE))
    shares.grid(True)
    for row, record in enumerate(good[:_MAX_TIMELINES]):
        timeline.hlines(row, 0, record.total_s, linewidth=0.5)
        timeline.plot([arrival.at_s for arrival in record.arrivals], [row] * len(record.arrivals), "|", markersize=6)
    timeline.set(title="arrival of each chunk", xlabel="s since the request", ylabel="request")
    save_figure(figure, path)


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
