"""The table of all checks, in the order in which they run, and what runs them.

A check's function is `check_<name>` of a module of its area, imported when the check runs. A group of checks, which
share what they open, has a process of its own. A check that raises has failed; one whose process dies or hangs has
failed too, and the rest goes on in a new process. Linux ends the services of one that died.
"""

from __future__ import annotations

import faulthandler
import importlib
import itertools
import logging
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from cosydit.certify.check import Check, CheckContext, Findings, NotRunError, Plan, Result
from cosydit.stack.host_report import PROBES
from servicekit.extras import missing_extra

logger = logging.getLogger(__name__)

LOG_FILE = "certify.log"
TAIL_BYTES, TAIL_LINES = 3000, 20
STOP_TIMEOUT_S = 60.0
"""Seconds in which the process of the checks must stop its services."""
TIMEOUT_S = 3600.0
"""Seconds that a check may take."""
_SPEED, _PARTS = "performance.md", "checkpoints.md"
_TABLE: dict[str, dict[str, str]] = {
    "host": dict.fromkeys(PROBES, "troubleshooting.md"),
    "checkpoint": {"sums": _PARTS, "parts": _PARTS},
    "llm": dict.fromkeys(("start", "answers", "token-offset", "repetition", "seeds", "at-once"), "llm.md"),
    "token2wav": {
        "golden": "architecture.md",
        "reference": _SPEED,
        "speech-tokens": "voices.md",
    },
    "end-to-end": {
        "start": "troubleshooting.md",
        "openai": "api/openai.md",
        "grpc": "api/grpc.md",
        "triton": "api/triton.md",
        "words": _SPEED,
        "load": "operation.md",
    },
}
"""Area -> name -> page of the documentation that says how to repair what the check finds."""
_SHARED = {"host": "checkpoint.check_host", **dict.fromkeys(("openai", "grpc", "triton"), "end_to_end.check_door")}
"""Area or name -> function that makes more than one check: it gets the check's name."""
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
    chosen: list[Check] = []
    for prefix in only:
        meant = [check for check in checks if f"{check.path}/".startswith(prefix.rstrip("/") + "/")]
        if not meant:
            raise ValueError(f"got --only {prefix}, expected AREA or AREA/NAME with AREA one of {', '.join(_TABLE)}")
        chosen += meant
    return [check for check in checks if not only or check in chosen]


def _check(area: str, path: str, name: str, page: str, *arguments: str) -> Check:
    function = f"{area.replace('-', '_')}.check_{name.replace('-', '_')}"
    if shared := _SHARED.get(area) or _SHARED.get(name):
        function, arguments = shared, (name,)
    return Check(path, partial(_call, function, arguments), page)


def _call(function: str, arguments: Sequence[str], context: CheckContext, found: Findings) -> None:
    module, _, name = function.partition(".")
    getattr(importlib.import_module(f"cosydit.certify.{module}"), name)(context, found, *arguments)


def run_checks(plan: Plan, checks: Sequence[Check]) -> Iterator[Findings]:
    """Run checks of `all_checks(plan)` in their order; yields one outcome of each, whatever happens to its process."""
    plan.out_dir.mkdir(parents=True, exist_ok=True)
    (plan.out_dir / LOG_FILE).touch()
    left = list(checks)
    while left:
        group = list(itertools.takewhile(lambda check: check.group == left[0].group, left))
        for outcome in _outcomes(plan, group):
            del left[0]
            yield outcome


def run_here(context: CheckContext, check: Check) -> Findings:
    """Run one check in this process; an error of it is its outcome."""
    found, began_s = Findings(check.path, page=check.page), time.perf_counter()
    try:
        check.run(context, found)
        if outside := found.outside():
            found.result, found.reason = Result.FAIL, "; ".join(outside)
    except NotRunError as error:
        found.result, found.reason = Result.NOT_RUN, str(error)
    except Exception as error:  # a package that is broken raises whatever it likes, when it is imported too
        logger.exception("%s", check.path)
        hint = missing_extra(error) if isinstance(error, ImportError) else None
        found.result, found.reason = Result.FAIL, f"{type(error).__name__}: {error}"
        if hint is not None:
            found.result, found.reason = Result.NOT_RUN, hint
    found.seconds = round(time.perf_counter() - began_s, 3)
    return found


def _outcomes(plan: Plan, group: Sequence[Check]) -> Iterator[Findings]:
    """Yield the outcomes of a group's checks, which another process runs; if that dies, only those up to its end."""
    log, spawn = plan.out_dir / LOG_FILE, multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_work, args=(plan, [check.path for check in group], theirs))
    process.start()
    theirs.close()
    try:
        for check in group:
            began_s, start = time.perf_counter(), log.stat().st_size
            reason = f"took longer than {TIMEOUT_S:.0f} s, and was ended"
            try:
                outcome = ours.recv() if ours.poll(TIMEOUT_S) else None
            except (EOFError, OSError):
                process.join(STOP_TIMEOUT_S)
                outcome, reason = None, f"its process ended with status {process.exitcode}"
            if outcome is None:
                seconds, tail = time.perf_counter() - began_s, _tail(log, start)
                process.terminate()
                yield Findings(check.path, Result.FAIL, seconds, reason, check.page, log_tail=tail)
                return
            yield outcome
    finally:
        if sys.exc_info()[0] is not None:
            process.terminate()
        process.join(STOP_TIMEOUT_S)
        process.kill()
        process.join()


def _work(plan: Plan, paths: Sequence[str], connection: Connection[Any, Any]) -> None:
    """Run the checks of one group and send what becomes of them; the whole of the other process."""
    log = plan.out_dir / LOG_FILE
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.INFO, format=form, stream=sys.stderr, force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if not plan.is_gpu:
        # Half of the cores, as a service has: with all of them its threads would wait for each other.
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // 2)))
    faulthandler.enable()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    known = {check.path: check for check in all_checks(plan)}
    with CheckContext(plan) as context:
        for path in paths:
            start = log.stat().st_size
            logger.info("%s", path)
            found = run_here(context, known[path])
            sys.stderr.flush()
            found.reason, found.notes = _redacted(found.reason), list(map(_redacted, found.notes))
            found.log_tail = _tail(log, start)
            connection.send(found)


def _tail(path: Path, start: int) -> str:
    """Return the last lines that were written to a log since it had so many bytes."""
    with path.open("rb") as file:
        file.seek(max(start, path.stat().st_size - TAIL_BYTES))
        return _redacted("\n".join(file.read().decode("utf-8", "replace").splitlines()[-TAIL_LINES:]))


def _redacted(text: str) -> str:
    """Leave the user's folder out of what may be published."""
    home = str(Path.home())
    return text.replace(home, "~") if home not in ("", "/") else text
