"""The table of all checks, in the order in which they run.

A check's function is `check_<name>` of a module of its area, imported when the check runs: a package that can't be
imported fails the checks that need it, and no other.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Sequence
from functools import partial

from cosydit.certify.check import Check, CheckFailedError, Findings, NotRunError, Plan
from cosydit.certify.context import CheckContext
from servicekit.extras import missing_extra

LONG_S, LONGEST_S = 900.0, 3600.0
"""Seconds that a check may take, and one that speaks much."""
_GPU, _SPEED, _PARTS, _API = "quick-start-gpu.md", "performance.md", "checkpoints.md", "api/openai.md"
_TABLE: dict[str, dict[str, str]] = {
    "host": {
        "driver": _GPU,
        "gpu": _GPU,
        "compiler": _GPU,
        "imports": "quick-start-cpu.md",
        "memory": _GPU,
        "mps": _SPEED,
        "shared-memory": "docker.md",
        "tritonserver": "troubleshooting.md",
        "docker": "docker.md",
        "hubs": _PARTS,
    },
    "checkpoint": {"sums": _PARTS, "parts": _PARTS, "ids": _PARTS, "head-bias": "llm.md", "forms": "llm.md"},
    "llm": dict.fromkeys(("start", "answers", "token-offset", "penalty", "repetition", "seeds", "at-once"), "llm.md"),
    "token2wav": {
        "golden": "architecture.md",
        "reference": _SPEED,
        "speech-tokens": "voices.md",
        "prompts": "voices.md",
        "two-voices": _SPEED,
        "chunked": _SPEED,
    },
    "end-to-end": {"start": "troubleshooting.md", "openai": _API, "grpc": "api/grpc.md", "triton": "api/triton.md"},
    "quality": {"words": _SPEED, "speaker": "voices.md"},
    "load": {"steady": "operation.md"},
}
"""Area -> name -> page of the documentation that says how to repair what the check finds."""
_FUNCTIONS = {"host": "checkpoint.check_host", "end-to-end": "end_to_end.check_door"}
"""Areas of which one function makes all checks, but for `start`: it gets the check's name."""
SERVICES = ("end-to-end", "quality", "load")
"""Areas whose checks share the whole system."""
LLM_PROGRAMS = {"embedded": None, "vllm": "vllm", "trtllm": "trtllm-serve"}
"""Backends, and the program that each needs on PATH."""


def all_checks(plan: Plan) -> list[Check]:
    """Return the checks of a plan: those of the LLM once for each backend, or only its start if it is not here."""
    checks = []
    for area, rows in _TABLE.items():
        if area != "llm":
            checks += [_check(area, f"{area}/{name}", name, page) for name, page in rows.items()]
            continue
        for backend, program in LLM_PROGRAMS.items():
            known = list(rows)[: None if program is None or shutil.which(program) else 1]
            if program is None or plan.is_gpu:
                checks += [_check(area, f"llm/{backend}/{name}", name, rows[name], backend) for name in known]
    return checks


def selected(checks: Sequence[Check], only: Sequence[str]) -> list[Check]:
    """Return the checks that `--only` means; all of them without it.

    Raises:
        ValueError: a value that means none.
    """
    for prefix in only:
        if not any(check.is_under(prefix) for check in checks):
            raise ValueError(f"got --only {prefix}, expected AREA or AREA/NAME with AREA one of {', '.join(_TABLE)}")
    return [check for check in checks if not only or any(check.is_under(prefix) for prefix in only)]


def _check(area: str, path: str, name: str, page: str, *arguments: str) -> Check:
    module = "end_to_end" if area == "load" else area.replace("-", "_")
    function = f"{module}.check_{name.replace('-', '_')}"
    if area in _FUNCTIONS and name != "start":
        function, arguments = _FUNCTIONS[area], (name,)
    group = "services" if area in SERVICES else path.rpartition("/")[0]
    timeout_s = LONGEST_S if area in ("quality", "load") else LONG_S
    return Check(path, partial(_run, function, arguments), page, timeout_s, group)


def _run(function: str, arguments: Sequence[str], context: CheckContext, found: Findings) -> None:
    module, _, name = function.partition(".")
    try:
        imported = importlib.import_module(f"cosydit.certify.{module}")
    except Exception as error:  # a broken package raises whatever it likes
        hint = missing_extra(error) if isinstance(error, ImportError) else None
        if hint is not None:
            raise NotRunError(hint) from error
        told = f"what this check needs can't be imported: {type(error).__name__}: {error}"
        raise CheckFailedError(told) from error
    getattr(imported, name)(context, found, *arguments)
