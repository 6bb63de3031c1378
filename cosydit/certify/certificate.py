"""The certificate: a file for programs and a page with audio for people."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from cosydit.certify.check import Findings, Result
from servicekit.files import write_text

CERTIFICATE_FILE, PAGE_FILE = "certificate.json", "certificate.html"
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #1f2328 }
table { border-collapse: collapse; width: 100% } td, th { border-bottom: 1px solid #d0d7de; padding: .3rem .5rem;
text-align: left; vertical-align: top } pre { background: #f6f8fa; overflow: auto; padding: .6rem; font-size: 12px }
.outside, .fail { color: #cf222e; font-weight: 600 } .pass { color: #1a7f37 } audio { height: 2rem }
"""


@dataclass
class CheckpointCertificate:
    """One run and its outcomes, in the order of the checks."""

    gpu: str
    commit: str | None
    weights: str
    settings: dict[str, Any]
    environment: dict[str, Any]
    checks: list[Findings] = field(default_factory=list)

    @property
    def result(self) -> Result:
        """Fail if any check failed, pass if any passed, else not run."""
        results = {outcome.result for outcome in self.checks}
        return next((each for each in (Result.FAIL, Result.PASS) if each in results), Result.NOT_RUN)

    def counts(self) -> str:
        """Return how many checks passed, failed and were not run."""
        results = [outcome.result for outcome in self.checks]
        return ", ".join(f"{results.count(each)} {each.value}" for each in Result)

    def add(self, outcome: Findings, out_dir: Path) -> None:
        """Keep an outcome, and write both files, each whole or not at all."""
        self.checks.append(outcome)
        fields = {"schema": 1, **asdict(self), "result": self.result}
        write_text(out_dir / CERTIFICATE_FILE, json.dumps(fields, indent=1, ensure_ascii=False) + "\n")
        write_text(out_dir / PAGE_FILE, "\n".join(_page(self)))


def _page(certificate: CheckpointCertificate) -> Iterator[str]:
    title = escape(f"cosydit on {certificate.gpu}, {certificate.weights}: {certificate.result.value}")
    yield f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{title}</title><style>{_STYLE}</style>"
    yield f"<h1>{title}</h1><p>{certificate.counts()}. Commit {escape(str(certificate.commit))}.</p>"
    for name, values in (("Settings", certificate.settings), ("Environment", certificate.environment)):
        rows = "".join(f"<tr><td>{escape(key)}<td>{escape(str(value))}</tr>" for key, value in values.items())
        yield f"<details><summary>{name}</summary><table>{rows}</table></details>"
    for outcome in certificate.checks:
        yield from _check(outcome)
    yield "</html>"


def _check(outcome: Findings) -> Iterator[str]:
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
