"""The certificate as a page for people: results, figures, plots and audio. One file, beside its folder of audio."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cosydit.certify.certificate import Certificate
from cosydit.certify.check import Outcome, Result
from servicekit.files import write_text

PAGE_FILE = "certificate.html"
_COLOURS = {Result.PASS: "#1a7f37", Result.FAIL: "#cf222e", Result.NOT_RUN: "#6e7781"}
_WIDTH, _HEIGHT = 640, 120
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #1f2328 }
table { border-collapse: collapse; width: 100% } td, th { border-bottom: 1px solid #d0d7de; padding: .3rem .5rem;
text-align: left; vertical-align: top } h2 { margin-top: 2.5rem } pre { background: #f6f8fa; overflow: auto;
padding: .6rem; font-size: 12px } img { max-width: 100% } .outside { color: #cf222e; font-weight: 600 }
.badge { color: #fff; border-radius: .3rem; padding: 0 .5rem; white-space: nowrap } audio { height: 2rem }
"""


def write_page(certificate: Certificate, out_dir: Path) -> Path:
    """Write the page whole."""
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
    for outcome in certificate.outcomes.values():
        yield from _check(outcome)
    yield "</html>"


def _overview(outcomes: Sequence[Outcome]) -> Iterator[str]:
    yield "<table><tr><th>check<th>result<th>seconds<th></tr>"
    for outcome in outcomes:
        link = f"<a href='#{_anchor(outcome)}'>{_text(outcome.check)}</a>"
        yield f"<tr><td>{link}<td>{_badge(outcome.result)}<td>{outcome.seconds:.1f}<td>{_text(outcome.reason)}</tr>"
    yield "</table>"


def _check(outcome: Outcome) -> Iterator[str]:
    yield f"<h3 id='{_anchor(outcome)}'>{_text(outcome.check)} {_badge(outcome.result)}</h3>"
    if outcome.reason:
        yield f"<p>{_text(outcome.reason)}</p>"
    if outcome.result is Result.FAIL:
        yield f"<p>How to mend it: docs/{_text(outcome.page)}</p>"
    if outcome.figures:
        yield "<table>"
        for each in outcome.figures:
            style = "" if each.is_within else " class='outside'"
            value = f"{each.value:.4g} {each.unit}"
            yield f"<tr{style}><td>{_text(each.name)}<td>{_text(value)}<td>{_text(each.bound)}</tr>"
        yield "</table>"
    yield from (f"<p>{_text(name)}<br><audio controls src='{_text(name)}'></audio></p>" for name in outcome.audio)
    yield from (_plot(name, values) for name, values in outcome.series.items())
    yield from (f"<p>{_text(note)}</p>" for note in outcome.notes)
    if outcome.log_tail:
        yield f"<details><summary>log</summary><pre>{_text(outcome.log_tail)}</pre></details>"


def _plot(name: str, values: Sequence[float]) -> str:
    """Return a line through the values, from 0 to the largest one."""
    largest, step = max(values, default=0) or 1.0, _WIDTH / max(len(values) - 1, 1)
    heights = (_HEIGHT * (1 - value / largest) for value in values)
    points = " ".join(f"{number * step:.1f},{height:.1f}" for number, height in enumerate(heights))
    line = f"<polyline points='{points}' fill='none' stroke='#0969da'/>"
    svg = f"<svg viewBox='0 -2 {_WIDTH} {_HEIGHT + 4}' width='{_WIDTH}'>{line}</svg>"
    return f"<p>{_text(name)}, 0 to {largest:.4g}<br>{svg}</p>"


def _told(title: str, values: dict[str, Any]) -> Iterator[str]:
    yield f"<details><summary>{_text(title)}</summary><table>"
    yield from (f"<tr><td>{_text(name)}<td>{_text(str(value))}</tr>" for name, value in values.items())
    yield "</table></details>"


def _badge(result: Result) -> str:
    return f"<span class='badge' style='background:{_COLOURS[result]}'>{result.value}</span>"


def _anchor(outcome: Outcome) -> str:
    return outcome.check.replace("/", "-")


def _text(text: str) -> str:
    return html.escape(text)
