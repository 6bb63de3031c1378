"""Defines a check, its findings and its outcome, and the run's settings that it gets. Imports nothing heavy.

A check is a function of a `CheckContext` and `Findings`. It passes when every bounded figure is within its bound; an
error that it raises fails it, and `NotRunError` says that something it needs is not there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from servicekit.gpu_host import CPU


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
        """Keep a figure that must not be higher; what is no number is beyond any bound."""
        self.figures.append(Figure(name, float(value), unit, f"at most {bound:g}", bool(value <= bound)))

    def at_least(self, name: str, value: float, bound: float, unit: str = "") -> None:
        """Keep a figure that must not be lower."""
        self.figures.append(Figure(name, float(value), unit, f"at least {bound:g}", bool(value >= bound)))

    def equals(self, name: str, value: float, expected: float, unit: str = "") -> None:
        """Keep a figure that must be this one."""
        self.figures.append(Figure(name, float(value), unit, f"{expected:g}", bool(value == expected)))

    def note(self, text: str) -> None:
        """Keep a sentence for the reader."""
        self.notes.append(text)

    @property
    def outside(self) -> list[Figure]:
        """Figures beyond their bounds."""
        return [figure for figure in self.figures if not figure.is_within]


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
    """File below docs/ that says what to do about a failure."""
    timeout_s: float = 300.0
    shares: str = ""
    """Name of the group of checks that use the same opened parts; empty: those of the same area and folder."""

    @property
    def group(self) -> str:
        """Name of the group; a group has a process of its own."""
        return self.shares or self.path.rpartition("/")[0]

    @property
    def path(self) -> str:
        """AREA/NAME."""
        return f"{self.area}/{self.name}"

    def is_under(self, prefix: str) -> bool:
        """Tell whether `--only` with this value means it."""
        return f"{self.path}/".startswith(prefix.rstrip("/") + "/")


@dataclass(frozen=True)
class Outcome:
    """The outcome of one check."""

    check: str
    """Path of the check."""
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
        figures = [{**asdict(each), "value": _json_number(each.value)} for each in self.figures]
        series = {name: [_json_number(value) for value in values] for name, values in self.series.items()}
        return {**asdict(self), "result": self.result.value, "figures": figures, "series": series}

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> Outcome:
        """Read what `to_json` wrote.

        Raises:
            ValueError, LookupError, TypeError: it is something else.
        """
        figures = tuple(Figure(**{**each, "value": float(each["value"])}) for each in entry["figures"])
        series = {name: [float(value) for value in values] for name, values in entry["series"].items()}
        told = {"result": Result(entry["result"]), "figures": figures, "series": series}
        return cls(**{**entry, **told, "notes": tuple(entry["notes"]), "audio": tuple(entry["audio"])})

    def describe(self) -> str:
        """Return one line for a person."""
        told = self.reason or ", ".join(figure.describe() for figure in self.figures[:3])
        return f"{self.result.value:8} {self.check:30} {self.seconds:6.1f} s  {told.partition(chr(10))[0]}"


def _json_number(value: float) -> float | str:
    """Return a number that JSON can hold: infinity and NaN as text."""
    return value if math.isfinite(value) else str(value)


@dataclass(frozen=True)
class Plan:
    """What is certified and how; plain values, as it crosses to the processes that run the checks."""

    checkpoint_dir: Path
    out_dir: Path
    work_dir: Path
    device: str
    """Device for token2wav and our own LLM engine: cpu or cuda."""
    golden_dir: Path | None = None
    """Folder of golden vectors; None: the repository's."""
    manifest: Path | None = None
    """Sentences to listen to; None: those kept from the demo voice's training."""
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
