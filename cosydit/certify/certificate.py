"""The certificate: what ran where, and what every check found, as JSON that grows with the run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cosydit.bench.report import describe_environment
from cosydit.certify.check import Outcome, Plan, Result
from servicekit.checkpoint_file import CheckpointFileError, find_declaration
from servicekit.files import write_text

CERTIFICATE_FILE = "certificate.json"
SCHEMA = 1
NO_GPU = "cpu"


@dataclass
class Certificate:
    """One run and its outcomes, by the checks' paths."""

    gpu: str
    commit: str | None
    weights: str
    settings: dict[str, Any]
    environment: dict[str, Any]
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    @property
    def result(self) -> Result:
        """Fail if any check failed, pass if any passed, else not run."""
        results = {outcome.result for outcome in self.outcomes.values()}
        return next((each for each in (Result.FAIL, Result.PASS) if each in results), Result.NOT_RUN)

    def add(self, outcome: Outcome, paths: Sequence[str]) -> None:
        """Keep an outcome; all of them stay in the order of the checks' paths."""
        told = {**self.outcomes, outcome.check: outcome}
        self.outcomes = {path: told[path] for path in paths if path in told}

    def counts(self) -> str:
        """Return how many checks passed, failed and were not run."""
        results = [outcome.result for outcome in self.outcomes.values()]
        return ", ".join(f"{results.count(each)} {each.value}" for each in Result)

    def to_json(self) -> dict[str, Any]:
        """Return the file's content."""
        return {
            "schema": SCHEMA,
            "gpu": self.gpu,
            "commit": self.commit,
            "weights": self.weights,
            "result": self.result.value,
            "settings": self.settings,
            "environment": self.environment,
            "checks": [outcome.to_json() for outcome in self.outcomes.values()],
        }

    def write(self, out_dir: Path) -> None:
        """Write the file, whole or not at all."""
        out_dir.mkdir(parents=True, exist_ok=True)
        write_text(out_dir / CERTIFICATE_FILE, json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n")


def begin(plan: Plan, commit: str | None, arguments: Mapping[str, object]) -> Certificate:
    """Describe the machine and the plan."""
    environment = describe_environment({})
    del environment["arguments"]
    names = [line.partition(",")[0] for line in environment["gpus"]]
    gpu = ", ".join(dict.fromkeys(names)) if names and plan.is_gpu else NO_GPU
    settings = {
        name: value if isinstance(value, (int, float, bool)) else str(value) for name, value in arguments.items()
    }
    return Certificate(
        gpu, commit or environment["git_commit"], _weights(plan), settings | {"device": plan.device}, environment
    )


def resume(certificate: Certificate, out_dir: Path) -> list[str]:
    """Take over an earlier run of the same commit, weights and settings; returns the paths of what passed in it.

    Raises:
        ValueError: the file there is of another run, or can't be read.
    """
    path = out_dir / CERTIFICATE_FILE
    if not path.is_file():
        return []
    try:
        earlier = json.loads(path.read_text("utf-8"))
        same = ("gpu", "commit", "weights", "settings")
        outcomes = [Outcome.from_json(entry) for entry in earlier["checks"]]
        differing = [name for name in same if earlier[name] != getattr(certificate, name)]
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{path} can't be read ({error!r}); leave --resume out, or give another --out") from error
    if differing:
        raise ValueError(f"{path} is of another {' and '.join(differing)}; leave --resume out, or give another --out")
    certificate.outcomes |= {outcome.check: outcome for outcome in outcomes}
    return [outcome.check for outcome in outcomes if outcome.result is Result.PASS]


def _weights(plan: Plan) -> str:
    """Return the checkpoint's own name, or its folder's."""
    try:
        name = find_declaration(plan.checkpoint_dir).name
    except CheckpointFileError:
        name = None
    return name or plan.checkpoint_dir.name
