"""Draws simulated fleets. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.lib.plot import figure_class, save_figure

_FLEET_INCHES = (11, 5)


def draw_fleets(path: Path, timelines: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write a PNG of simulated fleets: a column each with the time to first audio and the load, second by second.

    Args:
        path: where to write; replaced whole.
        timelines: by scenario, what `lab.simulate.scenarios.fleet_timeline` returns.

    Raises:
        BenchmarkError: matplotlib is not installed.
    """
    figure = figure_class()(figsize=_FLEET_INCHES, layout="constrained")
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
    save_figure(figure, path)
