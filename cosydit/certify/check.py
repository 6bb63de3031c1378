"""Defines a check, its findings, and the run's settings that it gets. Imports nothing heavy.
`all_checks` lists them in the order in which they run; an area whose module can't be imported is one check that fails.

A check is a function of a `CheckContext` and `Findings`. It passes when every bounded figure is within its bound; an
error that it raises fails it, and `NotRunError` says that something it needs is not there.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from servicekit.extras import missing_extra


class Result(str, Enum):
    """What became of a check."""

    PASS = "pass"
    FAIL = "fail"
    NOT_RUN = "not run"


class NotRunError(Exception):
    """Something that the check needs is not here; the message says what to install or to give."""


class CheckFailedError(Exception):
    """What was found can't be said in figures; the message says what is wrong."""


@dataclass(frozen=True)
class Figure:
    """One number that a check found."""

    name: str
    value: float
    unit: str = ""
    bound: str = ""
    """The figure's bound, such as `at most 3`; empty if it has none."""
    is_within: bool = True

    def describe(self) -> str:
        """Return the figure for a person."""
        unit = f" {self.unit}" if self.unit else ""
        bound = f" ({self.bound})" if self.bound else ""
        return f"{self.name} {self.value:.4g}{unit}{bound}"


@dataclass
class Findings:
    """What one check has found so far."""

    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    audio: list[str] = field(default_factory=list)
    """Names of files below the certificate's folder."""
    series: dict[str, list[float]] = field(default_factory=dict)
    """Samples behind the figures, for plots."""

    def tell(self, name: str, value: float, unit: str = "") -> None:
        """Keep a figure that has no bound."""
        self.figures.append(Figure(name, float(value), unit))

    def at_most(self, name: str, value: float, bound: float, unit: str = "") -> None:
        """Keep a figure that must not be higher."""
        self.figures.append(Figure(name, float(value), unit, f"at most {bound:g}", value <= bound))

    def at_least(self, name: str, value: float, bound: float, unit: str = "") -> None:
        """Keep a figure that must not be lower."""
        self.figures.append(Figure(name, float(value), unit, f"at least {bound:g}", value >= bound))

    def equals(self, name: str, value: float, expected: float, unit: str = "") -> None:
        """Keep a figure that must be this one."""
        self.figures.append(Figure(name, float(value), unit, f"{expected:g}", value == expected))

    def note(self, text: str) -> None:
        """Keep a sentence for the reader."""
        self.notes.append(text)

    @property
    def outside(self) -> list[Figure]:
        """Figures beyond their bounds; one that is no number is beyond any."""
        return [figure for figure in self.figures if figure.bound and not (figure.is_within and _is_number(figure))]


CheckFunction = Callable[[Any, Findings], None]
"""Function of a check: takes a `CheckContext` and the `Findings` to write into."""


@dataclass(frozen=True)
class Check:
    """One thing that is looked at."""

    area: str
    name: str
    """Name of the check, unique within the area; may have parts between slashes."""
    run: CheckFunction
    page: str
    """File below docs/, with an anchor, that says what to do about a failure."""
    timeout_s: float = 300.0
    shares: str = ""
    """Common name of checks that use the same opened parts; empty: all of the same area and folder share them."""

    fault: str = ""
    """Fault that the self-test plants while the check runs; empty for none."""

    @property
    def group(self) -> str:
        """What is opened for one check of a group stays open for the next."""
        return f"{self.shares or self.path.rpartition('/')[0]} {self.fault}".strip()

    @property
    def path(self) -> str:
        """AREA/NAME."""
        return f"{self.area}/{self.name}"

    def is_under(self, prefix: str) -> bool:
        """Tell whether `--only` with this value means it."""
        return self.path == prefix or self.path.startswith(prefix.rstrip("/") + "/")


@dataclass(frozen=True)
class Outcome:
    """The outcome of one check."""

    path: str
    result: Result
    seconds: float
    reason: str = ""
    """Reason why the check failed or was not run."""
    page: str = ""
    figures: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = ()
    audio: tuple[str, ...] = ()
    series: dict[str, list[float]] = field(default_factory=dict)
    log_tail: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as the certificate holds it."""
        figures = [
            {"name": each.name, "value": _json_number(each.value), "unit": each.unit, "bound": each.bound}
            | ({"is_within": each.is_within} if each.bound else {})
            for each in self.figures
        ]
        return {
            "check": self.path,
            "result": self.result.value,
            "seconds": round(self.seconds, 3),
            "reason": self.reason,
            "page": self.page,
            "figures": figures,
            "notes": list(self.notes),
            "audio": list(self.audio),
            "series": {name: [_json_number(value) for value in values] for name, values in self.series.items()},
            "log_tail": self.log_tail,
        }

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> Outcome:
        """Read what `to_json` wrote.

        Raises:
            ValueError, LookupError, TypeError: it is something else.
        """
        figures = tuple(
            Figure(each["name"], _number(each["value"]), each["unit"], each["bound"], each.get("is_within", True))
            for each in entry["figures"]
        )
        return cls(
            entry["check"],
            Result(entry["result"]),
            float(entry["seconds"]),
            entry["reason"],
            entry["page"],
            figures,
            tuple(entry["notes"]),
            tuple(entry["audio"]),
            {name: [_number(value) for value in values] for name, values in entry["series"].items()},
            entry["log_tail"],
        )


@dataclass(frozen=True)
class Plan:
    """What is certified and how; plain values, as it crosses to the process that runs the checks."""

    checkpoint_dir: Path
    out_dir: Path
    work_dir: Path
    device: str
    """Device for token2wav and our own LLM engine: cpu or cuda."""
    is_short: bool = False
    """Whether every check does as little as can still find a fault."""
    golden_dir: Path | None = None
    manifest: Path | None = None
    """File of sentences to listen to, in the form of Seed-TTS."""
    load_s: float = 300.0
    load_streams: int = 4
    is_audible: bool = True
    """Whether speech can be understood; False: the weights are random."""
    settings: dict[str, str] = field(default_factory=dict)
    """Settings of the model repository, as `cosydit serve --set` takes them."""

    @property
    def is_gpu(self) -> bool:
        """Whether token2wav runs on a GPU."""
        return self.device.startswith("cuda")


def _is_number(figure: Figure) -> bool:
    return not math.isnan(figure.value)


def _json_number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _number(value: float | str) -> float:
    return float(value)


AREAS: dict[str, Callable[[Any, Plan], list[Check]]] = {
    "host": lambda module, plan: module.checks(),
    "checkpoint": lambda module, plan: module.checks(),
    "llm": lambda module, plan: module.checks(plan.is_gpu),
    "token2wav": lambda module, plan: module.checks(),
    "end_to_end": lambda module, plan: module.checks(),
    "quality": lambda module, plan: module.checks(),
    "load": lambda module, plan: module.checks(),
}
"""Modules of this package, and the call that returns each one's checks."""
_PAGE = "troubleshooting.md"


def all_checks(plan: Plan, paths: Sequence[str] = ()) -> list[Check]:
    """Return the checks that a plan has; given paths, those of their areas alone, which spares loading the others."""
    wanted = {path.partition("/")[0].replace("-", "_") for path in paths} or set(AREAS)
    return [check for name, read in AREAS.items() if name in wanted for check in _checks_of(name, read, plan)]


def _checks_of(name: str, read: Callable[[Any, Plan], list[Check]], plan: Plan) -> Iterator[Check]:
    try:
        module = importlib.import_module(f"cosydit.certify.{name}")
    except Exception as error:  # a broken package raises whatever it likes
        yield Check(name.replace("_", "-"), "import", partial(_fail, error=error), _PAGE)
        return
    yield from read(module, plan)


def _fail(context: object, found: Findings, error: Exception) -> None:
    hint = missing_extra(error) if isinstance(error, ImportError) else None
    if hint is not None:
        raise NotRunError(hint)
    raise CheckFailedError(f"what these checks need can't be imported: {type(error).__name__}: {error}") from error
