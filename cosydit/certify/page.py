"""The certificate as a page for people: results, figures and audio. One file, beside its folder of audio."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

from cosydit.certify.check import Certificate, Outcome, Result
from servicekit.files import write_text

PAGE_FILE = "certificate.html"
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #1f2328 }
table { border-collapse: collapse; width: 100% } td, th { border-bottom: 1px solid #d0d7de; padding: .3rem .5rem;
text-align: left; vertical-align: top } pre { background: #f6f8fa; overflow: auto; padding: .6rem; font-size: 12px }
.outside, .fail { color: #cf222e; font-weight: 600 } .pass { color: #1a7f37 } audio { height: 2rem }
"""


def write_page(certificate: Certificate, out_dir: Path) -> Path:
    """Write the page whole."""
    path = out_dir / PAGE_FILE
    write_text(path, "\n".join(_page(certificate)))
    return path


def _page(certificate: Certificate) -> Iterator[str]:
    title = escape(f"cosydit on {certificate.gpu}, {certificate.weights}: {certificate.result.value}")
    yield f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{title}</title><style>{_STYLE}</style>"
    yield f"<h1>{title}</h1><p>{certificate.counts()}. Commit {escape(str(certificate.commit))}.</p>"
    for name, values in (("Settings", certificate.settings), ("Environment", certificate.environment)):
        rows = "".join(f"<tr><td>{escape(key)}<td>{escape(str(value))}</tr>" for key, value in values.items())
        yield f"<details><summary>{name}</summary><table>{rows}</table></details>"
    for outcome in certificate.outcomes.values():
        yield from _check(outcome)
    yield "</html>"


def _check(outcome: Outcome) -> Iterator[str]:
    verdict = f"<span class='{outcome.result.value}'>{outcome.result.value}</span>"
    yield f"<h3>{escape(outcome.check)}: {verdict}, {outcome.seconds:.1f} s</h3><p>{escape(outcome.reason)}</p>"
    if outcome.result is Result.FAIL:
        yield f"<p>How to repair it: docs/{escape(outcome.page)}</p>"
    yield "<table>"
    for each in outcome.figures:
        style = "" if each["is_within"] else " class='outside'"
        cells = (each["name"], f"{float(each['value']):.4g} {each['unit']}", each["bound"])
        yield f"<tr{style}>{''.join(f'<td>{escape(cell)}' for cell in cells)}</tr>"
    yield "</table>"
    yield from (f"<p>{escape(name)}<br><audio controls src='{escape(name)}'></audio></p>" for name in outcome.audio)
    yield from (f"<p>{escape(note)}</p>" for note in outcome.notes)
    if outcome.log_tail:
        yield f"<details><summary>log</summary><pre>{escape(outcome.log_tail)}</pre></details>"
