"""A check, what it is given, what it finds, and the run's settings. Imports nothing heavy.

A check is a function of a `CheckContext` and `Findings`. It passes when every bounded figure is within its bound; an
error that it raises fails it, and `NotRunError` says that something it needs is not there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field
from enum import Enum
from html import escape
from pathlib import Path
from typing import Any, TypeVar

from cosydit.stack.checkpoint.checkpoints import CheckpointLayout
from servicekit.files import write_text
from servicekit.gpu_host import CPU
from servicekit.logs import PlainError

T = TypeVar("T")
TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "Please call me back this evening, if you can.",
    "It rained all night, and the river rose by morning.",
    "A small boat crossed the bay before the storm.",
)
"""Sentences that any English voice can say."""
VOICE = "default"
CERTIFICATE_FILE, PAGE_FILE = "certificate.json", "certificate.html"
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #1f2328 }
table { border-collapse: collapse; width: 100% } td, th { border-bottom: 1px solid #d0d7de; padding: .3rem .5rem;
text-align: left; vertical-align: top } pre { background: #f6f8fa; overflow: auto; padding: .6rem; font-size: 12px }
.outside, .fail { color: #cf222e; font-weight: 600 } .pass { color: #1a7f37 } audio { height: 2rem }
"""


class Result(str, Enum):
    """What became of a check."""

    PASS = "pass"
    FAIL = "fail"
    NOT_RUN = "not run"


class NotRunError(Exception):
    """Something that the check needs is not here; the message says what to install or to give."""


class CheckFailedError(PlainError):
    """What was found can't be said in figures; the message says what is wrong."""


@dataclass
class Findings:
    """What one check has found, and what became of it, as the certificate has it."""

    check: str
    """Path of the check."""
    result: Result = Result.PASS
    seconds: float = 0.0
    reason: str = ""
    """Reason why the check failed or was not run."""
    page: str = ""
    figures: list[dict[str, Any]] = field(default_factory=list)
    """Each with name, value, unit, bound (such as `at most 3`; empty if it has none) and is_within."""
    notes: list[str] = field(default_factory=list)
    audio: list[str] = field(default_factory=list)
    """Names of files below the certificate's folder."""
    log_tail: str = ""

    def tell(
        self, name: str, value: float, unit: str = "", least: float | None = None, most: float | None = None
    ) -> None:
        """Keep a figure; what is no number is beyond any bound."""
        ends = [f"{word} {bound:g}" for word, bound in (("at least", least), ("at most", most)) if bound is not None]
        bound = f"{least:g}" if least is not None and least == most else " and ".join(ends)
        is_within = (least is None or value >= least) and (most is None or value <= most)
        # JSON has no infinity and no NaN.
        number = float(value) if math.isfinite(value) else str(value)
        figure = {"name": name, "value": number, "unit": unit, "bound": bound, "is_within": bool(is_within)}
        self.figures.append(figure)

    def outside(self) -> list[str]:
        """Return the figures beyond their bounds."""
        return [described(figure) for figure in self.figures if not figure["is_within"]]

    def describe(self) -> str:
        """Return one line for a person."""
        told = self.reason or ", ".join([*map(described, self.figures), *self.notes][:3])
        return f"{self.result.value:8} {self.check:30} {self.seconds:6.1f} s  {told.partition(chr(10))[0]}"


def described(figure: dict[str, Any]) -> str:
    """Return a figure for a person."""
    bound = f" ({figure['bound']})" if figure["bound"] else ""
    return f"{figure['name']} {float(figure['value']):.4g} {figure['unit']}".rstrip() + bound


@dataclass(frozen=True)
class Check:
    """One thing that is looked at."""

    path: str
    """AREA/NAME, unique; the name may have parts between slashes."""
    run: Callable[[Any, Findings], None]
    """Function of a `CheckContext` and the `Findings` to write into."""
    page: str
    """File below docs/ that says what to do about a failure."""

    @property
    def group(self) -> str:
        """Name of the checks that use the same opened parts, in a process of their own."""
        return self.path.rpartition("/")[0]


@dataclass(frozen=True)
class Plan:
    """What is certified and how; plain values, as it crosses to the processes that run the checks."""

    checkpoint_dir: Path
    out_dir: Path
    work_dir: Path
    device: str
    """Device for token2wav and our own LLM engine: cpu or cuda."""
    load_s: float = 300.0
    load_streams: int = 4
    is_audible: bool = True
    """Whether the weights were trained; random ones speak noise, of which little can be judged."""
    settings: dict[str, str] = field(default_factory=dict)
    """Settings of token2wav's model repository, by name."""

    @property
    def is_gpu(self) -> bool:
        """Tell whether a GPU is certified."""
        return self.device != CPU


class CheckContext:
    """The plan, and what was opened for the checks of one group; a context manager that closes it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.checkpoint = CheckpointLayout.under(plan.checkpoint_dir)
        self.log_dir = plan.out_dir / "logs"
        """Where services that are started here log to."""
        self._opened = ExitStack()
        self._resources: dict[str, Any] = {}

    def __enter__(self) -> CheckContext:
        return self

    def __exit__(self, *details: object) -> None:
        self._resources.clear()
        self._opened.close()

    def shared(self, name: str, open_it: Callable[[], AbstractContextManager[T]]) -> T:
        """Return what was opened under a name; it stays open until the group ends.

        Raises:
            NotRunError: it was tried before and failed.
        """
        found = self._resources.get(name)
        if isinstance(found, NotRunError):
            raise found
        if found is None:
            self._resources[name] = NotRunError(f"{name} could not be started; see the check that failed")
            found = self._resources[name] = self._opened.enter_context(open_it())
        opened: T = found
        return opened


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
