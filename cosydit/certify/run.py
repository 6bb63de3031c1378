"""Runs checks and tells what became of each. A group of checks, which share what they open, has a process of its own.

A check that raises has failed; one whose process dies or hangs has failed too, and the rest goes on in a new process.
Linux ends the services of a process that died.
"""

from __future__ import annotations

import faulthandler
import itertools
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from cosydit.certify.check import Check, CheckOutcome, Findings, NotRunError, Plan, Result
from cosydit.certify.context import CheckContext
from cosydit.certify.table import all_checks
from servicekit.extras import missing_extra

logger = logging.getLogger(__name__)

LOG_FILE = "certify.log"
TAIL_BYTES, TAIL_LINES = 3000, 20
STOP_TIMEOUT_S = 60.0
"""Seconds in which the process of the checks must stop its services."""


def run_checks(plan: Plan, checks: Sequence[Check], on_outcome: Callable[[CheckOutcome], None]) -> None:
    """Run checks in their order; `on_outcome` gets each one's outcome once, whatever happens to its process.

    Args:
        plan: what is certified.
        checks: those of `all_checks(plan)` that are wanted.
        on_outcome: told what became of each.
    """
    plan.out_dir.mkdir(parents=True, exist_ok=True)
    (plan.out_dir / LOG_FILE).touch()
    left = list(checks)
    while left:
        group = list(itertools.takewhile(lambda check: check.group == left[0].group, left))
        for outcome in _outcomes(plan, group):
            del left[0]
            on_outcome(outcome)


def run_here(context: CheckContext, check: Check) -> CheckOutcome:
    """Run one check in this process; an error of it is its outcome."""
    found, began_s = Findings(), time.perf_counter()
    result, reason = Result.PASS, ""
    try:
        check.run(context, found)
        if outside := found.outside():
            result, reason = Result.FAIL, "; ".join(outside)
    except NotRunError as error:
        result, reason = Result.NOT_RUN, str(error)
    except Exception as error:
        logger.exception("%s", check.path)
        hint = missing_extra(error) if isinstance(error, ModuleNotFoundError) else None
        result, reason = (Result.NOT_RUN, hint) if hint else (Result.FAIL, f"{type(error).__name__}: {error}")
    seconds = round(time.perf_counter() - began_s, 3)
    return CheckOutcome(check.path, result, seconds, reason, check.page, found.figures, found.notes, found.audio)


def _outcomes(plan: Plan, group: Sequence[Check]) -> Iterator[CheckOutcome]:
    """Yield the outcomes of a group's checks, which another process runs; if that dies, only those up to its end."""
    log, spawn = plan.out_dir / LOG_FILE, multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_work, args=(plan, [check.path for check in group], theirs))
    process.start()
    theirs.close()
    try:
        for check in group:
            began_s, start = time.perf_counter(), log.stat().st_size
            reason = f"took longer than {check.timeout_s:.0f} s, and was ended"
            try:
                outcome = ours.recv() if ours.poll(check.timeout_s) else None
            except (EOFError, OSError):
                process.join(STOP_TIMEOUT_S)
                outcome, reason = None, f"its process ended with status {process.exitcode}"
            if outcome is None:
                seconds, tail = time.perf_counter() - began_s, _tail(log, start)
                process.terminate()
                yield CheckOutcome(check.path, Result.FAIL, seconds, reason, check.page, log_tail=tail)
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
            outcome = run_here(context, known[path])
            sys.stderr.flush()
            reason, notes, tail = _redacted(outcome.reason), list(map(_redacted, outcome.notes)), _tail(log, start)
            connection.send(replace(outcome, reason=reason, notes=notes, log_tail=tail))


def _tail(path: Path, start: int) -> str:
    """Return the last lines that were written to a log since it had so many bytes."""
    with path.open("rb") as file:
        file.seek(max(start, path.stat().st_size - TAIL_BYTES))
        return _redacted("\n".join(file.read().decode("utf-8", "replace").splitlines()[-TAIL_LINES:]))


def _redacted(text: str) -> str:
    """Leave the user's folder out of what may be published."""
    home = str(Path.home())
    return text.replace(home, "~") if home not in ("", "/") else text
