"""The certificate as a page for people: results, figures, plots and audio. One file, beside its folder of audio."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cosydit.bench.plot import figure_class
from cosydit.bench.types import BenchmarkError
from cosydit.certify.certificate import Certificate
from cosydit.certify.check import Outcome, Result
from servicekit.files import write_text

PAGE_FILE = "certificate.html"
DOCUMENTATION = "docs/"
_COLOURS = {Result.PASS: "#1a7f37", Result.FAIL: "#cf222e", Result.NOT_RUN: "#6e7781"}
_PLOT_INCHES = (7, 2.6)
_MANY_BARS = 4
"""Number of figures of one unit from which they are drawn as bars."""
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #1f2328 }
table { border-collapse: collapse; width: 100% } td, th { border-bottom: 1px solid #d0d7de; padding: .3rem .5rem;
text-align: left; vertical-align: top } h2 { margin-top: 2.5rem } pre { background: #f6f8fa; overflow: auto;
padding: .6rem; font-size: 12px } img { max-width: 100% } .outside { color: #cf222e; font-weight: 600 }
.badge { color: #fff; border-radius: .3rem; padding: 0 .5rem; white-space: nowrap } audio { height: 2rem }
"""


def write_page(certificate: Certificate, out_dir: Path) -> Path:
    """Write the page whole; plots are left out where matplotlib is not installed."""
    path = out_dir / PAGE_FILE
    write_text(path, "\n".join(_page(certificate)))
    return path


def _page(certificate: Certificate) -> Iterator[str]:
    title = f"cosydit on {certificate.gpu}, {certificate.weights}"
    yield f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{_text(title)}</title><style>{_STYLE}</style>"
    yield f"<h1>{_text(title)} {_badge(certificate.result)}</h1>"
    yield f"<p>{_text(certificate.counts())}. Commit {_text(str(certificate.commit))}.</p>"
    yield from _told("Settings", certificate.settings)
    yield from _told("Environment", certificate.environment)
    yield from _overview(list(certificate.outcomes.values()))
    area = ""
    for outcome in certificate.outcomes.values():
        if outcome.path.partition("/")[0] != area:
            area = outcome.path.partition("/")[0]
            yield f"<h2>{_text(area)}</h2>"
        yield from _check(outcome)
    yield "</html>"


def _overview(outcomes: Sequence[Outcome]) -> Iterator[str]:
    yield "<table><tr><th>check<th>result<th>seconds<th></tr>"
    for outcome in outcomes:
        link = f"<a href='#{_anchor(outcome)}'>{_text(outcome.path)}</a>"
        yield f"<tr><td>{link}<td>{_badge(outcome.result)}<td>{outcome.seconds:.1f}<td>{_text(outcome.reason)}</tr>"
    yield "</table>"


def _check(outcome: Outcome) -> Iterator[str]:
    yield f"<h3 id='{_anchor(outcome)}'>{_text(outcome.path)} {_badge(outcome.result)}</h3>"
    if outcome.reason:
        yield f"<p>{_text(outcome.reason)}</p>"
    if outcome.result is Result.FAIL:
        yield f"<p>How to mend it: {_text(DOCUMENTATION + outcome.page)}</p>"
    if outcome.figures:
        yield "<table>"
        for each in outcome.figures:
            style = "" if each.is_within else " class='outside'"
            value = f"{each.value:.4g} {each.unit}"
            yield f"<tr{style}><td>{_text(each.name)}<td>{_text(value)}<td>{_text(each.bound)}</tr>"
        yield "</table>"
    yield from (f"<p>{_text(name)}<br><audio controls src='{_text(name)}'></audio></p>" for name in outcome.audio)
    yield from _plots(outcome)
    yield from (f"<p>{_text(note)}</p>" for note in outcome.notes)
    if outcome.log_tail:
        yield f"<details><summary>log</summary><pre>{_text(outcome.log_tail)}</pre></details>"


def _plots(outcome: Outcome) -> Iterator[str]:
    try:
        make = figure_class()
    except BenchmarkError:
        return
    for name, values in outcome.series.items():
        yield _drawn(make, name, lambda axes, values=values: axes.plot(values, marker=".", linewidth=1))
    by_unit: dict[str, list[tuple[str, float]]] = {}
    for figure in outcome.figures:
        by_unit.setdefault(figure.unit, []).append((figure.name, figure.value))
    for unit, bars in by_unit.items():
        if unit and len(bars) >= _MANY_BARS:
            yield _drawn(make, unit, lambda axes, bars=bars: axes.barh(*zip(*bars[::-1], strict=True)), len(bars))


def _drawn(make: Any, title: str, draw: Any, rows: int = 0) -> str:
    width, height = _PLOT_INCHES
    figure = make(figsize=(width, max(height, 0.2 * rows)), layout="constrained")
    axes = figure.subplots()
    draw(axes)
    axes.set(title=title)
    axes.grid(True, alpha=0.3)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=100)
    return (
        f"<p><img alt='{_text(title)}' src='data:image/png;base64,{base64.b64encode(image.getvalue()).decode()}'></p>"
    )


def _told(title: str, values: dict[str, Any]) -> Iterator[str]:
    yield f"<details><summary>{_text(title)}</summary><table>"
    yield from (f"<tr><td>{_text(name)}<td>{_text(str(value))}</tr>" for name, value in values.items())
    yield "</table></details>"


def _badge(result: Result) -> str:
    return f"<span class='badge' style='background:{_COLOURS[result]}'>{result.value}</span>"


def _anchor(outcome: Outcome) -> str:
    return outcome.path.replace("/", "-")


def _text(text: str) -> str:
    return html.escape(text)
