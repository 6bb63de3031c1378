"""All checks, in the order in which they run. An area whose module can't be imported is one check that fails."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from cosydit.certify.check import Check, CheckFailedError, Findings, NotRunError, Plan
from servicekit.extras import missing_extra

AREAS: dict[str, Callable[[Any, Plan], list[Check]]] = {
    "host": lambda module, plan: module.checks(),
    "checkpoint": lambda module, plan: module.checks(),
    "llm": lambda module, plan: module.checks(plan.is_gpu),
    "token2wav": lambda module, plan: module.checks(),
    "end_to_end": lambda module, plan: module.checks(),
    "quality": lambda module, plan: module.checks(),
    "load": lambda module, plan: module.checks(),
}
"""Modules of this package, and how each is asked for its checks."""
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
